"""Generates text of any size from the English in every Python, with a vocabulary that grows like that of real text.

Repeating 2 MB of text would flatter a cache of words: after the first time it holds them all. By Heaps' law N words of
real text have about N**0.6 different ones. So words are replaced by invented ones, joined from halves of real ones, as
often as that law requires; as many again are replaced by invented words that occurred before. Sentences are shuffled to
new documents each time. Works on whole arrays of word numbers: some 50 MB per second on one core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.corpus.corpora import PYTHON_DOCS, open_corpus
from bert_trainer.dataset.tokens.word_cache import ragged_indexes

EXPONENT = 0.6
_REUSED = 50_000
"""Invented words that may occur again: the latest ones."""
_LINE_END = 0
"""Number of the word that ends a sentence; a second one ends a document."""

Numbers = NDArray[np.int64]


def base_documents() -> list[list[str]]:
    """Return the English of this Python: sentences of each document."""
    return [list(document.sentences) for document in open_corpus(PYTHON_DOCS).documents()]


def write_growing_text(path: Path, megabytes: float, base: Sequence[Sequence[str]], seed: int = 1) -> float:
    """Write text of about this size and return the exponent that its vocabulary really grew with.

    path: replaced. The exponent is the slope of log(types) over log(words) from a tenth of the text on.
    """
    wanted, size = int(megabytes * 1e6), 0
    growth = _Growth(base, np.random.default_rng(seed))
    at_tenth: tuple[int, int] | None = None
    with path.open("wb") as file:
        for numbers in growth.rounds():
            if at_tenth is None and size + growth.num_bytes(numbers) >= wanted // 10:
                growth.count(tenth := growth.cut(numbers, wanted // 10 - size))
                at_tenth = growth.num_types, growth.num_words
                numbers, rest = tenth, numbers[len(tenth) :]
                size += file.write(growth.render(numbers))
                numbers = rest
            numbers = growth.cut(numbers, wanted - size)
            growth.count(numbers)
            size += file.write(growth.render(numbers))
            if size >= wanted:
                break
    assert at_tenth is not None, "the first round is longer than a tenth, or others follow"
    return math.log(growth.num_types / at_tenth[0]) / math.log(growth.num_words / at_tenth[1])


class _Growth:
    """An endless stream of documents, as arrays of word numbers, and the words seen so far."""

    def __init__(self, base: Sequence[Sequence[str]], rng: np.random.Generator) -> None:
        self._rng = rng
        sentences = [sentence.split() for document in base for sentence in document]
        self._known = {"\n": _LINE_END}
        flat = [self._known.setdefault(word, len(self._known)) for words in sentences for word in (*words, "\n")]
        self._base = np.array(flat, dtype=np.int64)
        self._lengths = np.array([len(words) + 1 for words in sentences], dtype=np.int64)
        self._document_sizes = np.array([len(document) for document in base], dtype=np.int64)
        self._words = list(self._known)
        self._widths = np.array([len(word.encode()) for word in self._words], dtype=np.int64)
        self._halves = sorted(word for word in self._words if word.isalpha() and len(word) > 5)
        # The first time the base text is as it is; from then on it is the law's constant.
        self._base_types = len(self._words) - 1
        self._base_words = len(self._base) - len(sentences)
        self._first_invented = len(self._words)
        self._seen = np.zeros(0, dtype=np.bool_)
        self.num_words = 0

    @property
    def num_types(self) -> int:
        """Return how many different words there were."""
        return int(np.count_nonzero(self._seen[_LINE_END + 1 :]))

    def rounds(self) -> Iterator[Numbers]:
        """Yield the base text, then, forever, its sentences shuffled to documents of the same sizes."""
        order = np.arange(len(self._lengths))
        while True:
            lengths = self._lengths[order]
            starts = (np.cumsum(self._lengths) - self._lengths)[order]
            numbers = self._base[ragged_indexes(starts, lengths)]
            if self.num_words:
                numbers = self._replace(numbers)
            ends = np.cumsum(lengths)[np.cumsum(self._document_sizes) - 1]
            yield np.insert(numbers, ends, _LINE_END)
            # New documents: repeated ones would be dropped as near-duplicates.
            order = self._rng.permutation(len(order))

    def count(self, numbers: Numbers) -> None:
        """Count words that are written."""
        if len(self._seen) < len(self._words):
            self._seen = np.concatenate([self._seen, np.zeros(len(self._words) - len(self._seen), dtype=np.bool_)])
        self._seen[numbers] = True
        self.num_words += int(np.count_nonzero(numbers != _LINE_END))

    def num_bytes(self, numbers: Numbers) -> int:
        """Return the approximate size of the text."""
        return int((self._widths[numbers] + 1).sum())

    def cut(self, numbers: Numbers, max_bytes: int) -> Numbers:
        """Return the first documents that have so many bytes together, all where there are not as many."""
        document_ends = np.flatnonzero((numbers[1:] == _LINE_END) & (numbers[:-1] == _LINE_END)) + 2
        sizes = np.cumsum(self._widths[numbers] + 1)[document_ends - 1]
        at = int(np.searchsorted(sizes, max_bytes))
        return numbers[: document_ends[min(at, len(document_ends) - 1)]]

    def render(self, numbers: Numbers) -> bytes:
        """Return the text: a sentence per line, an empty line behind each document."""
        text = " ".join(map(self._words.__getitem__, numbers.tolist()))
        return text.replace(" \n", "\n").replace("\n ", "\n").encode()

    def _replace(self, numbers: Numbers) -> Numbers:
        """Replace words by as many new ones as the law requires after this round, and by as many earlier ones."""
        places = np.flatnonzero(numbers != _LINE_END)
        wanted = self._base_types * ((self.num_words + len(places)) / self._base_words) ** EXPONENT
        new = max(0, min(round(wanted - self.num_types), len(places) // 2))
        replaced = numbers.copy()
        places = self._rng.permutation(places)[: 2 * new]
        replaced[places[:new]] = self._invent(new)
        first = max(self._first_invented, len(self._words) - _REUSED)
        replaced[places[new:]] = self._rng.integers(first, max(first + 1, len(self._words)), len(places) - new)
        return replaced

    def _invent(self, count: int) -> Numbers:
        first = len(self._words)
        while len(self._words) < first + count:
            picks = self._rng.integers(0, len(self._halves), (count, 2)).tolist()
            cuts = self._rng.random((count, 2)).tolist()
            for (left, right), (at, start) in zip(picks, cuts, strict=True):
                one, other = self._halves[left], self._halves[right]
                word = one[: 3 + int(at * (len(one) - 2))] + other[1 + int(start * (len(other) - 3)) :]
                if word not in self._known and len(self._words) < first + count:
                    self._known[word] = len(self._words)
                    self._words.append(word)
        widths = [len(word.encode()) for word in self._words[first:]]
        self._widths = np.concatenate([self._widths, np.array(widths, dtype=np.int64)])
        return np.arange(first, first + count)
