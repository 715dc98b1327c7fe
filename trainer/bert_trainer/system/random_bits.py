"""Random numbers of one shard, many at a time, that come out the same with every version of NumPy.

Only a bit generator's raw output is used, which NumPy keeps stable; what becomes of the bits is written here.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_HALF = np.uint64(32)


class RandomBits:
    """A stream of random bits that its name decides (Philox, Salmon et al. 2011)."""

    def __init__(self, name: str) -> None:
        """name: different ones give independent streams."""
        key = np.frombuffer(hashlib.sha256(name.encode()).digest()[:16], dtype="<u8")
        self._source = np.random.Philox(key=key)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return 64 random bits each, (count,)."""
        return self._source.random_raw(count)

    def below(self, limits: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a number in [0, limit) for each limit, (n,).

        limits: 1 to 2**32. Chances differ from equal by less than limit / 2**32 of themselves.
        """
        return scaled(self.words(len(limits)) >> _HALF, limits)

    def hits(self, chance: float, count: int) -> NDArray[np.bool_]:
        """Return ``count`` draws that are True with this probability, (count,)."""
        return (self.words(count) >> _HALF) < np.uint64(round(chance * 2**32))

    def coins(self, tosses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of heads for each number of tosses of a fair coin, (n,)."""
        heads = np.zeros(len(tosses), dtype=np.int64)
        rows = np.flatnonzero(tosses > 0)
        left = tosses[rows]
        while len(rows):
            # All of left is 1 or more here: a shift by 64 bits is undefined.
            bits = self.words(len(rows)) >> (np.uint64(64) - np.minimum(left, 64).astype(np.uint64))
            heads[rows] += np.bitwise_count(bits)
            left = left - 64
            rows, left = rows[left > 0], left[left > 0]
        return heads


def scaled(bits: NDArray[np.uint64], limits: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Turn 32 random bits each into numbers in [0, limit)."""
    # 32 bits times at most 2**32 fit into 64.
    return ((bits * np.asarray(limits, dtype=np.uint64)) >> _HALF).astype(np.int64)


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64 bits so that every input bit moves every output bit (splitmix64, Steele et al. 2014)."""
    # In place: in arrays that a core's cache holds, each new array would cost as much as the arithmetic.
    values = values + np.uint64(0x9E3779B97F4A7C15)
    shifted = values >> np.uint64(30)
    values ^= shifted
    values *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(values, np.uint64(27), out=shifted)
    values ^= shifted
    values *= np.uint64(0x94D049BB133111EB)
    np.right_shift(values, np.uint64(31), out=shifted)
    values ^= shifted
    return values
