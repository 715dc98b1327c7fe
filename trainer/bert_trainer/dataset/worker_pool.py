"""Independent tasks on several processes, without threads and without anything left behind.

Each worker is a fresh interpreter (``spawn``) at the end of a pipe. Workers ignore the signals that ask for a
stop: the parent decides. A worker ends when its pipe closes, so also when the parent is killed. Tasks and
results must be picklable; their order of completion is not fixed.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Generic, TypeVar

from bert_trainer.errors import TrainerError

Task = TypeVar("Task")
Result = TypeVar("Result")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_POLL_S = 0.2
_GRACE_S = 10.0
"""How long running tasks may go on after a stop, before their workers are killed."""


def usable_cores() -> int:
    """Return how many cores this process may use: by its affinity, and by a container's quota."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def run_tasks(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    num_processes: int,
    check: Callable[[], None],
) -> Iterator[tuple[Task, Result]]:
    """Yield every task with its result as they come; with one process, all of it happens in this one.

    check: called between tasks, and several times a second; what it raises ends the work: running tasks get
    ten seconds to finish, no other is started.

    Raises:
        TrainerError: as a task raised it, or a worker died.
        RuntimeError: a task failed in another way; the text holds its traceback.
    """
    if num_processes == 1 or len(tasks) < 2:
        for task in tasks:
            check()
            yield task, function(task)
        return
    workers: list[_Worker[Task, Result]] = []
    waiting = list(reversed(tasks))
    try:
        workers = [_Worker(function) for _ in range(min(num_processes, len(tasks)))]
        for worker in workers:
            worker.start(waiting.pop())
        while busy := [worker for worker in workers if worker.task is not None]:
            check()
            ready = wait([worker.connection for worker in busy], timeout=_POLL_S)
            for worker in busy:
                if worker.connection in ready:
                    yield worker.finish()
                    if waiting:
                        worker.start(waiting.pop())
    finally:
        _end(workers)


class _Worker(Generic[Task, Result]):
    """One process and its end of the pipe."""

    def __init__(self, function: Callable[[Task], Result]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, function), daemon=True)
        # Started here and not inside start(), where it would let SIGTERM and SIGINT through again.
        resource_tracker.ensure_running()
        # A fresh interpreter dies of these signals until it has got as far as ``_serve``; held back, they wait.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        # Kept open here, the pipe would never report that the worker died.
        theirs.close()
        self.task: Task | None = None

    def start(self, task: Task) -> None:
        self.task = task
        with suppress(BrokenPipeError):  # finish() says that the worker died
            self.connection.send(task)

    def finish(self) -> tuple[Task, Result]:
        """Take the answer that is waiting in the pipe."""
        task, self.task = self.task, None
        assert task is not None
        try:
            result, error, trace = self.connection.recv()
        except (EOFError, ConnectionResetError) as broken:
            self.process.join()
            raise TrainerError(
                f"a worker process died (exit code {self.process.exitcode})",
                hint="if memory ran out: more shards or fewer processes need less",
            ) from broken
        if isinstance(error, TrainerError):
            raise error
        if trace:
            raise RuntimeError(f"a worker failed\n{trace}")
        return task, result


def _end(workers: list[_Worker[Task, Result]]) -> None:
    for worker in workers:
        worker.connection.close()
    deadline_s = time.monotonic() + _GRACE_S
    for worker in workers:
        worker.process.join(max(0.0, deadline_s - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def _serve(connection: Connection, function: Callable[[Task], Result]) -> None:
    """Answer tasks until the other end closes."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    with suppress(EOFError, OSError):
        while True:
            connection.send(_answer(function, connection.recv()))


def _answer(function: Callable[[Task], Result], task: Task) -> tuple[Result | None, TrainerError | None, str]:
    try:
        return function(task), None, ""
    except TrainerError as error:
        return None, error, ""
    except Exception:  # a bug: told to the parent, which raises it
        return None, None, traceback.format_exc()
