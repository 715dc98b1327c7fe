"""The ranks of a run. The only module that imports Horovod.

``connect`` returns a ``World``: the same few collectives with Horovod or alone, so that everything above can be
tested without MPI.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from bert_trainer.errors import TrainerError, WrongWorld
from bert_trainer.output.termination import report_error
from bert_trainer.system.atomic_files import storage_errors
from bert_trainer.system.mpi_variables import SIZE_VARIABLES

T = TypeVar("T")

# Elements of one bucket, 16 MiB in fp32. Buckets have fixed bounds and are never fused with one another: Horovod's
# own fusion packs tensors by the time they arrive, which changes the rounding of sums from three ranks on.
BUCKET_ELEMENTS = 4 * 1024 * 1024

# Horovod's thread asks the other ranks every millisecond whether there is anything to reduce, and MPI waits for their
# answers in a busy loop: on a machine whose cores all compute, a quarter of each. With these, the loop lets other
# threads go first.
_YIELDING = {
    "OMPI_MCA_mpi_yield_when_idle": "1",  # Open MPI 4 and 5
    "I_MPI_THREAD_YIELD": "2",  # Intel MPI's sched_yield, by its reference; not measured
}

# HOROVOD_SIZE is set by horovodrun with Gloo, without any MPI.
_LAUNCHER_SIZES = (*SIZE_VARIABLES, "HOROVOD_SIZE")


class Pending(Protocol):
    """A collective operation in flight. What was handed to it must not be touched before ``wait`` returns."""

    def done(self) -> bool:
        """Return whether ``wait`` would return at once, without waiting."""

    def wait(self) -> Tensor:
        """Wait for the result."""


class World(Protocol):
    """What the trainer needs of its ranks. Every rank makes the same calls; ``start_`` ones with the same names."""

    rank: int
    size: int
    local_rank: int
    """Number of this rank on its host."""
    num_hosts: int

    def all_reduce_(self, flat: Tensor) -> None:
        """Sum a contiguous tensor over all ranks, in place, in buckets of fixed order."""

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Pending:
        """Start an all-reduce: sum a contiguous tensor over all ranks, in place and on its own."""

    def start_reduce_scatter(self, rows: Tensor, name: str) -> Pending:
        """Start a reduce-scatter of rows: each rank gets its ``rank_slice`` of the summed rows."""

    def start_all_gather(self, rows: Tensor, name: str) -> Pending:
        """Start an all-gather: all ranks' rows end to end, by rank; their numbers may differ."""

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Sum a few numbers, in fp64."""

    def broadcast_(self, flat: Tensor, *, root: int = 0) -> None:
        """Copy the tensor of rank ``root`` to all ranks, in place."""

    def broadcast_object(self, value: T) -> T:
        """Return rank 0's value, which must pickle."""

    def close(self) -> None:
        """Leave the group; nothing may be called afterwards."""


@dataclass(frozen=True, slots=True)
class Done:
    """An operation that needed no waiting."""

    result: Tensor

    def done(self) -> bool:
        """Return True."""
        return True

    def wait(self) -> Tensor:
        """Return the result."""
        return self.result


@dataclass(slots=True)
class Alone:
    """One process that needs nobody."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    num_hosts: int = 1

    def all_reduce_(self, flat: Tensor) -> None:
        """Leave the tensor as it is."""

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Pending:
        """Leave the tensor as it is."""
        return Done(tensor)

    def start_reduce_scatter(self, rows: Tensor, name: str) -> Pending:
        """Return all of them."""
        return Done(rows)

    def start_all_gather(self, rows: Tensor, name: str) -> Pending:
        """Return them."""
        return Done(rows)

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Return them."""
        return list(numbers)

    def broadcast_(self, flat: Tensor, *, root: int = 0) -> None:
        """Leave the tensor as it is."""

    def broadcast_object(self, value: T) -> T:
        """Return it."""
        return value

    def close(self) -> None:
        """Do nothing."""


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
    for name, value in _YIELDING.items():
        environment.setdefault(name, value)


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
        """Sum in buckets; all are in flight at once and each is reduced on its own."""
        buckets = torch.split(flat, BUCKET_ELEMENTS)
        for pending in [self.start_all_reduce_(bucket, f"sum.{number}") for number, bucket in enumerate(buckets)]:
            pending.wait()

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Pending:
        """Start Horovod's allreduce."""
        return _Handle(self._hvd, self._hvd.allreduce_async_(tensor, name=name, op=self._hvd.Sum))

    def start_reduce_scatter(self, rows: Tensor, name: str) -> Pending:
        """Start Horovod's reducescatter, which splits rows as ``rank_slice`` does: one more to the first ranks."""
        return _Handle(self._hvd, self._hvd.reducescatter_async(rows, name=name, op=self._hvd.Sum))

    def start_all_gather(self, rows: Tensor, name: str) -> Pending:
        """Start Horovod's allgather."""
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
        # Its length first: a broadcast needs a buffer of the right size on every rank.
        payload = np.frombuffer(pickle.dumps(value), dtype=np.uint8) if self.rank == 0 else np.zeros(0, np.uint8)
        length = self._hvd.broadcast(torch.tensor([payload.size]), root_rank=0, name="object.length")
        buffer = torch.zeros(int(length), dtype=torch.uint8)
        if self.rank == 0:
            buffer.copy_(torch.from_numpy(payload.copy()))
        self._hvd.broadcast_(buffer, root_rank=0, name="object.bytes")
        received: T = pickle.loads(buffer.numpy().tobytes())  # noqa: S301 - from our own rank 0
        return received

    def close(self) -> None:
        """Leave the group."""
        self._hvd.shutdown()


def connect(expected_ranks: int, expected_hosts: int) -> World:
    """Join the other ranks and check that all of them are there.

    Raises:
        WrongWorld: the launcher started another number of ranks, or on another number of hosts.
    """
    # Horovod is not imported by a single process: it would start its threads, and MPI, for nothing.
    launched = next((int(os.environ[name]) for name in _LAUNCHER_SIZES if name in os.environ), 1)
    world: World = Horovod() if launched > 1 or expected_ranks > 1 else Alone()
    # A launcher that cannot reach its workers may silently start every rank on its own machine: Open MPI 5 does when
    # it is given only Open MPI 4's variables.
    if (world.size, world.num_hosts) != (expected_ranks, expected_hosts):
        size, hosts = world.size, world.num_hosts
        world.close()
        raise WrongWorld(
            f"world: the launcher started {size} rank(s) on {hosts} host(s), the run configuration asks for "
            f"{expected_ranks} on {expected_hosts}",
            hint="start it by mpirun with as many ranks, and give the host file explicitly (--hostfile)",
        )
    return world


class PeerFailed(TrainerError):
    """Rank 0 has ended the run and has said why; the other ranks leave quietly with its exit code."""

    def __init__(self, exit_code: int) -> None:
        """exit_code: rank 0's."""
        super().__init__("rank 0 has ended the run")
        self.exit_code = exit_code
        self.is_reported = True


def lost_peer(error: Exception) -> bool:
    """Return whether an error only says that another rank has ended, which reports its own reason."""
    # By name, so that a single process need not import Horovod.
    return type(error).__name__ == "HorovodInternalError"


def on_rank_0(world: World, action: Callable[[], T], *, has_trained: bool = False) -> T:
    """Run an action on rank 0 alone and return its result on every rank.

    Args:
        world: the ranks, all of which call this.
        action: what rank 0 runs; its result must pickle.
        has_trained: a step was taken, so that trouble with files is not a mistake in the configuration.

    Raises:
        TrainerError: on rank 0, whatever the action raised; PeerFailed on the others.
    """
    error: TrainerError | None = None
    outcome: tuple[int | None, Any] = (None, None)
    if world.rank == 0:
        try:
            with storage_errors(lambda: has_trained):
                outcome = (None, action())
        except TrainerError as raised:
            error, outcome = raised, (raised.exit_code, None)
            # Before the other ranks learn of it: the first rank to leave makes mpirun end the rest, this one included.
            report_error("bert-train", raised)
    exit_code, result = world.broadcast_object(outcome)
    if error is not None:
        raise error
    if exit_code is not None:
        raise PeerFailed(exit_code)
    return result  # type: ignore[no-any-return]
