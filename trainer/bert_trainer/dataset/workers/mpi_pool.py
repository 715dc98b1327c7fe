"""The same tasks on the ranks of an MPI job, on one machine or many: the one module that imports mpi4py.

Rank 0 builds, reports and works; the other ranks answer its tasks until it is done. All of them must see the
dataset's folder and the text's tokens in it, so it lies on shared storage. Nothing is waited for in a blocking call:
Open MPI would keep a core busy with it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from bert_trainer.dataset.workers.pool import STOP_SIGNALS, answer, result_of
from bert_trainer.errors import EXIT_FAILED, InputError
from bert_trainer.system.mpi_variables import read_size

Task = TypeVar("Task")
Result = TypeVar("Result")

_POLL_S = 0.005
_TASKS_PER_RANK = 2
"""One in work and one waiting, so that a rank need not wait while rank 0 works."""


def world_size() -> int:
    """Return the ranks that mpirun started, from its environment variables; 1 without mpirun."""
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
                for rank in sorted(others):
                    # What they still answer is of no use any more; nothing is their good-bye.
                    if self._comm.iprobe(source=rank) and self._comm.recv(source=rank) is None:
                        others.remove(rank)
                time.sleep(_POLL_S)

    def serve(self) -> None:
        """Answer the tasks of rank 0 until there are no more. Signals that ask for a stop are left to rank 0."""
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


class MpiPool:
    """As ``worker_pool.WorkerPool``; rank 0 works, too, so a task may keep the others' results waiting."""

    def __init__(self, comm: Any, outbox: _Outbox, check: Callable[[], None]) -> None:
        """check: called between tasks; what it raises ends the work."""
        self._comm, self._outbox, self._check = comm, outbox, check

    def __enter__(self) -> MpiPool:
        """Return this pool."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the ranks to the world."""

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[tuple[Task, Result]]:
        """Yield every task with its result as they come; errors as ``WorkerPool.run``."""
        waiting = iter(tasks)
        sent: dict[int, deque[Task]] = {rank: deque() for rank in range(1, self._comm.size)}
        left = True
        while left or any(sent.values()):
            self._check()
            for rank, queue in sent.items():
                while queue and self._comm.iprobe(source=rank):
                    yield queue.popleft(), result_of(self._comm.recv(source=rank))
                while left and len(queue) < _TASKS_PER_RANK:
                    task = next(waiting, None)
                    if task is None:
                        left = False
                    else:
                        self._outbox.send((function, task), rank)
                        queue.append(task)
            if left and (task := next(waiting, None)) is not None:
                yield task, result_of(answer(function, task))
            elif left:
                left = False
            else:
                time.sleep(_POLL_S)
