"""Independent tasks on several processes, without threads and without anything left behind.

Each worker is a fresh interpreter at the end of a pipe, which imports what its tasks need and nothing else: not the
parent's main module, as those of ``multiprocessing`` would. Workers ignore the signals that ask for a
stop: the parent decides. A worker ends when its pipe closes, so also when the parent is killed. Tasks and
results must be picklable; their order of completion is not fixed.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Protocol, TypeVar

from bert_trainer.errors import TrainerError
from bert_trainer.system.machine import quota_cores

Task = TypeVar("Task")
Result = TypeVar("Result")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_POLL_S = 0.2
_GRACE_S = 10.0
"""How long running tasks may go on after a stop, before their workers are killed."""
_AHEAD = 4
"""Tasks per process that may be done or under way while an earlier one is waited for."""


def usable_cores() -> int:
    """Return how many cores this process may use: by its affinity, and by a container's quota."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = quota_cores()
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


class TaskPool(Protocol):
    """Whoever carries out tasks on several processes: ``WorkerPool``, or ``mpi_pool.MpiPool``."""

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[tuple[Task, Result]]:
        """Yield every task with its result as they come; errors as ``WorkerPool.run``."""


class WorkerPool:
    """Processes that are started when there is work for them, and kept for the next round of tasks.

    A context manager. With one process, all of it happens in this one.
    """

    def __init__(self, num_processes: int, check: Callable[[], None]) -> None:
        """Start nothing yet. check: called between tasks, and several times a second.

        What it raises ends the work: running tasks get ten seconds to finish, no other is started.
        """
        self._num_processes = num_processes
        self._check = check
        self._workers: list[_Worker] = []

    def __enter__(self) -> WorkerPool:
        """Return this pool; workers start with the first tasks."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all workers."""
        _end(self._workers)

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[tuple[Task, Result]]:
        """Yield every task with its result as they come. tasks: taken when there is a worker for them.

        Raises:
            TrainerError: as a task raised it, or a worker died.
            RuntimeError: a task failed in another way; the text holds its traceback.
        """
        if self._num_processes == 1:
            for task in tasks:
                self._check()
                yield task, function(task)
            return
        try:
            yield from self._run_on_workers(function, iter(tasks))
        finally:
            # Left in the middle, nobody takes what these still answer.
            _end([worker for worker in self._workers if worker.busy])
            self._workers = [worker for worker in self._workers if not worker.busy]

    def _run_on_workers(
        self, function: Callable[[Task], Result], waiting: Iterator[Task]
    ) -> Iterator[tuple[Task, Result]]:
        left = True
        while left or any(worker.busy for worker in self._workers):
            self._check()
            while left and sum(worker.busy for worker in self._workers) < self._num_processes:
                try:
                    task = next(waiting)
                except StopIteration:
                    left = False
                else:
                    self._idle_worker().start(function, task)
            busy = [worker for worker in self._workers if worker.busy]
            ready = wait([worker.connection for worker in busy], timeout=_POLL_S)
            for worker in busy:
                if worker.connection in ready:
                    yield worker.finish()

    def _idle_worker(self) -> _Worker:
        idle = next((worker for worker in self._workers if not worker.busy), None)
        if idle is None:
            idle = _Worker()
            self._workers.append(idle)
        return idle


def run_tasks(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    num_processes: int,
    check: Callable[[], None],
) -> Iterator[tuple[Task, Result]]:
    """Yield every task with its result from a pool of its own; arguments and errors as ``WorkerPool``."""
    with WorkerPool(min(num_processes, max(1, len(tasks))), check) as pool:
        yield from pool.run(function, tasks)


def run_in_order(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    num_processes: int,
    check: Callable[[], None],
) -> Iterator[Result]:
    """Yield the results in the order of the tasks, from processes of their own; with one, all happens here.

    tasks: taken when there is a worker for them and no more than a few results wait for an earlier one, so memory
    does not grow with their number. Arguments and errors otherwise as ``WorkerPool``.
    """
    if num_processes == 1:
        for task in tasks:
            check()
            yield function(task)
        return
    workers: list[_Worker] = []
    waiting = iter(tasks)
    numbers: dict[_Worker, int] = {}
    done: dict[int, Result] = {}
    started = yielded = 0
    left = True
    try:
        while True:
            while left and len(numbers) < num_processes and started - yielded < _AHEAD * num_processes:
                try:
                    task = next(waiting)
                except StopIteration:
                    left = False
                    break
                worker = next((worker for worker in workers if worker not in numbers), None)
                if worker is None:
                    worker = _Worker()
                    workers.append(worker)
                worker.start(function, task)
                numbers[worker], started = started, started + 1
            check()
            if not numbers:
                return
            ready = wait([worker.connection for worker in numbers], timeout=_POLL_S)
            for worker in [worker for worker in numbers if worker.connection in ready]:
                done[numbers.pop(worker)] = worker.finish()[1]
            while yielded in done:
                yield done.pop(yielded)
                yielded += 1
    finally:
        _end(workers)


class _Worker:
    """One process and its end of the pipe."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        fd = theirs.fileno()
        program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({fd})"
        # A fresh interpreter dies of these signals until it has got as far as ``serve``; held back, they wait.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            command = [sys.executable, "-c", program]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[fd])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        # Kept open here, the pipe would never report that the worker died.
        theirs.close()
        self.busy = False

    def start(self, function: Callable[[Any], Any], task: Any) -> None:
        self.busy, self._task = True, task
        with suppress(BrokenPipeError):  # finish() says that the worker died
            self.connection.send((function, task))

    def finish(self) -> tuple[Any, Any]:
        """Take the answer that is waiting in the pipe."""
        self.busy = False
        try:
            answered = self.connection.recv()
        except (EOFError, ConnectionResetError) as broken:
            code = self.process.wait()
            raise TrainerError(
                f"a worker process died (exit code {code})",
                hint="more shards or fewer processes need less memory" if code == -signal.SIGKILL else None,
            ) from broken
        return self._task, result_of(answered)


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.connection.close()
    deadline_s = time.monotonic() + _GRACE_S
    for worker in workers:
        try:
            worker.process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()


def serve(fd: int) -> None:
    """Answer tasks until the other end of the pipe closes: the whole life of a worker process."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    with suppress(EOFError, OSError), Connection(fd) as connection:
        while True:
            connection.send_bytes(_answer_packed(connection.recv_bytes()))


def _answer_packed(packed: bytes) -> bytes:
    """Answer a task as the pipe carries it; what cannot be packed or unpacked is a bug, which is told."""
    try:
        return pickle.dumps(answer(*pickle.loads(packed)))  # noqa: S301 - from our own parent
    except Exception:
        return pickle.dumps((None, None, traceback.format_exc()))


Answer = tuple[Result | None, TrainerError | None, str]


def answer(function: Callable[[Task], Result], task: Task) -> Answer[Result]:
    """Return the result of a task, or our error, or the traceback of another one."""
    try:
        return function(task), None, ""
    except TrainerError as error:
        return None, error, ""
    except Exception:  # a bug: told to the parent, which raises it
        return None, None, traceback.format_exc()


def result_of(answered: Answer[Any]) -> Any:
    """Return what a task returned, or raise what it raised, in another process.

    Raises:
        TrainerError: as the task raised it.
        RuntimeError: a bug; the text holds its traceback.
    """
    result, error, trace = answered
    if error is not None:
        raise error
    if trace:
        raise RuntimeError(f"a worker failed\n{trace}")
    return result
