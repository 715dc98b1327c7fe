"""Independent tasks on several processes; no process outlives its pool.

Workers are processes because most of a task (parsing markup, NumPy on small arrays) holds the interpreter's lock. Each
is a fresh interpreter at the end of a pipe: a fork would copy locks that a thread of the parent holds, such as the one
that draws the progress bar, and ``multiprocessing`` would import the parent's main module with all that it needs.
Workers ignore the signals that ask for a stop, since the parent decides what becomes of running tasks; they end when
their pipe closes, so also when the parent is killed.
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
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Self, TypeVar

from bert_trainer.errors import TrainerError
from bert_trainer.system.atomic_files import is_outage
from bert_trainer.system.machine import quota_cores

Task = TypeVar("Task")
Result = TypeVar("Result")

_NO_TASK: Any = object()
"""Marks the end of the tasks, of which one may be None."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_POLL_S = 0.2
"""Between two calls of ``check`` while all workers are busy; an answer ends the wait at once."""
_GRACE_S = 10.0
"""How long running tasks may go on after a stop, before their workers are killed."""
_AHEAD = 4
"""Tasks per process that may be done or under way while an earlier one is waited for."""


def usable_cores() -> int:
    """Return how many cores this process may use: by its affinity, and by a container's quota."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = quota_cores()
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


class TaskPool(ABC):
    """Runs independent tasks on several processes. A context manager; subclasses provide the processes.

    Tasks and results must be picklable. The order of completion is not fixed.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        """check: called between tasks, and several times a second; what it raises ends the work."""
        self._check = check

    def __enter__(self) -> Self:
        """Return this pool."""
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """End what this pool has started."""

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[tuple[Task, Result]]:
        """Yield every task with its result as they come. tasks: taken when there is a process for them.

        Raises:
            TrainerError: as a task raised it, or a process died.
            RuntimeError: a task failed in another way; the text holds its traceback.
        """
        with closing(self._run_numbered(function, tasks, lambda number: True)) as completed:
            for _, task, result in completed:
                yield task, result

    def run_in_order(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], *, most_ahead: int
    ) -> Iterator[Result]:
        """Yield the results in the order of the tasks; errors as ``run``.

        Args:
            function: Called with each task.
            tasks: Taken when there is a process for them.
            most_ahead: Tasks that may be done or under way while an earlier one is waited for: a bound for memory.
        """
        done: dict[int, Result] = {}
        yielded = 0
        with closing(self._run_numbered(function, tasks, lambda number: number - yielded < most_ahead)) as completed:
            for number, _, result in completed:
                done[number] = result
                while yielded in done:
                    yield done.pop(yielded)
                    yielded += 1

    def _run_numbered(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], may_start: Callable[[int], bool]
    ) -> Generator[tuple[int, Task, Result]]:
        """Yield the number of each task, the task and its result, as they come: the loop of every pool.

        may_start: whether the task of this number may be taken yet. The oldest task under way always may go on, so a
        bound on how far others are ahead of it cannot block the loop.
        """
        waiting = iter(tasks)
        started = 0
        exhausted = False
        try:
            while not exhausted or self._is_busy():
                self._check()
                while not exhausted and self._has_room() and may_start(started):
                    task = next(waiting, _NO_TASK)
                    if task is _NO_TASK:
                        exhausted = True
                    else:
                        self._start(function, started, task)
                        started += 1
                # One at a time: its process gets another task before the caller sees the next result.
                if self._is_busy() and (completed := self._take()) is not None:
                    yield completed
        finally:
            self._abandon()

    @abstractmethod
    def _has_room(self) -> bool:
        """Tell whether a task can be started."""

    @abstractmethod
    def _is_busy(self) -> bool:
        """Tell whether tasks are under way."""

    @abstractmethod
    def _start(self, function: Callable[[Any], Any], number: int, task: Any) -> None:
        """Start a task; there is room for it."""

    @abstractmethod
    def _take(self) -> tuple[int, Any, Any] | None:
        """Return the number, task and result of one that is done; None after a short wait.

        The oldest first: where answers come faster than the caller takes them, no process may be passed over for ever.

        Raises:
            TrainerError, RuntimeError: as ``run``.
        """

    @abstractmethod
    def _abandon(self) -> None:
        """Give up the tasks that are still under way when a run is left."""


class WorkerPool(TaskPool):
    """Processes of this machine, started when there is work for them and kept for the next round of tasks.

    With one process, all of it happens in this one. When ``check`` raises, running tasks get ten seconds to finish.
    """

    def __init__(self, num_processes: int, check: Callable[[], None]) -> None:
        """Start nothing yet. check: as ``TaskPool``."""
        super().__init__(check)
        self._num_processes = num_processes
        self._idle: list[_Worker] = []
        self._running: dict[_Worker, tuple[int, Any]] = {}
        """Number and task of each, in the order in which they were started."""
        self._own: tuple[Callable[[Any], Any], int, Any] | None = None
        """What this process works on itself, where it is the only one."""

    def __exit__(self, *_: object) -> None:
        """End all workers."""
        _end([*self._idle, *self._running])

    def _has_room(self) -> bool:
        return self._own is None and len(self._running) < self._num_processes

    def _is_busy(self) -> bool:
        return self._own is not None or bool(self._running)

    def _start(self, function: Callable[[Any], Any], number: int, task: Any) -> None:
        if self._num_processes == 1:
            self._own = function, number, task
            return
        worker = self._idle.pop() if self._idle else _Worker()
        self._running[worker] = number, task
        worker.start(function, task)

    def _take(self) -> tuple[int, Any, Any] | None:
        if self._own is not None:
            (function, number, task), self._own = self._own, None
            return number, task, function(task)
        ready = wait([worker.connection for worker in self._running], timeout=_POLL_S)
        worker = next((worker for worker in self._running if worker.connection in ready), None)
        if worker is None:
            return None
        number, task = self._running.pop(worker)
        # Before its answer is looked at: what that raises must not lose the worker, which has to be ended.
        self._idle.append(worker)
        return number, task, worker.finish()

    def _abandon(self) -> None:
        self._own = None
        # Their answers would be taken for those of the next round.
        _end(list(self._running))
        self._running.clear()


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
    with WorkerPool(num_processes, check) as pool:
        yield from pool.run_in_order(function, tasks, most_ahead=_AHEAD * num_processes)


class _Worker:
    """One process and its end of the pipe."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        fd = theirs.fileno()
        # This process's path: -c begins it with the working directory, where a file may be called like a module.
        program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({fd})"
        # A terminal signals the whole process group, and a fresh interpreter dies of these signals until ``serve``
        # ignores them. The mask is inherited: blocked, they stay pending until then.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            command = [sys.executable, "-c", program]
            # Only this pipe's end is inherited: with a copy of another worker's end, that one would outlive the parent.
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[fd])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        # With a copy open here, recv() would wait for ever for a worker that died.
        theirs.close()

    def start(self, function: Callable[[Any], Any], task: Any) -> None:
        with suppress(BrokenPipeError):  # the worker died; finish() raises for it
            self.connection.send((function, task))

    def finish(self) -> Any:
        """Take the answer that is waiting in the pipe and return the result."""
        try:
            answered = self.connection.recv()
        except (EOFError, ConnectionResetError) as broken:
            code = self.process.wait()
            raise TrainerError(
                f"a worker process died (exit code {code})",
                hint="more shards or fewer processes need less memory" if code == -signal.SIGKILL else None,
            ) from broken
        return result_of(answered)


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.connection.close()  # an idle worker ends at once, a busy one after its task
    deadline_s = time.monotonic() + _GRACE_S
    for worker in workers:
        try:
            worker.process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()  # SIGTERM is ignored
            worker.process.wait()


def serve(fd: int) -> None:
    """Main loop of a worker process: execute tasks until the pipe closes."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    # The parent ended the pool or is gone: EOFError while waiting, OSError while answering.
    with suppress(EOFError, OSError), Connection(fd) as connection:
        while True:
            connection.send_bytes(_answer_packed(connection.recv_bytes()))


def _answer_packed(packed: bytes) -> bytes:
    """Answer a task in the pipe's format. What cannot be pickled is a bug and is reported, not the worker's death."""
    try:
        return pickle.dumps(answer(*pickle.loads(packed)))  # noqa: S301 - from our own parent
    except Exception:
        return pickle.dumps((None, None, None, traceback.format_exc()))


Answer = tuple[Result | None, TrainerError | None, OSError | None, str]
"""A task's result, or our error and what caused it, which pickle leaves out, or the traceback of another error."""


def answer(function: Callable[[Task], Result], task: Task) -> Answer[Result]:
    """Execute a task."""
    try:
        return function(task), None, None, ""
    except TrainerError as error:
        return None, error, _number_of(error.__cause__), ""
    except OSError as error:
        if not is_outage(error):
            return None, None, None, traceback.format_exc()
        return None, TrainerError(str(error)), _number_of(error), ""
    except Exception:  # a bug, which the parent raises
        return None, None, None, traceback.format_exc()


def _number_of(error: BaseException | None) -> OSError | None:
    # Made anew: kinds of it may hold what cannot be pickled.
    return OSError(error.errno, error.strerror) if isinstance(error, OSError) else None


def result_of(answered: Answer[Any]) -> Any:
    """Return the result of a task run in another process, or raise its exception.

    Raises:
        TrainerError: as the task raised it.
        RuntimeError: a bug; the text holds its traceback.
    """
    result, error, cause, trace = answered
    if error is not None:
        raise error from cause
    if trace:
        raise RuntimeError(f"a worker failed\n{trace}")
    return result
