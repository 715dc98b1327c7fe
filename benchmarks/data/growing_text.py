"""Text of any size out of the English that every Python brings, whose vocabulary grows as real text's does.

Repeating 2 MB of text would flatter a cache of words: after the first time it knows them all. Heaps' law says that
N words of real text have about N**0.6 different ones. So words are replaced by invented ones, glued together from
halves of real ones, as often as that law asks for; as many again are invented words used once more. Sentences are
dealt out anew to documents each time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_trainer.dataset.corpus import PYTHON_DOCS, open_corpus

EXPONENT = 0.6
_REUSED = 50_000
"""Invented words that may come again: the latest ones."""


def base_documents() -> list[list[str]]:
    """Return the English of this Python: sentences of each document."""
    return [list(document.sentences) for document in open_corpus(PYTHON_DOCS).documents()]


def write_growing_text(path: Path, megabytes: float, base: Sequence[Sequence[str]], seed: int = 1) -> float:
    """Write text of about this size and return the exponent that its vocabulary really grew with.

    path: replaced. The exponent is the slope of log(types) over log(words) from a tenth of the text on.
    """
    size = types_at_tenth = words_at_tenth = 0
    growth = _Growth(base, random.Random(seed))
    with path.open("w") as file:
        for document in growth.documents():
            content = "\n".join(document) + "\n\n"
            size += file.write(content)
            if not types_at_tenth and size >= megabytes * 1e5:
                types_at_tenth, words_at_tenth = len(growth.types), growth.num_words
            if size >= megabytes * 1e6:
                break
    return math.log(len(growth.types) / types_at_tenth) / math.log(growth.num_words / words_at_tenth)


class _Growth:
    """Documents without end, and what has been in them."""

    def __init__(self, base: Sequence[Sequence[str]], rng: random.Random) -> None:
        self._base, self._rng = base, rng
        self.types: set[str] = set()
        self.num_words = 0
        self._invented: list[str] = []
        words = {word for document in base for sentence in document for word in sentence.split()}
        self._halves = sorted(word for word in words if word.isalpha() and len(word) > 5)
        # The first time the base text is as it is; from then on it is the law's constant.
        self._base_types = len(words)
        self._base_words = sum(len(sentence.split()) for document in base for sentence in document)

    def documents(self) -> Iterator[list[str]]:
        yield from self._seen(self._base)
        # From then on other documents of the same sizes: the same ones again would be found to be duplicates.
        sentences = [sentence for document in self._base for sentence in document]
        while True:
            self._rng.shuffle(sentences)
            rest = iter(sentences)
            yield from self._seen([[next(rest) for _ in document] for document in self._base])

    def _seen(self, documents: Sequence[Sequence[str]]) -> Iterator[list[str]]:
        for document in documents:
            words = [sentence.split() for sentence in document]
            count = sum(map(len, words))
            self.num_words += count
            wanted = self._base_types * (self.num_words / self._base_words) ** EXPONENT - len(self.types)
            if self.num_words > self._base_words and wanted > 0:
                self._replace(words, count, round(wanted))
            for sentence in words:
                self.types.update(sentence)
            yield [" ".join(sentence) for sentence in words]

    def _replace(self, words: list[list[str]], count: int, new: int) -> None:
        for number in range(min(2 * new, count)):
            sentence = self._rng.choice(words)
            sentence[self._rng.randrange(len(sentence))] = self._invent() if number % 2 == 0 else self._used()

    def _invent(self) -> str:
        first, second = self._rng.choice(self._halves), self._rng.choice(self._halves)
        word = first[: self._rng.randint(3, len(first))] + second[self._rng.randint(1, len(second) - 3) :]
        self._invented.append(word)
        return word

    def _used(self) -> str:
        return self._invented[self._rng.randrange(max(0, len(self._invented) - _REUSED), len(self._invented))]
