"""Ranks joined by Horovod. The only module that imports it."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from bert_trainer.parallel.world import Pending, all_reduce_buckets_, broadcast_pickled
from bert_trainer.system.heartbeat import read_limits

T = TypeVar("T")

# Horovod's thread asks the other ranks every millisecond whether there is anything to reduce, and MPI waits for their
# answers in a busy loop: on a machine whose cores all compute, a quarter of each. With these, the loop lets other
# threads go first.
_YIELDING = {
    "OMPI_MCA_mpi_yield_when_idle": "1",  # Open MPI 4 and 5
    "I_MPI_THREAD_YIELD": "2",  # Intel MPI's sched_yield, by its reference; not measured
}


# After so many seconds Horovod prints which ranks it misses for a collective that others wait in (its stall inspector).
_STALL_CHECK = "HOROVOD_STALL_CHECK_TIME_SECONDS"


class _Handle:
    """Horovod's handle of an operation; reports errors by raising HorovodInternalError."""

    def __init__(self, hvd: Any, number: int) -> None:
        self._hvd, self._number = hvd, number

    def done(self) -> bool:
        return bool(self._hvd.poll(self._number))

    def wait(self) -> Tensor:
        result: Tensor = self._hvd.synchronize(self._number)
        return result


def prepare_environment(environment: MutableMapping[str, str]) -> None:
    """Set what Horovod and MPI read as they start; how MPI waits is left as it is where it is given."""
    environment["HOROVOD_FUSION_THRESHOLD"] = "0"
    environment.setdefault(_STALL_CHECK, str(stall_check_s(read_limits(environment))))
    for name, value in _YIELDING.items():
        environment.setdefault(name, value)


def stall_check_s(limits_s: tuple[float, float]) -> int:
    """Return after how long Horovod shall name the ranks that it misses. limits_s: lower and upper, of a hang.

    Horovod reads the time once, as it starts, when no step has been taken: so it cannot follow the pace that is learnt
    (``heartbeat.Pace``), and comes from the limits between which that moves. It looks for stalled collectives once per
    such time, and finds one after one to two of them: half of the lower limit is the longest with which the names are
    there when the first rank may count as hung. A healthy rank that waits for longer costs two lines of log.
    """
    return max(1, int(limits_s[0] / 2))


class Horovod:
    """Ranks started by mpirun or horovodrun."""

    def __init__(self) -> None:
        """Join the group; blocks until every rank has."""
        prepare_environment(os.environ)
        import horovod.torch as hvd

        self._hvd = hvd
        hvd.init()
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()
        self.local_rank: int = hvd.local_rank()
        # By pod or machine name rather than by Horovod's cross_size, which counts what the launcher says.
        self.num_hosts = len(set(self._gather_hosts()))

    def _gather_hosts(self) -> list[str]:
        padded = socket.gethostname().encode()[:64].ljust(64, b"\0")
        names = self._hvd.allgather(torch.frombuffer(bytearray(padded), dtype=torch.uint8)[None], name="hosts")
        return [bytes(row.tolist()).rstrip(b"\0").decode() for row in names]

    def all_reduce_(self, flat: Tensor) -> None:
        """Sum in buckets."""
        all_reduce_buckets_(self, flat)

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Pending:
        """Start Horovod's allreduce."""
        return _Handle(self._hvd, self._hvd.allreduce_async_(tensor, name=name, op=self._hvd.Sum))

    def start_reduce_scatter(self, rows: Tensor, name: str) -> Pending:
        """Start Horovod's reducescatter, which splits rows as ``rank_slice`` does: one more to the first ranks."""
        return _Handle(self._hvd, self._hvd.reducescatter_async(rows, name=name, op=self._hvd.Sum))

    def start_all_gather(self, rows: Tensor, num_rows: int, name: str) -> Pending:
        """Start Horovod's allgather, which learns the number of rows by itself."""
        return _Handle(self._hvd, self._hvd.allgather_async(rows, name=name))

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Sum in fp64."""
        values = torch.tensor(numbers, dtype=torch.float64)
        return self._hvd.allreduce(values, name="numbers", op=self._hvd.Sum).tolist()  # type: ignore[no-any-return]

    def broadcast_(self, flat: Tensor, *, root: int = 0) -> None:
        """Copy that rank's tensor."""
        self._hvd.broadcast_(flat, root_rank=root, name="broadcast")

    def broadcast_object(self, value: T) -> T:
        """Pickle on rank 0."""
        return broadcast_pickled(self, value)

    def close(self) -> None:
        """Leave the group."""
        self._hvd.shutdown()
