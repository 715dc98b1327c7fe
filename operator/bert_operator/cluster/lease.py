"""Which of several operators works: the one that holds a Lease (coordination.k8s.io/v1), renewed every two seconds.

As client-go's leader election, in as much as is needed here; docs/adr/0012 says what the Python client's own lacks.
No two machines' clocks are compared: whoever waits counts the seconds since it saw the Lease change last, on its own
clock, and the times in the object are for people. Whoever holds it counts from before its last renewal was sent, and
for fewer seconds, so that it ends before anybody else may begin. As in controller-runtime, whoever loses the Lease
exits: what a process remembers of its own writes is worth nothing once another one writes. Nothing but duplicate work
is avoided by all this: what two operators write at once is refused by uid and version.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.paths import path_of
from bert_operator.errors import OperatorError

Document = dict[str, Any]

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_log = logging.getLogger(__name__)


class Times(NamedTuple):
    """Timing of leader election in seconds; tests shorten it."""

    duration_s: int = 10
    """So long a Lease that is not renewed stays its holder's, for all others."""
    renew_deadline_s: float = 7.0
    """So long its holder goes on without a renewal, from the moment at which the last one was sent. What is left of
    the duration is for writes that are on their way, and for clocks that do not go equally fast."""
    renew_every_s: float = 2.0
    retry_s: float = 0.5
    """Before the next try of a renewal that failed."""
    request_s: float = 2.5
    """Of one request. Two fit between a renewal that is due and the deadline."""
    poll_every_s: float = 1.0
    """How often those who wait read it. Who leaves gives it back, and is followed within this time."""


TIMES = Times()


def now_s() -> float:
    """Return a monotonic time in seconds that includes system suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseLost(OperatorError):
    """The Lease is lost: another operator may be the leader, so this process exits."""

    def __init__(self, why: str) -> None:
        """why: in a few words."""
        super().__init__(f"The Lease is lost: {why}", hint="nothing: Kubernetes starts this pod again, as a standby")


class Record(NamedTuple):
    """Content of a Lease. Its times are compared with each other only, never with a clock."""

    holder: str = ""
    duration_s: float = 0.0
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0


class LeaseView(NamedTuple):
    """A Lease as observed by one replica, on its own clock."""

    record: Record
    version: str
    """Its resourceVersion; empty where there is no such object."""
    since_s: float
    """When the observer saw it become what it is, on its own clock."""


def observe_lease(before: LeaseView | None, lease: Mapping[str, Any] | None, seen_at_s: float) -> LeaseView:
    """Return the updated view after reading the Lease. lease: as read; None: it does not exist."""
    if lease is None:
        # One that somebody deleted: who held it does not know yet, and keeps it for as long as it would have.
        return LeaseView(Record(), "", seen_at_s) if before is None else before._replace(version="")
    spec, version = lease.get("spec") or {}, str(lease["metadata"]["resourceVersion"])
    record = Record(
        holder=spec.get("holderIdentity") or "",
        duration_s=spec.get("leaseDurationSeconds") or 0,
        acquired=spec.get("acquireTime") or "",
        renewed=spec.get("renewTime") or "",
        transitions=spec.get("leaseTransitions") or 0,
    )
    # By what it says and not by its version: a label is no renewal.
    if before is not None and before.record == record:
        return before._replace(version=version)
    return LeaseView(record, version, seen_at_s)


def available_at_s(sight: LeaseView, identity: str) -> float:
    """Return when an observer may take the Lease, on its own clock; -inf: nobody else holds it."""
    # Its own: an answer to its own write that never arrived.
    if sight.record.holder in ("", identity):
        return -math.inf
    return sight.since_s + sight.record.duration_s


def render_spec(record: Record, holder: str, duration_s: int, now: datetime) -> Document:
    """Return the spec that a holder writes; an empty holder releases the Lease. now: shown to people only."""
    time = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    is_new = holder not in ("", record.holder)
    return {
        "holderIdentity": holder,
        # At least one second, by Kubernetes' rules. What nobody holds is free in any case.
        "leaseDurationSeconds": duration_s if holder else 1,
        "acquireTime": time if is_new or not record.acquired else record.acquired,
        "renewTime": time,
        "leaseTransitions": record.transitions + is_new,
    }


class Lease:
    """Leader election of one replica."""

    def __init__(self, api: ApiClient, namespace: str, name: str, identity: str, times: Times = TIMES) -> None:
        """Hold nothing yet.

        Args:
            api: A client of its own: a renewal must not wait behind other requests.
            namespace: Where the Lease is.
            name: Of the Lease.
            identity: Of this process, and of no other that ever was.
            times: Those of all who take part should be the same.
        """
        self._api = api
        self._collection, self._path = path_of("Lease", namespace), path_of("Lease", namespace, name)
        self._name, self._identity, self._times = name, identity, times
        self._sight: LeaseView | None = None
        self._is_held = False
        """Whether it has to be given back: from before a claim is sent."""
        self._until_s = -math.inf
        """Deadline of the next renewal."""
        self._trouble = ""
        """What was logged last, so that it is not said every second."""
        self.seen = asyncio.Event()
        """Set once the API server has let this process look."""
        self._looked_at_s = now_s()

    @property
    def lag_s(self) -> float:
        """Seconds for which the API server answered but the Lease could not be read, beyond the normal interval."""
        return max(0.0, now_s() - self._looked_at_s - self._times.renew_deadline_s)

    @property
    def is_leading(self) -> bool:
        """Whether nobody else may hold the Lease now."""
        return now_s() < self._until_s

    async def acquire(self) -> None:
        """Wait until this replica is the leader."""
        holder = None
        while not await self._try():
            if self._sight is not None and self._holder != holder:
                holder = self._holder
                _log.info("Standing by: the Lease %s is held by %s", self._name, holder or "nobody")
            pause_s = self._times.poll_every_s
            if self._sight is not None:
                # To the moment at which it may be taken, and where that has passed without success as usual.
                free_in_s = available_at_s(self._sight, self._identity) - now_s()
                pause_s = min(pause_s, free_in_s) if free_in_s > 0 else pause_s
            # Jitter, upwards: those who wait must not all look at the same moment, and none too early.
            await asyncio.sleep(pause_s * random.uniform(1.0, 1.2))  # noqa: S311
        _log.info("Leading: this process, %s, holds the Lease %s", self._identity, self._name)

    async def keep(self) -> None:
        """Renew the Lease until cancelled. Raises LeaseLost."""
        times, pause_s = self._times, self._times.renew_every_s
        while True:
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.0))  # noqa: S311
            # Where the process, its machine or its event loop stood still.
            self._check()
            sent_s, pause_s = now_s(), times.renew_every_s
            try:
                # No longer than the deadline: others count from there.
                async with asyncio.timeout(self._until_s - sent_s):
                    is_own = await self._write_own(self._identity)
                if not is_own:
                    self._lose(f"it is held by {self._holder or 'nobody'}")
            except (ApiError, TimeoutError) as error:
                _log.warning("The Lease %s could not be renewed (%s)", self._name, str(error) or "no answer in time")
                self._check()
                pause_s = min(times.retry_s, self._until_s - now_s())
            else:
                # An answer that comes after the end extends nothing: somebody else may have begun.
                self._check()
                self._until_s = sent_s + times.renew_deadline_s

    async def release(self) -> None:
        """Release the Lease, so that another replica can take over at once; to be called once nothing writes."""
        self._until_s = -math.inf
        if not self._is_held:
            return
        self._is_held = False
        try:
            await self._write_own("")
        except ApiError as error:
            _log.warning("The Lease %s could not be given back (%s); it ends by itself", self._name, error)

    async def _try(self) -> bool:
        """Look, and take the Lease if it is free; return whether it is this process's now."""
        try:
            sight = await self._look()
            # That settles what became of an earlier claim: what another one holds must not be given back.
            self._is_held = False
            if now_s() < available_at_s(sight, self._identity):
                return False
            sent_s = now_s()
            # Before the answer: where this process is ended meanwhile, it gives back what it may have got.
            self._is_held = True
            await self._write(self._identity)
        except ApiError as error:
            # A conflict: somebody else was faster.
            if error.status != 409 and str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("The Lease %s: %s; trying on", self._name, error)
            return False
        self._until_s = sent_s + self._times.renew_deadline_s
        # Not where the answer came too late, as after this process stood still.
        return self.is_leading

    async def _write_own(self, holder: str) -> bool:
        """Write the Lease that this process holds; return whether it still did. Raises ApiError."""
        try:
            await self._write(holder)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            # Somebody has deleted it, or changed it: taken it, or only put a label on it. Or the answer to this
            # process's own last write was lost.
            await self._look()
            if self._holder != self._identity:
                return False
            await self._write(holder)
        return True

    @property
    def _holder(self) -> str:
        return self._sight.record.holder if self._sight is not None else ""

    def _check(self) -> None:
        """Raise LeaseLost after the deadline."""
        if not self.is_leading:
            self._lose(f"it was not renewed for {self._times.renew_deadline_s:g} s")

    def _lose(self, why: str) -> None:
        self._is_held = False
        self._until_s = -math.inf
        raise LeaseLost(why)

    async def _look(self) -> LeaseView:
        try:
            lease = await self._ask(lambda: self._api.get(self._path))
        except ApiError as error:
            if error.status != 404:
                raise
            lease = None
        self._sight = observe_lease(self._sight, lease, now_s())
        self.seen.set()
        return self._sight

    async def _write(self, holder: str) -> None:
        """Write the Lease of the version that was seen last. Raises ApiError, with 409 where it has another."""
        assert self._sight is not None, "a Lease is looked at before it is written"
        record, version, _ = self._sight
        spec = render_spec(record, holder, self._times.duration_s, datetime.now(UTC))
        if version:
            change = {"metadata": {"resourceVersion": version}, "spec": spec}
            answer = await self._ask(lambda: self._api.patch(self._path, change))
        else:
            document = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}}
            answer = await self._ask(lambda: self._api.create(self._collection, {**document, "spec": spec}))
        self._sight = observe_lease(self._sight, answer, now_s())

    async def _ask(self, request: Callable[[], Awaitable[Document]]) -> Document:
        """Make a request within its time. Raises ApiError."""
        try:
            async with asyncio.timeout(self._times.request_s):
                answer = await request()
        except TimeoutError as late:
            self._looked_at_s = now_s()
            raise ApiError(0, "TimeoutError", f"no answer within {self._times.request_s} s") from late
        except ApiError as error:
            # Without an answer nothing can be said; 404 and 409 are answers to who may look.
            if error.status in (0, 404, 409):
                self._looked_at_s = now_s()
            raise
        self._looked_at_s = now_s()
        return answer


def find_own_namespace() -> str:
    """Return the namespace of this process's pod: ``POD_NAMESPACE``, or that of its ServiceAccount.

    Raises:
        OperatorError: It is in none.
    """
    try:
        return os.environ.get("POD_NAMESPACE") or _OWN_NAMESPACE.read_text().strip()
    except OSError as error:
        raise OperatorError(
            f"The namespace of the Lease is not known: neither POD_NAMESPACE nor {_OWN_NAMESPACE} ({error.strerror})",
            hint="set POD_NAMESPACE, or run without --lease where no other operator works",
        ) from error


def make_identity() -> str:
    """Return a unique identity of this process: the host name, which is the pod's, and a random part."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"
