"""Packing: which samples share a row of a packed MLPerf file. A pure function of their lengths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_SAMPLES_PER_ROW = 3
"""As in NVIDIA's packed MLPerf data."""


def pack(lengths: NDArray[np.int64], capacity: int) -> list[list[int]]:
    """Group samples by best-fit decreasing, so that no group is longer than ``capacity`` or has more than three.

    lengths: (n,), each 1 to ``capacity``. Returns groups of numbers of samples. Deterministic, in linear time.
    """
    groups: list[list[int]] = []
    # Open groups by the space that is left in them.
    with_space: list[list[int]] = [[] for _ in range(capacity + 1)]
    # Bit s is set if a group with space s is open. The lowest set bit at or above a length is the best fit.
    filled = 0
    # A stable sort: the order of equal lengths must not depend on the version of NumPy.
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
        if left and len(groups[group]) < MAX_SAMPLES_PER_ROW:
            with_space[left].append(group)
            filled |= 1 << left
    return groups
