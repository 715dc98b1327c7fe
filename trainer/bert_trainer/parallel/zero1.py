"""Which rows of the flat buffers a rank updates, and how ranks put theirs together.

ZeRO stage 1 (Rajbhandari et al. 2020): every rank holds the optimizer's moments of a share of the parameters,
updates those, and the new values are gathered. The buffers are cut into the chunks that are reduced on their own, and
every chunk is split evenly over the ranks, so that reducing can start with the first chunk and no rank waits for
another's share. Shares are whole rows; norms by row are exchanged exactly, as sums with zeros.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property

import torch
from torch import Tensor

from bert_trainer.parallel.flat_parameters import ROW
from bert_trainer.parallel.row_balancing import rank_slice
from bert_trainer.parallel.world import CHUNK_ELEMENTS, Alone, Pending, World

CHUNK_ROWS = CHUNK_ELEMENTS // ROW

_GATHERS_UNDER_WAY = 4  # bounds the memory of what arrives: each is a chunk


class Partition:
    """This rank's rows of buffers of ``num_rows`` rows."""

    def __init__(self, num_rows: int, world: World, *, split: bool) -> None:
        """split: rows are shared out over the ranks; otherwise every rank has all of them."""
        self.num_rows = num_rows
        self.is_split = split and world.size > 1
        self._world = world
        self.chunks = [slice(start, min(start + CHUNK_ROWS, num_rows)) for start in range(0, num_rows, CHUNK_ROWS)]
        """Rows of every chunk."""
        self.own_in_buffer = [self._share(chunk, world.rank) for chunk in self.chunks]
        """This rank's rows of every chunk, in the whole buffer."""
        self.own_in_share: list[slice] = []
        """The same in this rank's share, in which they lie end to end."""
        end = 0
        for own in self.own_in_buffer:
            self.own_in_share.append(slice(end, end + own.stop - own.start))
            end = self.own_in_share[-1].stop
        self.num_own = end

    @classmethod
    def whole(cls, num_rows: int) -> Partition:
        """Return the partition of one that has everything."""
        return cls(num_rows, Alone(), split=False)

    def _share(self, chunk: slice, rank: int) -> slice:
        if not self.is_split:
            return chunk
        first, last = rank_slice(chunk.stop - chunk.start, rank, self._world.size)
        return slice(chunk.start + first, chunk.start + last)

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

    def take(self, flat: Tensor) -> Tensor:
        """Return this rank's rows of a whole buffer, (rows, ROW): a copy if split, otherwise a view of all."""
        rows = flat.view(-1, ROW)
        return torch.cat([rows[own] for own in self.own_in_buffer]) if self.is_split else rows

    def share_by_row(self, of_own: Tensor) -> Tensor:
        """Return what all ranks know of their rows, (all rows, ...); ``of_own`` may be of the first few rows only.

        Rows of which nobody knows anything are 0. Collective if split.
        """
        if not self.is_split:
            return of_own
        of_all = of_own.new_zeros(self.num_rows, *of_own.shape[1:])
        of_all[self.own_rows(of_own.device)[: len(of_own)]] = of_own
        self._world.sum_(of_all.view(-1))
        return of_all

    def publish_(self, own: Tensor, flat: Tensor) -> None:
        """Write all ranks' rows into every rank's whole buffer. Collective if split."""
        if not self.is_split:
            return
        rows = flat.view(-1, ROW)
        under_way: deque[tuple[slice, Pending]] = deque()
        for number, (chunk, place) in enumerate(zip(self.chunks, self.own_in_share, strict=True)):
            under_way.append((chunk, self._world.start_gather(own[place], f"values.{number}")))
            if len(under_way) == _GATHERS_UNDER_WAY:
                _store(*under_way.popleft(), rows)
        for chunk, pending in under_way:
            _store(chunk, pending, rows)

    def collect(self, own: Tensor) -> Tensor | None:
        """Return the whole of a flat buffer of which every rank has its share, on rank 0's CPU; elsewhere None.

        Collective and only for what is split. One chunk at a time: no rank but 0 ever holds more of it.
        """
        whole = torch.empty(self.num_rows, ROW, dtype=own.dtype) if self._world.rank == 0 else None
        for number, (chunk, place) in enumerate(zip(self.chunks, self.own_in_share, strict=True)):
            gathered = self._world.start_gather(own.view(-1, ROW)[place], f"collect.{number}").wait()
            if whole is not None:
                whole[chunk] = gathered.to(whole.device)
        return None if whole is None else whole.view(-1)

    def hand_out_(self, whole: Tensor | None, own: Tensor) -> None:
        """Write every rank's share of rank 0's buffer into its own. Collective and only for what is split.

        whole: None on other ranks than 0.
        """
        for chunk, mine, place in zip(self.chunks, self.own_in_buffer, self.own_in_share, strict=True):
            piece = own.new_empty(chunk.stop - chunk.start, ROW)
            if whole is not None:
                piece.copy_(whole.view(-1, ROW)[chunk])
            self._world.broadcast_(piece)
            own.view(-1, ROW)[place] = piece[mine.start - chunk.start : mine.stop - chunk.start]


def _store(chunk: slice, pending: Pending, rows: Tensor) -> None:
    rows[chunk] = pending.wait()
