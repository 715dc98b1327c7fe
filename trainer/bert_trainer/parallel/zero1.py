"""ZeRO stage 1: which rows of the flat buffers a rank updates, and how the ranks' rows are gathered.

Rajbhandari et al. 2020: every rank holds the optimizer's moments of a share of the parameters, updates those, and the
new values are all-gathered. The buffers are cut into the buckets that are reduced on their own, and every bucket is
split evenly over the ranks, so that reducing can start with the first bucket and no rank waits for another's share.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property

import torch
from torch import Tensor

from bert_trainer.parallel.flat_parameters import ROW
from bert_trainer.parallel.row_balancing import rank_slice
from bert_trainer.parallel.world import BUCKET_ELEMENTS, Pending, SingleRank, World

BUCKET_ROWS = BUCKET_ELEMENTS // ROW

_MAX_GATHERS_IN_FLIGHT = 4  # each holds a bucket that has arrived, 16 MiB in fp32


class Zero1Partition:
    """Rows of a flat buffer that this rank owns, of ``num_rows`` in all."""

    def __init__(self, num_rows: int, world: World, *, split: bool) -> None:
        """split: rows are shared out over the ranks; otherwise every rank has all of them."""
        self.num_rows = num_rows
        self.is_split = split and world.size > 1
        self._world = world
        self.buckets = [slice(start, min(start + BUCKET_ROWS, num_rows)) for start in range(0, num_rows, BUCKET_ROWS)]
        """Rows of every bucket."""
        self.own_in_buffer = [self._own_rows_of(bucket, world.rank) for bucket in self.buckets]
        """This rank's rows of every bucket, in the whole buffer."""
        self.own_in_share: list[slice] = []
        """The same in this rank's share, in which they lie end to end."""
        end = 0
        for own in self.own_in_buffer:
            self.own_in_share.append(slice(end, end + own.stop - own.start))
            end = self.own_in_share[-1].stop
        self.num_own = end

    @classmethod
    def whole(cls, num_rows: int) -> Zero1Partition:
        """Return the partition of a single rank, which has all rows."""
        return cls(num_rows, SingleRank(), split=False)

    def _own_rows_of(self, bucket: slice, rank: int) -> slice:
        if not self.is_split:
            return bucket
        # As a reduce-scatter splits rows, whose result goes to exactly these.
        first, last = rank_slice(bucket.stop - bucket.start, rank, self._world.size)
        return slice(bucket.start + first, bucket.start + last)

    @cached_property
    def _own_rows(self) -> Tensor:
        return torch.cat([torch.arange(own.start, own.stop) for own in self.own_in_buffer])

    def own_rows(self, device: torch.device) -> Tensor:
        """Return the numbers of this rank's rows, int64, ascending."""
        if self._own_rows.device != device:
            self._own_rows = self._own_rows.to(device)
        return self._own_rows

    def num_own_below(self, row: int) -> int:
        """Return how many of this rank's rows come before a row of the buffer."""
        return int((self._own_rows < row).sum())

    def own_part(self, flat: Tensor) -> Tensor:
        """Return this rank's rows of a whole buffer, (rows, ROW): a copy if split, otherwise a view of all."""
        rows = flat.view(-1, ROW)
        return torch.cat([rows[own] for own in self.own_in_buffer]) if self.is_split else rows

    def gather_by_row(self, of_own: Tensor) -> Tensor:
        """Gather values that every rank has computed of its rows, (own rows, ...) to (all rows, ...).

        Collective if split. ``of_own`` may be of this rank's first few rows only; rows without values are 0.
        """
        if not self.is_split:
            return of_own
        # An all-reduce in which every row has one rank's values and zeros from all others: exact in any order of
        # summation, so that norms are the same to the bit however the rows are split. An all-gather would need them in
        # the order of rows, which interleaves the ranks bucket by bucket.
        of_all = of_own.new_zeros(self.num_rows, *of_own.shape[1:])
        of_all[self.own_rows(of_own.device)[: len(of_own)]] = of_own
        self._world.all_reduce_(of_all.view(-1))
        return of_all

    def all_gather_(self, own: Tensor, flat: Tensor) -> None:
        """Write all ranks' rows into every rank's whole buffer. Collective if split."""
        if not self.is_split:
            return
        rows = flat.view(-1, ROW)
        in_flight: deque[tuple[slice, Pending]] = deque()
        for number, (bucket, place) in enumerate(zip(self.buckets, self.own_in_share, strict=True)):
            num_rows = bucket.stop - bucket.start
            in_flight.append((bucket, self._world.start_all_gather(own[place], num_rows, f"values.{number}")))
            if len(in_flight) == _MAX_GATHERS_IN_FLIGHT:
                _store(*in_flight.popleft(), rows)
        for bucket, pending in in_flight:
            _store(bucket, pending, rows)

    def gather_to_rank_0(self, own: Tensor) -> Tensor | None:
        """Return the whole of a flat buffer of which every rank has its share, on rank 0's CPU; elsewhere None.

        Collective and only for what is split.
        """
        # One bucket at a time: an all-gather gives every rank the whole bucket, and no rank but 0 may hold more of it.
        whole = torch.empty(self.num_rows, ROW, dtype=own.dtype) if self._world.rank == 0 else None
        for number, (bucket, place) in enumerate(zip(self.buckets, self.own_in_share, strict=True)):
            mine, num_rows = own.view(-1, ROW)[place], bucket.stop - bucket.start
            gathered = self._world.start_all_gather(mine, num_rows, f"collect.{number}").wait()
            if whole is not None:
                whole[bucket] = gathered.to(whole.device)
        return None if whole is None else whole.view(-1)

    def scatter_from_rank_0_(self, whole: Tensor | None, own: Tensor) -> None:
        """Write every rank's share of rank 0's buffer into its own. Collective and only for what is split.

        whole: None on other ranks than 0.
        """
        for bucket, mine, place in zip(self.buckets, self.own_in_buffer, self.own_in_share, strict=True):
            # A broadcast of which every rank keeps its part; Horovod has no scatter.
            piece = own.new_empty(bucket.stop - bucket.start, ROW)
            if whole is not None:
                piece.copy_(whole.view(-1, ROW)[bucket])
            self._world.broadcast_(piece)
            own.view(-1, ROW)[place] = piece[mine.start - bucket.start : mine.stop - bucket.start]


def _store(bucket: slice, pending: Pending, rows: Tensor) -> None:
    rows[bucket] = pending.wait()
