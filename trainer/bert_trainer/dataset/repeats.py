"""How often things come again, counted in little memory whatever their number is.

Things are given as 64-bit hashes. Counted are those whose hash is below a limit; where there are too many different
ones the limit is halved and those above it are forgotten (distinct sampling: Gibbons, VLDB 2001). What is left is a
random part of all different things, with exact counts; as long as nothing was forgotten, all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_KEYS = 1 << 20
"""Different hashes that are kept: 16 MB. The relative error of an estimate is about one in a thousand then."""

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Repeats:
    """Counts of things."""

    keys: Hashes
    """(n,): different hashes, ascending, each with ``shift`` leading zero bits."""
    counts: NDArray[np.int64]
    """(n,): how often each came."""
    shift: int
    """One in 2**shift of the different things is kept."""

    @classmethod
    def of(cls, hashes: Hashes, *, shift: int = 0, most: int = MOST_KEYS) -> Repeats:
        """Count hashes, (m,). shift: keep one in 2**shift from the beginning."""
        keys, counts = np.unique(hashes[hashes <= _limit(shift)], return_counts=True)
        return cls(keys, counts.astype(np.int64), shift)._bounded(most)

    @classmethod
    def together(cls, several: Iterable[Repeats], *, most: int = MOST_KEYS) -> Repeats:
        """Return the counts of all things together; at least one."""
        several = list(several)
        shift = max(one.shift for one in several)
        parts = [one._shifted(shift) for one in several]
        keys, places = np.unique(np.concatenate([part.keys for part in parts]), return_inverse=True)
        counts = np.zeros(len(keys), dtype=np.int64)
        np.add.at(counts, places, np.concatenate([part.counts for part in parts]))
        return cls(keys, counts, shift)._bounded(most)

    @property
    def is_exact(self) -> bool:
        """Whether all things were counted."""
        return self.shift == 0

    @property
    def times(self) -> float:
        """How often a thing comes, on average over the different ones; 0 where there is none."""
        return float(self.counts.sum() / len(self.keys)) if len(self.keys) else 0.0

    @property
    def repeated_share(self) -> float:
        """Share of all things that an earlier one equals, in [0, 1)."""
        return 1 - 1 / self.times if len(self.keys) else 0.0

    def _bounded(self, most: int) -> Repeats:
        found = self
        while len(found.keys) > most:
            found = found._shifted(found.shift + 1)
        return found

    def _shifted(self, shift: int) -> Repeats:
        if shift == self.shift:
            return self
        left = int(np.searchsorted(self.keys, _limit(shift), side="right"))
        return Repeats(self.keys[:left].copy(), self.counts[:left].copy(), shift)


def _limit(shift: int) -> np.uint64:
    return np.uint64((1 << 64 - shift) - 1)
