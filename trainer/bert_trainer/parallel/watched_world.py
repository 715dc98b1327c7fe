"""A world whose waits for other ranks show in this rank's heartbeat: of all that hang, only one does not wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from bert_trainer.parallel.world import Pending, World
from bert_trainer.system.heartbeat import watched

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _WatchedPending:
    pending: Pending

    def done(self) -> bool:
        return self.pending.done()

    def wait(self) -> Tensor:
        with watched().waiting():
            return self.pending.wait()


class WatchedWorld:
    """A world whose waits for other ranks are recorded in the heartbeat."""

    def __init__(self, world: World) -> None:
        """world: of more than one rank; a single one waits for nobody."""
        self._world = world
        self.rank, self.size = world.rank, world.size
        self.local_rank, self.num_hosts = world.local_rank, world.num_hosts

    def all_reduce_(self, flat: Tensor) -> None:
        """Sum in place."""
        with watched().waiting():
            self._world.all_reduce_(flat)

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Pending:
        """Start an all-reduce."""
        return _WatchedPending(self._world.start_all_reduce_(tensor, name))

    def start_reduce_scatter(self, rows: Tensor, name: str) -> Pending:
        """Start a reduce-scatter."""
        return _WatchedPending(self._world.start_reduce_scatter(rows, name))

    def start_all_gather(self, rows: Tensor, num_rows: int, name: str) -> Pending:
        """Start an all-gather."""
        return _WatchedPending(self._world.start_all_gather(rows, num_rows, name))

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Sum a few numbers."""
        with watched().waiting():
            return self._world.sum_numbers(numbers)

    def broadcast_(self, flat: Tensor, *, root: int = 0) -> None:
        """Copy that rank's tensor."""
        with watched().waiting():
            self._world.broadcast_(flat, root=root)

    def broadcast_object(self, value: T) -> T:
        """Return rank 0's value."""
        with watched().waiting():
            return self._world.broadcast_object(value)

    def close(self) -> None:
        """Leave the group."""
        self._world.close()
