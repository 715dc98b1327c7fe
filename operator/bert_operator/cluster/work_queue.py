"""The work queue: which jobs have to be looked at, each at most once at a time, failed ones after a pause.

Every name stands in it once, however many events there were. A job that changes while it is being looked at is
looked at again afterwards, never by two workers side by side.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from bert_operator.names import JobRef

FIRST_BACK_OFF_S = 0.5
MAX_BACK_OFF_S = 60.0

_log = logging.getLogger(__name__)

Reconcile = Callable[[JobRef], Awaitable[None]]


class Requeue(Exception):
    """The job has to be looked at again after a given time; not an error."""

    def __init__(self, after_s: float) -> None:
        """after_s: seconds."""
        super().__init__(f"again in {after_s} s")
        self.after_s = after_s


class QueueMetrics(Protocol):
    """What the queue tells of itself."""

    def waited(self, seconds: float) -> None:
        """A job waited this long for its turn."""

    def reconciled(self, seconds: float, *, failed: bool) -> None:
        """A job was looked at."""


class WorkQueue:
    """Names in, calls of ``reconcile`` out."""

    def __init__(self, reconcile: Reconcile, metrics: QueueMetrics) -> None:
        """Reconcile: looks at one job; an exception means that it has to be tried again."""
        self._reconcile = reconcile
        self._metrics = metrics
        self._ready: asyncio.Queue[JobRef] = asyncio.Queue()
        self._queued_at_s: dict[JobRef, float] = {}
        self._running: dict[JobRef, float] = {}
        self._changed: set[JobRef] = set()
        self._failures: dict[JobRef, int] = {}
        # A later call of ``after`` replaces an earlier one for the same name.
        self._timers: list[tuple[float, int, JobRef]] = []
        self._due: dict[JobRef, tuple[float, int]] = {}
        self._numbers = itertools.count()
        self._timer_set = asyncio.Event()

    def add(self, ref: JobRef) -> None:
        """Have a job looked at as soon as possible."""
        if ref in self._running:
            self._changed.add(ref)
        elif ref not in self._queued_at_s:
            self._queued_at_s[ref] = self._now_s()
            self._ready.put_nowait(ref)

    def after(self, ref: JobRef, seconds: float) -> None:
        """Have a job looked at in some time, unless that is asked for again with another time."""
        entry = (self._now_s() + max(0.0, seconds), next(self._numbers), ref)
        self._due[ref] = entry[:2]
        heapq.heappush(self._timers, entry)
        self._timer_set.set()

    def forget(self, ref: JobRef) -> None:
        """Drop what is remembered of a job that is gone."""
        self._due.pop(ref, None)
        self._failures.pop(ref, None)

    @property
    def depth(self) -> int:
        """Jobs that wait for their turn."""
        return len(self._queued_at_s)

    def oldest_s(self) -> float:
        """Return the seconds for which the job at the front has waited, or the slowest worker has worked."""
        starts = [*self._running.values(), *itertools.islice(self._queued_at_s.values(), 1)]
        return max((self._now_s() - start for start in starts), default=0.0)

    async def run(self, workers: int) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_time())
            for _ in range(workers):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            ref = await self._ready.get()
            self._metrics.waited(self._now_s() - self._queued_at_s.pop(ref))
            self._running[ref] = started_at_s = self._now_s()
            failed = True
            try:
                await self._reconcile(ref)
                failed = False
                self._failures.pop(ref, None)
            except Requeue as requeue:
                failed = False
                self.after(ref, requeue.after_s)
            except Exception as error:
                # Where the API server says how long it wants to be left alone, that counts.
                pause_s = max(self._back_off(ref), getattr(error, "retry_after_s", None) or 0.0)
                told = str(error) or type(error).__name__
                _log.warning("%s: %s; again in %.1f s", ref, told, pause_s, exc_info=_is_bug(error))
                self.after(ref, pause_s)
            finally:
                del self._running[ref]
                self._metrics.reconciled(self._now_s() - started_at_s, failed=failed)
            if ref in self._changed:
                self._changed.discard(ref)
                # What has just failed waits for its turn even if it has changed: changes may come from the failure.
                if not failed:
                    self.add(ref)

    def _back_off(self, ref: JobRef) -> float:
        count = self._failures[ref] = self._failures.get(ref, 0) + 1
        pause_s = min(FIRST_BACK_OFF_S * 2.0 ** min(count - 1, 16), MAX_BACK_OFF_S)
        # A thousand jobs that failed together shall not come back together.
        return pause_s * random.uniform(0.8, 1.2)  # noqa: S311 - not for secrets

    async def _keep_time(self) -> None:
        while True:
            self._timer_set.clear()
            now_s = self._now_s()
            while self._timers and self._timers[0][0] <= now_s:
                due_s, number, ref = heapq.heappop(self._timers)
                if self._due.get(ref) == (due_s, number):
                    del self._due[ref]
                    self.add(ref)
            wait_s = self._timers[0][0] - now_s if self._timers else None
            try:
                async with asyncio.timeout(wait_s):
                    await self._timer_set.wait()
            except TimeoutError:
                pass

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


def _is_bug(error: Exception) -> bool:
    """Tell whether an error deserves a traceback: not if the API server said it."""
    return not hasattr(error, "status")
