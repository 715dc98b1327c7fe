"""What the ranks of a run do together, whichever library carries it: a ``World`` of a few collectives.

``connection`` joins one: Horovod's, torch.distributed's, or a process alone. Everything above can therefore be tested
without MPI.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from bert_trainer.errors import TrainerError
from bert_trainer.output.termination import report_error
from bert_trainer.system.atomic_files import storage_errors

T = TypeVar("T")

# Elements of one bucket, 16 MiB in fp32. Buckets have fixed bounds and are never fused with one another: Horovod's
# own fusion packs tensors by the time they arrive, which changes the rounding of sums from three ranks on.
BUCKET_ELEMENTS = 4 * 1024 * 1024

_TEXT_BYTES = 64  # as long as a host name may be


class Pending(Protocol):
    """An asynchronous collective. Its input must not be touched before ``wait`` returns."""

    def done(self) -> bool:
        """Return whether ``wait`` would return at once."""

    def wait(self) -> Tensor:
        """Wait for the result."""


class World(Protocol):
    """Collectives over the ranks of a run.

    Every rank makes the same calls in the same order, those that ``start_`` something with the same names: Horovod
    matches them by name, torch.distributed by their order.
    """

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

    def start_all_gather(self, rows: Tensor, num_rows: int, name: str) -> Pending:
        """Start an all-gather: all ranks' rows end to end, ``num_rows`` of them; each brings its ``rank_slice``."""

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
    """A collective that is complete already."""

    result: Tensor

    def done(self) -> bool:
        """Return True."""
        return True

    def wait(self) -> Tensor:
        """Return the result."""
        return self.result


@dataclass(slots=True)
class SingleRank:
    """A world of one rank."""

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
        """Return all rows."""
        return Done(rows)

    def start_all_gather(self, rows: Tensor, num_rows: int, name: str) -> Pending:
        """Return the rows unchanged."""
        return Done(rows)

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Return the numbers unchanged."""
        return list(numbers)

    def broadcast_(self, flat: Tensor, *, root: int = 0) -> None:
        """Leave the tensor as it is."""

    def broadcast_object(self, value: T) -> T:
        """Return the value unchanged."""
        return value

    def close(self) -> None:
        """Do nothing."""


def all_reduce_buckets_(world: World, flat: Tensor) -> None:
    """Sum a contiguous tensor in place; all buckets are in flight at once and each is reduced on its own."""
    buckets = torch.split(flat, BUCKET_ELEMENTS)
    for pending in [world.start_all_reduce_(bucket, f"sum.{number}") for number, bucket in enumerate(buckets)]:
        pending.wait()


def gather_numbers(world: World, own: Sequence[float]) -> list[list[float]]:
    """Return every rank's numbers, by rank; each brings as many."""
    # A gather made of a sum: every rank fills its own slots and leaves zeros in the others'.
    slots = [0.0] * (len(own) * world.size)
    slots[world.rank * len(own) : (world.rank + 1) * len(own)] = own
    summed = world.sum_numbers(slots)
    return [summed[at : at + len(own)] for at in range(0, len(summed), len(own))]


def gather_texts(world: World, own: str) -> list[str]:
    """Return every rank's text, by rank; of each its first 64 bytes in UTF-8."""
    padded = own.encode(errors="replace")[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
    rows = gather_numbers(world, list(padded))
    return [bytes(map(int, row)).rstrip(b"\0").decode(errors="replace") for row in rows]


def broadcast_pickled(world: World, value: T) -> T:
    """Return rank 0's value on every rank, by two broadcasts of tensors."""
    payload = pickle.dumps(value) if world.rank == 0 else b""
    # Its length first: a broadcast needs a buffer of the right size on every rank.
    length = torch.tensor([len(payload)])
    world.broadcast_(length)
    buffer = torch.zeros(int(length), dtype=torch.uint8)
    if world.rank == 0:
        buffer.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
    world.broadcast_(buffer)
    received: T = pickle.loads(buffer.numpy().tobytes())  # noqa: S301 - from our own rank 0
    return received


class LostPeer(Exception):
    """The connection to another rank broke during a collective; that rank reports the cause itself."""


class PeerFailed(TrainerError):
    """Rank 0 has ended the run and reported why; other ranks exit silently with its exit code."""

    def __init__(self, exit_code: int) -> None:
        """exit_code: rank 0's."""
        super().__init__("rank 0 has ended the run")
        self.exit_code = exit_code
        self.is_reported = True


def lost_peer(error: Exception) -> bool:
    """Return whether an error only says that another rank has ended, which reports its own reason."""
    # Horovod's by name, so that nobody need import it who does not use it.
    return isinstance(error, LostPeer) or type(error).__name__ == "HorovodInternalError"


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
