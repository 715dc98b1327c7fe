"""Tensors that differ from rank to rank, brought to rank 0 and back, one rank's at a time.

Of the ranks that only pass a tensor on, none holds more than a piece of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bert_trainer.parallel.world import BUCKET_ELEMENTS, World


def to_rank_0(world: World, own: Tensor, rank: int) -> Tensor | None:
    """Return one rank's flat tensor on rank 0, in memory of its own on the CPU; None elsewhere. Collective.

    own: this rank's, of the same shape and type on all of them.
    """
    whole = torch.empty(own.shape, dtype=own.dtype) if world.rank == 0 else None
    for piece in _pieces(len(own)):
        # A broadcast, of which rank 0 alone keeps what it gets: Horovod has no send.
        passed = own[piece].clone() if world.rank == rank else torch.empty_like(own[piece])
        world.broadcast_(passed, root=rank)
        if whole is not None:
            whole[piece] = passed.to(whole.device)
    return whole


def from_rank_0_(world: World, whole: Tensor | None, own: Tensor, rank: int) -> None:
    """Write a flat tensor of rank 0 into one rank's own. Collective.

    whole: None on other ranks than 0.
    """
    for piece in _pieces(len(own)):
        passed = torch.empty_like(own[piece])
        if whole is not None:
            passed.copy_(whole[piece])
        world.broadcast_(passed)
        if world.rank == rank:
            own[piece] = passed


def _pieces(length: int) -> Iterator[slice]:
    return (slice(start, min(start + BUCKET_ELEMENTS, length)) for start in range(0, length, BUCKET_ELEMENTS))
