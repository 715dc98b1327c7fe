"""How often a document is drawn, where corpora have weights.

A document of a corpus of weight w is drawn n = ``dupe_factor`` x w times in expectation: floor(n) times, and once more
for the share n - floor(n) of the documents. A hash of text and seed chooses these, so that any build, in any order and
beside any other text, chooses the same documents.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_DIGITS = 9
"""n is rounded to so many digits: 3 x 0.1 is to be 0.3, not 0.30000000000000004."""


def draw_chance(digest: bytes, seed: int) -> float:
    """Return a number in [0, 1) that depends only on a document's text and the seed. digest: of the text."""
    return int.from_bytes(hashlib.sha256(f"{seed}/drawn/".encode() + digest).digest()[:8]) / 2**64


def count_draws(weights: NDArray[np.float64], chances: NDArray[np.float64], dupe_factor: int) -> NDArray[np.int32]:
    """Return how often each document is drawn, int32 (D,); 0 where a small weight leaves it out.

    weights, chances: (D,).
    """
    wanted = np.round(weights * dupe_factor, _DIGITS)
    whole = np.floor(wanted)
    return (whole + (chances < wanted - whole)).astype(np.int32)


def repeats_in_pass(draws: NDArray[np.int32], number: int, passes: int) -> NDArray[np.int64]:
    """Return how often each document is traversed in one pass, (D,), so that all passes add up to its draws.

    draws: (D,), 0: once in every pass. number: of the pass, below ``passes``. Draws are dealt out to the passes in
    turn, so that a document drawn more often than there are passes is as seldom as possible twice in one.
    """
    # Pass k of p gets ceil((draws - k) / p): 5 draws in 3 passes are 2, 2 and 1.
    walks = np.maximum(0, (draws.astype(np.int64) - number + passes - 1) // passes)
    return np.where(draws == 0, 1, walks)
