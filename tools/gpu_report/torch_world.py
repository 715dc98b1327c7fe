"""The trainer's ranks by torch.distributed: NCCL or Gloo for gradients, Gloo for numbers and objects on the host.

For the report alone: two ranks on one card, which NCCL refuses, and one rank whose gradients go through NCCL. Ranks
meet in a file, so that nothing listens on a port that another job may want.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from bert_trainer.parallel.row_balancing import rank_slice
from bert_trainer.parallel.world import BUCKET_ELEMENTS, Done, Pending

T = TypeVar("T")
MEETING_FILE, RANK, SIZE = "GPU_REPORT_MEETING_FILE", "GPU_REPORT_RANK", "GPU_REPORT_RANKS"
"""Environment variables that a rank is started with."""


@dataclass(frozen=True, slots=True)
class _Work:
    work: Any
    tensor: Tensor

    def done(self) -> bool:
        return bool(self.work.is_completed())

    def wait(self) -> Tensor:
        self.work.wait()
        return self.tensor


class TorchWorld:
    """A ``bert_trainer.parallel.world.World``."""

    local_rank = 0
    num_hosts = 1

    def __init__(self, library: str, rank: int, size: int) -> None:
        """Join; blocks until every rank has."""
        self.rank, self.size, self.local_rank = rank, size, rank
        backends = "gloo" if library == "gloo" else "cpu:gloo,cuda:nccl"
        meeting = f"file://{os.environ[MEETING_FILE]}"
        dist.init_process_group(backends, init_method=meeting, rank=rank, world_size=size)

    @classmethod
    def join(cls, library: str, expected_ranks: int, _expected_hosts: int) -> TorchWorld:
        """Join as the environment says. expected_ranks: of the run configuration."""
        size = int(os.environ[SIZE])
        assert size == expected_ranks, "the report starts as many ranks as it configures"
        return cls(library, int(os.environ[RANK]), size)

    def all_reduce_(self, flat: Tensor) -> None:
        """Sum in buckets."""
        for pending in [self.start_all_reduce_(bucket, "") for bucket in torch.split(flat, BUCKET_ELEMENTS)]:
            pending.wait()

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Pending:
        """Start an all-reduce; ``name`` is not needed, all ranks start them in the same order."""
        return _Work(dist.all_reduce(tensor, async_op=True), tensor)

    def start_reduce_scatter(self, rows: Tensor, name: str) -> Pending:
        """All-reduce and keep this rank's rows: exact, and twice the bytes."""
        start, stop = rank_slice(len(rows), self.rank, self.size)
        summed = rows.clone()
        dist.all_reduce(summed)
        return Done(summed[start:stop])

    def start_all_gather(self, rows: Tensor, name: str) -> Pending:
        """Sum buffers in which every rank fills its own rows."""
        counts = [int(count) for count in self.sum_numbers([len(rows) * (at == self.rank) for at in range(self.size)])]
        gathered = rows.new_zeros(sum(counts), *rows.shape[1:])
        start = sum(counts[: self.rank])
        gathered[start : start + len(rows)] = rows
        dist.all_reduce(gathered)
        return Done(gathered)

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Sum in fp64."""
        values = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(values)
        found: list[float] = values.tolist()
        return found

    def broadcast_(self, flat: Tensor, *, root: int = 0) -> None:
        """Copy that rank's tensor."""
        dist.broadcast(flat, root)

    def broadcast_object(self, value: T) -> T:
        """Pickle on rank 0."""
        payload = pickle.dumps(value) if self.rank == 0 else b""
        length = torch.tensor([len(payload)])
        dist.broadcast(length, 0)
        buffer = torch.zeros(int(length), dtype=torch.uint8)
        if self.rank == 0:
            buffer.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
        dist.broadcast(buffer, 0)
        received: T = pickle.loads(buffer.numpy().tobytes())  # noqa: S301 - from our own rank 0
        return received

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()
