"""Which rank computes which rows of a step.

Gradients are sums over all rows of a step and dropout's bits depend on sample numbers alone, so rows may be assigned
to the ranks in any way. The step lasts as long as its busiest rank: rows are assigned so that all ranks get nearly
the same number of real tokens, and as many rows as an even split gives them. MLPerf submissions exchange rows
between ranks to that end ("exchange padding"); here every rank knows all lengths and none are exchanged.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rank_slice(count: int, rank: int, size: int) -> tuple[int, int]:
    """Return this rank's contiguous part of ``count`` rows; the first ``count % size`` ranks get one more."""
    # Horovod's reducescatter splits rows the same way; ``zero1`` relies on it.
    base, extra = divmod(count, size)
    start = rank * base + min(rank, extra)
    return start, start + base + (1 if rank < extra else 0)


def balance_rows(tokens_R: NDArray[np.int64], already_assigned: int, loads: NDArray[np.int64]) -> NDArray[np.int64]:
    """Assign R rows, which follow ``already_assigned`` rows of the same step, to ranks.

    However a step is cut into calls, every rank ends with as many rows as ``rank_slice`` gives it. Loads differ by
    about the range of lengths within one round.

    Args:
        tokens_R: real tokens of every row.
        already_assigned: rows of the step that earlier calls have assigned.
        loads: int64 (ranks,), tokens that the ranks have got in this step; those of the rows are added to it.

    Returns:
        Each row's rank, int64 (R,).
    """
    size = len(loads)
    rank_R = np.empty(len(tokens_R), np.int64)
    # Stable sorts, here and below: ties go by place and rank, so that the assignment is a function of the lengths
    # alone, equal on all ranks and with every version of NumPy.
    by_length = np.argsort(-tokens_R, kind="stable")
    quota = _rows_by_rank(already_assigned + len(tokens_R), size) - _rows_by_rank(already_assigned, size)
    rounds = int(quota.min())
    # The shortest rows make up for a number that the ranks do not divide, where they unbalance least. All others are
    # assigned in rounds of one row per rank, from the longest to the shortest rows.
    rows_of_rounds, shortest = np.split(by_length, [rounds * size])
    everyone = np.arange(size)
    turns = [(everyone[quota > rounds], shortest), *((everyone, rows) for rows in rows_of_rounds.reshape(rounds, size))]
    for ranks, rows in turns:
        # A round's longest row goes to the rank with the fewest tokens so far.
        receivers = ranks[np.argsort(loads[ranks], kind="stable")]
        rank_R[rows] = receivers
        loads[receivers] += tokens_R[rows]
    return rank_R


def _rows_by_rank(count: int, size: int) -> NDArray[np.int64]:
    base, extra = divmod(count, size)
    rows: NDArray[np.int64] = base + (np.arange(size) < extra)
    return rows
