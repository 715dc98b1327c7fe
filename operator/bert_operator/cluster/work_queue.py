"""The work queue: deduplicates jobs, never reconciles one twice at a time, and backs off from failures per job.

The semantics are those of client-go's workqueue: a job is queued once, however many events there were, and one that
changes while it is reconciled is queued again afterwards. Namespaces take turns, so that thousands of jobs in one do
not hold up those of another; within a namespace the queue is first in, first out, so a job that changes all the time
waits behind all others there before its next turn.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.round_robin import RoundRobin
from bert_operator.names import JobRef

FIRST_BACK_OFF_S = 0.5
MAX_BACK_OFF_S = 60.0
FEW_BACK_OFF_S = 8.0
"""The longest back-off while few jobs fail: once the API server answers again, or grants its rights, statuses have to
be right within 15 s, and nothing tells the operator that it does."""
_SPARE_TIMERS = 100
RETRIES_PER_SECOND = 2.0
"""Of all failing jobs together, in equal shares for the namespaces that have any: if a share is too small to retry each
of its jobs within FEW_BACK_OFF_S, their back-offs are longer."""

_log = logging.getLogger(__name__)

Reconcile = Callable[[JobRef], Awaitable[None]]


class Requeue(Exception):
    """Raised to reconcile the job again after a delay; not an error, and without back-off."""

    def __init__(self, after_s: float) -> None:
        """after_s: seconds; 0 puts the job behind those that wait."""
        super().__init__(f"requeue after {after_s} s")
        self.after_s = after_s


class WorkQueue:
    """A queue of job names that calls ``reconcile`` for each."""

    def __init__(self, reconcile: Reconcile, metrics: Metrics) -> None:
        """Start empty. reconcile: handles one job; any exception but ``Requeue`` is a failure, and is retried."""
        self._reconcile = reconcile
        self._metrics = metrics
        self._ready: RoundRobin[JobRef] = RoundRobin()
        self._num_ready = asyncio.Semaphore(0)
        self._queued_at_s: dict[JobRef, float] = {}
        self._running: dict[JobRef, float] = {}
        self._changed: set[JobRef] = set()
        self._failures: dict[JobRef, int] = {}
        self._failing: Counter[str] = Counter()
        """How many jobs of a namespace are in ``_failures``; none of 0."""
        # A heap cannot remove entries: ``_due`` holds the newest one of each job, and any other is ignored when it
        # comes up.
        self._timers: list[tuple[float, int, JobRef]] = []
        self._due: dict[JobRef, tuple[float, int]] = {}
        self._numbers = itertools.count()
        self._timer_set = asyncio.Event()

    def add(self, ref: JobRef) -> None:
        """Queue a job. It is safe to call this for every event."""
        if ref in self._running:
            self._changed.add(ref)
        elif ref not in self._queued_at_s:
            self._queued_at_s[ref] = self._now_s()
            self._ready.put(ref.namespace, ref)
            self._num_ready.release()

    def add_after(self, ref: JobRef, seconds: float) -> None:
        """Queue a job in some time; a later call for the same job replaces this one."""
        entry = (self._now_s() + max(0.0, seconds), next(self._numbers), ref)
        self._due[ref] = entry[:2]
        heapq.heappush(self._timers, entry)
        if len(self._timers) > 2 * len(self._due) + _SPARE_TIMERS:
            # A job with a deadline next year is looked at all the time, and each look makes an entry.
            self._timers = [(*due, other) for other, due in self._due.items()]
            heapq.heapify(self._timers)
        self._timer_set.set()

    @property
    def depth(self) -> int:
        """Jobs that wait for a worker."""
        return len(self._queued_at_s)

    @property
    def failing(self) -> int:
        """Jobs that have failed and not been reconciled successfully since."""
        return len(self._failures)

    def oldest_s(self) -> float:
        """Return the longest time that a job has waited or a worker has been busy."""
        # A dictionary keeps the order of insertion, so its first job has waited longest.
        starts = [*self._running.values(), *itertools.islice(self._queued_at_s.values(), 1)]
        return max((self._now_s() - start for start in starts), default=0.0)

    async def run(self, workers: int) -> None:
        """Reconcile until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._fire_timers())
            for _ in range(workers):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            await self._num_ready.acquire()
            # No await between these lines: add must find the job either queued or running.
            ref = self._ready.take()
            self._metrics.waited(self._now_s() - self._queued_at_s.pop(ref))
            self._running[ref] = started_at_s = self._now_s()
            failed = True
            try:
                await self._reconcile(ref)
                failed = False
                self._forget_failures(ref)
            except Requeue as requeue:
                failed = False
                if requeue.after_s >= FIRST_BACK_OFF_S:  # not one that asks for the next step at once
                    self._forget_failures(ref)
                self.add_after(ref, requeue.after_s)
            # One bad job must not end the task group, and with it the workers of all others.
            except Exception as error:
                # Priority and fairness rejects with 429 and Retry-After; asking earlier makes it worse.
                pause_s = max(self._back_off(ref), getattr(error, "retry_after_s", None) or 0.0)
                cause = str(error) or type(error).__name__
                _log.warning("%s: %s; retry in %.1f s", ref, cause, pause_s, exc_info=_is_bug(error))
                self.add_after(ref, pause_s)
            finally:
                # First: while the job counts as running, add would only note the change, and nobody would queue it.
                del self._running[ref]
                self._metrics.reconciled(self._now_s() - started_at_s, failed=failed)
            if ref in self._changed:
                self._changed.discard(ref)
                # A failed job keeps its back-off even if it has changed: the change may be its own half-finished write,
                # and failing would then spin.
                if not failed:
                    self.add(ref)

    def _forget_failures(self, ref: JobRef) -> None:
        if self._failures.pop(ref, None) is not None:
            self._failing[ref.namespace] -= 1
            if not self._failing[ref.namespace]:
                del self._failing[ref.namespace]

    def _back_off(self, ref: JobRef) -> float:
        count = self._failures[ref] = self._failures.get(ref, 0) + 1
        self._failing[ref.namespace] += count == 1
        max_s = longest_back_off_s(self._failing[ref.namespace], len(self._failing))
        # The exponent is bounded: 2.0 ** 1024 is an OverflowError, which a job would reach after 17 hours of failures.
        pause_s = min(FIRST_BACK_OFF_S * 2.0 ** min(count - 1, 16), max_s)
        # Jitter: a thousand jobs that failed together, as when the API server restarts, must not retry together.
        return pause_s * random.uniform(0.8, 1.2)  # noqa: S311 - not for secrets

    async def _fire_timers(self) -> None:
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


def longest_back_off_s(failing: int, namespaces: int = 1) -> float:
    """Return the maximum back-off, given the failing jobs of a namespace and the namespaces with any."""
    return min(max(FEW_BACK_OFF_S, failing * namespaces / RETRIES_PER_SECOND), MAX_BACK_OFF_S)


def _is_bug(error: Exception) -> bool:
    """Return whether an error deserves a traceback: answers of the API server do not."""
    return not hasattr(error, "status")
