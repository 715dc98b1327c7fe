"""Writes Kubernetes Events in the background: a slow or forbidden Event never delays a reconcile.

Namespaces take turns, and where too many wait, the namespace with most of them loses its oldest: a tenant whose jobs
change all the time delays its own Events, and nobody else's. Nor does it fill etcd, where Events stay for an hour:
those of a namespace are written at a bounded rate, and those of one job have a budget, as in client-go's
EventSourceObjectSpamFilter (k8s.io/client-go/tools/record/events_cache.go). The status has all of it in any case.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.events import JobEvent
from bert_operator.cluster.fair_table import FairTable
from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.paths import path_of
from bert_operator.cluster.round_robin import RoundRobin
from bert_operator.names import API_VERSION, KIND, JobRef
from bert_operator.timestamps import render_time

Document = dict[str, Any]

MAX_WAITING = 10_000
"""Events of all namespaces that wait to be written."""
EVENTS_PER_SECOND = 10.0
"""Of one namespace: a thousand jobs that start there have their Events after some minutes. At most 36,000 of them are
in etcd at once, 1 KB each or so."""
MAX_BURST, SECONDS_EACH = 50, 60.0
"""Of one job: so many Events in a burst, and then one in so many seconds. An attempt has four or so, and attempts that
go on failing begin every six minutes."""
MAX_BUDGETS = 10_000
"""Jobs whose budgets are known; the oldest of the namespace with most is forgotten, and full again, first."""
_MAX_MESSAGE = 1024  # the API server's limit
_WRITERS = 2

_Waiting = tuple[JobRef, str, JobEvent, str]


class _Budget(NamedTuple):
    """How many Events of a job may be written."""

    left: float
    at_s: float


_log = logging.getLogger(__name__)


class EventRecorder:
    """Queues Events by namespace and writes them in the background; drops some when there are too many."""

    def __init__(self, api: ApiClient, metrics: Metrics, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """Start with an empty queue. monotonic_s: seconds since any moment."""
        self._api = api
        self._metrics = metrics
        self._monotonic_s = monotonic_s
        self._waiting: RoundRobin[_Waiting] = RoundRobin()
        self._is_waiting = asyncio.Event()
        self._budgets: FairTable[_Budget] = FairTable(MAX_BUDGETS)
        self._rests_until_s: dict[str, float] = {}
        """Of the namespaces that were served last."""

    def emit(self, ref: JobRef, uid: str, event: JobEvent) -> None:
        """Queue an Event about a job; never waits.

        Args:
            ref: The job.
            uid: Its uid, so that kubectl describe does not show it for a namesake.
            event: What to write.
        """
        if not self._spend(ref, uid):
            self._metrics.event_dropped()
            return
        # The time of the change, not of the write: the queue may be long.
        now = render_time(self._api.now_s())
        self._waiting.put(ref.namespace, (ref, uid, event, now))
        if len(self._waiting) > MAX_WAITING:
            self._waiting.drop()
            self._metrics.event_dropped()
        self._is_waiting.set()

    async def run(self) -> None:
        """Write Events until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_WRITERS):
                tasks.create_task(self._write_all())

    async def _write_all(self) -> None:
        while True:
            ref, uid, event, now = await self._next()
            try:
                await self._write(render_event(ref, uid, event, now))
            except ApiError as error:
                if _is_namespace_gone(error):
                    continue  # no Event can be written there any more, and none is missed
                self._metrics.event_dropped()
                _log.info("%s: the Event %s could not be written (%s)", ref, event.reason, error)

    async def _next(self) -> _Waiting:
        """Return the Event whose turn it is, once there is one whose namespace has rested for long enough."""
        while True:
            while not self._waiting:
                self._is_waiting.clear()
                await self._is_waiting.wait()
            namespace, now_s = self._waiting.next_namespace(), self._monotonic_s()
            rest_s = self._rests_until_s.get(namespace, now_s) - now_s
            if rest_s <= 0:
                break
            # Whoever stands behind waits as well, for a tenth of a second: the one in front was served longest ago.
            await asyncio.sleep(rest_s)
        self._rests_until_s = {name: until_s for name, until_s in self._rests_until_s.items() if until_s > now_s}
        self._rests_until_s[namespace] = now_s + 1 / EVENTS_PER_SECOND
        return self._waiting.take()

    def _spend(self, ref: JobRef, uid: str) -> bool:
        """Return whether one more Event of a job may be written, and count it."""
        now_s = self._monotonic_s()
        left, at_s = self._budgets.get(ref.namespace, uid) or _Budget(MAX_BURST, now_s)
        left = min(MAX_BURST, left + (now_s - at_s) / SECONDS_EACH)
        may = left >= 1
        self._budgets.put(ref.namespace, uid, _Budget(left - may, now_s))
        if may and left < 2:
            _log.info("%s: so many Events that only one in %.0f s is written now", ref, SECONDS_EACH)
        return may

    async def _write(self, event: Document) -> None:
        metadata = event["metadata"]
        try:
            await self._api.create(path_of("Event", metadata["namespace"]), event)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            # Read, then patch: two writers may lose a count. That is not worth a precondition and its conflicts.
            path = path_of("Event", metadata["namespace"], metadata["name"])
            count = (await self._api.get(path)).get("count") or 1
            await self._api.patch(path, {"count": count + 1, "lastTimestamp": event["lastTimestamp"]})


def _is_namespace_gone(error: ApiError) -> bool:
    """Return whether a namespace has been deleted, or is being deleted."""
    is_gone = error.status == 404 and error.message.startswith("namespaces ")
    return is_gone or error.status == 403 and "is being terminated" in error.message


def render_event(ref: JobRef, uid: str, event: JobEvent, now: str) -> Document:
    """Return an Event about a job. now: RFC 3339."""
    # The name is the aggregation key: the same text about the same job is one Event with a count.
    digest = hashlib.sha256(f"{uid} {event.reason} {event.message}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{ref.name}.{digest}", "namespace": ref.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": uid,
        },
        "type": event.kind,
        "reason": event.reason,
        "message": event.message[:_MAX_MESSAGE],
        "source": {"component": "bert-operator"},
        "reportingComponent": "bert-operator",
        "reportingInstance": "",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
