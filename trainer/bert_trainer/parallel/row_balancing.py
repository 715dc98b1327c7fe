"""Who computes which rows of a step.

Gradients are sums over all rows of a step and dropout's bits depend on sample numbers alone, so rows may be dealt
to the ranks in any way. The step lasts as long as its busiest rank: rows are dealt so that all ranks get nearly
the same number of real tokens, and as many rows as an even split gives them. MLPerf submissions exchange rows
between ranks to that end ("exchange padding"); here every rank knows all lengths and none are exchanged.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rank_slice(count: int, rank: int, size: int) -> tuple[int, int]:
    """Return this rank's contiguous part of ``count`` rows; the first ``count % size`` ranks get one more."""
    base, extra = divmod(count, size)
    start = rank * base + min(rank, extra)
    return start, start + base + (1 if rank < extra else 0)


def deal_rows(tokens_R: NDArray[np.int64], already_dealt: int, loads: NDArray[np.int64]) -> NDArray[np.int64]:
    """Deal R rows, which follow ``already_dealt`` rows of the same step; return each row's rank, int64 (R,).

    tokens_R: real tokens of every row. loads: int64 (ranks,), tokens that the ranks have got in this step; the rows'
    are added to it. However a step is cut into calls, every rank ends with as many rows as ``rank_slice`` gives it.

    The shortest rows make up for a number that the ranks do not divide; all others are dealt in rounds from the
    longest to the shortest, each round's longest row to the rank with the fewest tokens. So loads differ by about
    the range of lengths within one round. Ties go by place and rank: the deal is a function of the lengths alone.
    """
    size = len(loads)
    rank_R = np.empty(len(tokens_R), np.int64)
    by_length = np.argsort(-tokens_R, kind="stable")
    quota = _rows_by_rank(already_dealt + len(tokens_R), size) - _rows_by_rank(already_dealt, size)
    rounds = int(quota.min())
    rows_of_rounds, shortest = np.split(by_length, [rounds * size])
    everyone = np.arange(size)
    deals = [(everyone[quota > rounds], shortest), *((everyone, rows) for rows in rows_of_rounds.reshape(rounds, size))]
    for ranks, rows in deals:
        receivers = ranks[np.argsort(loads[ranks], kind="stable")]
        rank_R[rows] = receivers
        loads[receivers] += tokens_R[rows]
    return rank_R


def _rows_by_rank(count: int, size: int) -> NDArray[np.int64]:
    base, extra = divmod(count, size)
    rows: NDArray[np.int64] = base + (np.arange(size) < extra)
    return rows
