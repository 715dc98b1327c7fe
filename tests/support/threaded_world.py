"""Ranks as threads of one process: a World whose sums are taken in the order of ranks.

For tests of the arithmetic with rank counts that would be slow to start as processes. Real Horovod is tested
beside it, with two and three processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from bert_trainer.parallel.row_balancing import rank_slice
from bert_trainer.parallel.world import Done, PeerFailed, Pending, SingleRank

T = TypeVar("T")


class _Exchange:
    """One slot per rank and a barrier: put, meet, read, meet."""

    def __init__(self, size: int) -> None:
        self.slots: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def __call__(self, rank: int, value: Any) -> list[Any]:
        self.slots[rank] = value
        self.barrier.wait()
        gathered = list(self.slots)
        self.barrier.wait()
        return gathered


class ThreadedWorld(SingleRank):
    """One rank of a world of threads."""

    def __init__(self, rank: int, size: int, exchange: _Exchange) -> None:
        super().__init__(rank=rank, size=size, local_rank=rank)
        self._exchange = exchange

    def all_reduce_(self, flat: Tensor) -> None:
        parts = self._exchange(self.rank, flat.clone())
        flat.copy_(parts[0])
        for part in parts[1:]:
            flat.add_(part)

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Pending:
        assert {name} == set(self._exchange(self.rank, name)), "ranks differ in what they reduce"
        self.all_reduce_(tensor)
        return Done(tensor)

    def start_reduce_scatter(self, rows: Tensor, name: str) -> Pending:
        summed = rows.clone()
        self.start_all_reduce_(summed, name)
        return Done(summed[slice(*rank_slice(len(rows), self.rank, self.size))].clone())

    def start_all_gather(self, rows: Tensor, num_rows: int, name: str) -> Pending:
        assert {name} == set(self._exchange(self.rank, name)), "ranks differ in what they gather"
        gathered = torch.cat(self._exchange(self.rank, rows.clone()))
        assert len(gathered) == num_rows, f"{name}: {len(gathered)} rows were gathered, not {num_rows}"
        return Done(gathered)

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        return [sum(values) for values in zip(*self._exchange(self.rank, list(numbers)), strict=True)]

    def broadcast_(self, flat: Tensor, *, root: int = 0) -> None:
        flat.copy_(self._exchange(self.rank, flat.clone())[root])

    def broadcast_object(self, value: T) -> T:
        received: T = self._exchange(self.rank, value)[0]
        return received


def run_threads(size: int, action: Callable[[ThreadedWorld], T]) -> list[T]:
    """Run ``action`` once for each rank, in threads, and return the results by rank."""
    exchange = _Exchange(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = action(ThreadedWorld(rank, size, exchange))
        except BaseException as error:
            errors.append(error)
            exchange.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        # What others say of a rank that has ended comes before its own error, where that takes longer to leave.
        of_others = (threading.BrokenBarrierError, PeerFailed)
        raise next((error for error in errors if not isinstance(error, of_others)), errors[0])
    return results
