"""Writes Kubernetes Events in the background: a slow or forbidden Event never delays a reconcile.

Namespaces take turns, and where too many wait, the namespace with most of them loses its oldest: a tenant whose jobs
change all the time delays its own Events, and nobody else's.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict, deque
from typing import Any, Protocol

from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.events import JobEvent
from bert_operator.cluster.paths import path_of
from bert_operator.names import API_VERSION, KIND, JobRef
from bert_operator.timestamps import render_time

Document = dict[str, Any]

MAX_WAITING = 10_000
"""Events of all namespaces that wait to be written."""
_LONGEST_MESSAGE = 1024  # the API server's limit
_WRITERS = 2

_Waiting = tuple[JobRef, str, JobEvent, str]

_log = logging.getLogger(__name__)


class RecorderMetrics(Protocol):
    """What the recorder counts."""

    def event_dropped(self) -> None:
        """An Event could not be written, or there were too many."""


class EventRecorder:
    """Queues Events by namespace and writes them in the background; drops some when there are too many."""

    def __init__(self, api: ApiClient, metrics: RecorderMetrics) -> None:
        """Start with an empty queue."""
        self._api = api
        self._metrics = metrics
        # In the order in which namespaces are served next.
        self._waiting: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        self._num_waiting = 0
        self._is_waiting = asyncio.Event()

    def emit(self, ref: JobRef, uid: str, event: JobEvent) -> None:
        """Queue an Event about a job; never waits.

        Args:
            ref: The job.
            uid: Its uid, so that kubectl describe does not show it for a namesake.
            event: What to write.
        """
        # The time of the change, not of the write: the queue may be long.
        now = render_time(self._api.now_s())
        self._waiting.setdefault(ref.namespace, deque()).append((ref, uid, event, now))
        self._num_waiting += 1
        if self._num_waiting > MAX_WAITING:
            self._take_from(max(self._waiting, key=lambda name: len(self._waiting[name])))
            self._metrics.event_dropped()
        self._is_waiting.set()

    async def run(self) -> None:
        """Write Events until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_WRITERS):
                tasks.create_task(self._write_all())

    async def _write_all(self) -> None:
        while True:
            while not self._waiting:
                self._is_waiting.clear()
                await self._is_waiting.wait()
            ref, uid, event, now = self._take_from(next(iter(self._waiting)))
            try:
                await self._write(render_event(ref, uid, event, now))
            except ApiError as error:
                if _is_namespace_gone(error):
                    continue  # no Event can be written there any more, and none is missed
                self._metrics.event_dropped()
                _log.info("%s: the Event %s could not be written (%s)", ref, event.reason, error)

    def _take_from(self, namespace: str) -> _Waiting:
        """Return the oldest Event of a namespace, which is served after all others then."""
        of_namespace = self._waiting.pop(namespace)
        oldest = of_namespace.popleft()
        self._num_waiting -= 1
        if of_namespace:
            self._waiting[namespace] = of_namespace
        return oldest

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
        "message": event.message[:_LONGEST_MESSAGE],
        "source": {"component": "bert-operator"},
        "reportingComponent": "bert-operator",
        "reportingInstance": "",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
