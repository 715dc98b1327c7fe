"""Which samples share a row of a packed file; a pure function of lengths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST_IN_A_ROW = 3
"""As in NVIDIA's packed MLPerf data."""

_WINDOW_TOKENS = 12_000_000
"""Of the rows among which those that share one are looked for, as if they were full: what memory has room for."""


def window_rows(capacity: int) -> int:
    """Return how many rows of a file are packed at a time, however many it has. capacity: tokens of a row."""
    return max(1, _WINDOW_TOKENS // capacity)


def pack(lengths: NDArray[np.int64], capacity: int) -> list[list[int]]:
    """Group rows so that no group is longer than ``capacity``: longest first, each to where it fits best.

    lengths: 1 to ``capacity``. Every row is in one group of one to three. Deterministic. Time: linear.
    """
    groups: list[list[int]] = []
    with_space: list[list[int]] = [[] for _ in range(capacity + 1)]
    """Open groups by the space that is left in them."""
    filled = 0
    """Bit s is set where a group with space s is open; the lowest one above a length is the best fit."""
    for row in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[row])
        above = filled >> length
        if above:
            space = length + (above & -above).bit_length() - 1
            group = with_space[space].pop()
            if not with_space[space]:
                filled &= ~(1 << space)
            groups[group].append(row)
        else:
            space, group = capacity, len(groups)
            groups.append([row])
        left = space - length
        if left and len(groups[group]) < MOST_IN_A_ROW:
            with_space[left].append(group)
            filled |= 1 << left
    return groups
