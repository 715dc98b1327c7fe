"""A cache of what is computed per word: its token ids, or its hashes.

Natural text repeats its words: of a million, a few thousand are new. Values of a word must not depend on its
neighbours. Memory is bounded: a full cache is emptied and fills again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]
Split = Callable[[Sequence[str]], tuple[list[str], NDArray[np.int64]]]
"""Returns the words of several texts, end to end, and how many each text has, at least one."""

MAX_WORDS = 1 << 18
"""Words remembered: about 45 MB with their token ids. English text of 100 MB has about that many."""
_MAX_CHARACTERS = 1 << 24
"""Of all remembered words: writing without spaces makes words of whole sentences."""
BATCH_CHARACTERS = 1 << 20
"""Text whose words are held in memory at a time: about 15 MB of them."""


@dataclass(slots=True)
class HitRate:
    """How often a word was in the cache."""

    words: int = 0
    unseen: int = 0


def split_at_spaces(texts: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return what stands between two spaces of the texts, end to end, and how many each text has, int64 (texts,)."""
    # As split(" ") does: one word more than spaces, empty ones included.
    counts = np.fromiter((text.count(" ") + 1 for text in texts), dtype=np.int64, count=len(texts))
    return " ".join(texts).split(" "), counts


class WordCache:
    """Looks words up and computes the values of unseen ones, many at a time."""

    def __init__(
        self,
        compute: Callable[[Sequence[str]], tuple[Values, NDArray[np.int64]]],
        split: Split = split_at_spaces,
        *,
        max_words: int = MAX_WORDS,
    ) -> None:
        """compute: returns the values of several words, end to end, and how many each of them has."""
        self._compute, self._split = compute, split
        self._most_words = max_words
        self.hit_rate = HitRate()
        self._values: Values
        self._counts: NDArray[np.int64]
        self._starts: NDArray[np.int64]
        self._clear()

    def look_up(self, words: Sequence[str]) -> tuple[Values, NDArray[np.int64]]:
        """Return the values of the words, end to end, (n, ...), and how many each has, int64 (words,)."""
        # Before the look-up: all words of one call are there together, and may exceed the limit.
        if len(self._numbers) >= self._most_words or self._characters >= _MAX_CHARACTERS:
            self._clear()
        known = len(self._numbers)
        # The loop over words runs in C: __missing__ is Python, and is called for unseen words alone.
        numbers = np.fromiter(map(self._numbers.__getitem__, words), dtype=np.int64, count=len(words))
        if unseen := self._numbers.unseen:
            self._learn(unseen)
            self._numbers.unseen = []
        self.hit_rate.words += len(words)
        self.hit_rate.unseen += len(self._numbers) - known
        counts = self._counts[numbers]
        return self._values[ragged_indexes(self._starts[numbers], counts)], counts

    def look_up_texts(self, texts: Sequence[str]) -> tuple[Values, NDArray[np.int64]]:
        """Return the values of the texts' words, end to end, (n, ...), and how many each text has, int64 (texts,).

        Memory: the values, and the words of a batch of texts.
        """
        # The values of no words first: there may be no text.
        values: list[Values] = [self._compute([])[0]]
        lengths: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
        start = batched = 0
        for end, text in enumerate(texts, start=1):
            batched += len(text)
            if batched >= BATCH_CHARACTERS or end == len(texts):
                words, words_of_text = self._split(texts[start:end])
                part, counts = self.look_up(words)
                ends = np.concatenate([[0], np.cumsum(counts)])[np.cumsum(words_of_text)]
                values.append(part)
                lengths.append(np.diff(ends, prepend=0))
                start, batched = end, 0
        return np.concatenate(values), np.concatenate(lengths)

    def _learn(self, words: list[str]) -> None:
        values, counts = self._compute(words)
        starts = len(self._values) + np.cumsum(counts) - counts
        self._values = np.concatenate([self._values, values])
        self._counts = np.concatenate([self._counts, counts])
        self._starts = np.concatenate([self._starts, starts])
        self._characters += sum(map(len, words))

    def _clear(self) -> None:
        self._numbers = _Numbers()
        self._characters = 0
        self._values, self._counts = self._compute([])  # empty arrays of the right types
        self._starts = np.zeros(0, dtype=np.int64)


class _Numbers(dict[str, int]):
    """Numbers words in the order in which they are first looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.unseen: list[str] = []

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self.unseen.append(word)
        return number


def ragged_indexes(starts: NDArray[np.int64], counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return ``starts[0], starts[0] + 1, …`` for as many as ``counts[0]`` says, then those of ``starts[1]``, ….

    Shapes: (n,) and (n,) to (sum of counts,).
    """
    # One arange over all elements, shifted per run: no loop in Python over words or sentences.
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    shifts: NDArray[np.int64] = np.repeat(starts - (ends - counts), counts)
    return np.arange(total) + shifts
