"""The same tasks on the ranks of an MPI job, on one machine or many, by mpi4py.

Rank 0 builds, reports and works; the other ranks answer its tasks until it is done. All of them must see the
dataset's folder and the text's tokens in it, so it lies on shared storage.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from bert_trainer.dataset.workers.pool import STOP_SIGNALS, TaskPool, answer, result_of
from bert_trainer.errors import EXIT_FAILED, InputError
from bert_trainer.system.mpi_variables import read_size

_POLL_S = 0.005
"""Between two looks for messages. Blocking receives would keep a core busy: Open MPI spins in them."""
_TASKS_PER_RANK = 2
"""One in work and one waiting, so that a rank need not wait while rank 0 works."""


def world_size() -> int:
    """Return the number of ranks that mpirun started, by its environment variables; 1 without mpirun."""
    return read_size(os.environ)


class MpiWorld:
    """All ranks of the job. A context manager: when rank 0 leaves it, the others end, whatever happened."""

    def __init__(self) -> None:
        try:
            # Here, not above: importing it starts MPI, and only builds under mpirun need it.
            from mpi4py import MPI  # noqa: PLC0415
        except (ImportError, RuntimeError) as error:
            raise InputError(
                f"build: started by mpirun with {world_size()} ranks, but mpi4py cannot be used ({error})",
                hint="install mpi4py beside this MPI, or start one process with --processes",
            ) from error
        self._comm: Any = MPI.COMM_WORLD
        self._outbox = _Outbox(self._comm)
        self.rank: int = self._comm.rank

    def __enter__(self) -> MpiWorld:
        """Return this world."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """On rank 0, let the other ranks finish what they are at and end; on another, end all if this one must."""
        if self.rank > 0 and kind is not None:
            # Rank 0 would wait for its answers for ever.
            traceback.print_exception(kind, error, trace)
            sys.stderr.flush()
            self._comm.Abort(EXIT_FAILED)
        if self.rank == 0:
            others = set(range(1, self._comm.size))
            for rank in others:
                self._outbox.send(None, rank)
            while others:
                # A rank that is sending its last answer blocks until it is taken, so these are taken, too.
                for rank in sorted(others):
                    # What they still answer is of no use any more; nothing is their good-bye.
                    if self._comm.iprobe(source=rank) and self._comm.recv(source=rank) is None:
                        others.remove(rank)
                time.sleep(_POLL_S)

    def serve(self) -> None:
        """Execute the tasks of rank 0 until there are no more. Stop signals are left to rank 0."""
        # A terminal's signals, and SIGUSR1 through mpirun, reach all ranks; one that died of them would end the job.
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        while True:
            while not self._comm.iprobe(source=0):
                time.sleep(_POLL_S)
            message = self._comm.recv(source=0)
            if message is None:
                self._comm.send(None, dest=0)
                return
            self._comm.send(answer(*message), dest=0)

    def pool(self, check: Callable[[], None]) -> MpiPool:
        """Return a pool of all ranks, for rank 0."""
        return MpiPool(self._comm, self._outbox, check)


class _Outbox:
    """Messages on their way: over TCP, MPI reads a message from where it lies until it has left."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._sent: list[Any] = []

    def send(self, message: object, rank: int) -> None:
        """Send without waiting, and keep the message until it has left."""
        self._sent = [request for request in self._sent if not request.Test()]
        self._sent.append(self._comm.isend(message, dest=rank))


class MpiPool(TaskPool):
    """The ranks of an MPI job. Rank 0 works, too, when no answer waits, so a task may keep others' results waiting."""

    def __init__(self, comm: Any, outbox: _Outbox, check: Callable[[], None]) -> None:
        """check: as ``TaskPool``, but not called while rank 0 works on a task."""
        super().__init__(check)
        self._comm, self._outbox = comm, outbox
        self._sent: dict[int, deque[tuple[int, Any]]] = {rank: deque() for rank in range(1, comm.size)}
        """Numbers and tasks that each rank has not answered yet; it answers in their order."""
        self._own: tuple[Callable[[Any], Any], int, Any] | None = None
        """What rank 0 is to work on itself."""

    def __exit__(self, *_: object) -> None:
        """Leave the ranks to the world."""

    def _has_room(self) -> bool:
        return self._own is None or self._rank_with_room() is not None

    def _rank_with_room(self) -> int | None:
        return next((rank for rank, queue in self._sent.items() if len(queue) < _TASKS_PER_RANK), None)

    def _is_busy(self) -> bool:
        return self._own is not None or any(self._sent.values())

    def _start(self, function: Callable[[Any], Any], number: int, task: Any) -> None:
        rank = self._rank_with_room()
        if rank is None:
            self._own = function, number, task
        else:
            self._outbox.send((function, task), rank)
            self._sent[rank].append((number, task))

    def _take(self) -> tuple[int, Any, Any] | None:
        for _, rank in sorted((queue[0][0], rank) for rank, queue in self._sent.items() if queue):
            if self._comm.iprobe(source=rank):
                number, task = self._sent[rank].popleft()
                return number, task, result_of(self._comm.recv(source=rank))
        if self._own is not None:
            (function, number, task), self._own = self._own, None
            return number, task, result_of(answer(function, task))
        time.sleep(_POLL_S)
        return None

    def _abandon(self) -> None:
        # Ranks cannot be stopped in the middle of a task: the world takes their answers when it ends. A round that was
        # left is therefore the last one of a job, as every error ends the build.
        self._own = None
