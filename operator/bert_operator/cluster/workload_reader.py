"""Reads the Workloads that Kueue makes of queued children, one at a time, and puts them into the index.

No watch: Workloads carry no label of ours, so one would bring those of the whole cluster, each with its pod templates.
A child's Workload is looked for by label, metadata only, and then read by name: whenever the child was suspended or
resumed, and ever more seldom while it waits. Where nothing is queued nothing is asked, and where Kueue is not installed
or the right is missing hardly anything. What is kept is one summary per child that a queue holds or has admitted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bert_operator.cluster.client import TOO_LARGE, ApiClient, ApiError
from bert_operator.cluster.index import Index
from bert_operator.cluster.object_summaries import ChildSummary
from bert_operator.cluster.paths import workload_path
from bert_operator.cluster.round_robin import RoundRobin
from bert_operator.cluster.workloads import JOB_UID_LABEL, VERSIONS, read_workload
from bert_operator.names import JobRef

ROUND_S = 1.0
READS_PER_SECOND = 10.0
READS_PER_ROUND = 30
"""After which another namespace's turn comes, and what is queued by then is looked up again."""
MIN_WAIT_S, MAX_WAIT_S = 2.0, 60.0
"""Between two readings of a child that waits: a tenth of the time for which it has waited, within these bounds. Words
of the scheduler change with every job that comes or goes, and each other word is a write."""
AFTER_REFUSAL_S = 30.0
"""Between two requests while Kueue is not installed, or Workloads may not be read."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Reading:
    """The last reading of a child's Workload."""

    was_suspended: bool
    since_s: float
    """When it was first read in this state, on the loop's clock."""
    read_at_s: float
    workload: str = ""
    """Its name; empty: none was found."""
    is_settled: bool = False
    """Admitted: nothing more is to be had until the child is suspended again."""

    def is_due(self, child: ChildSummary, now_s: float) -> bool:
        """Return whether its Workload has to be read again."""
        if child.is_suspended != self.was_suspended:
            return True
        pause_s = min(MAX_WAIT_S, max(MIN_WAIT_S, (self.read_at_s - self.since_s) / 10))
        return not self.is_settled and now_s >= self.read_at_s + pause_s


class WorkloadReader:
    """Reads the Workloads of queued and admitted children into the index."""

    def __init__(self, api: ApiClient, index: Index, enqueue: Callable[[JobRef], None]) -> None:
        """Know none. enqueue: queues a job of whose Workload something is new."""
        self._api, self._index, self._enqueue = api, index, enqueue
        self._readings: dict[str, _Reading] = {}
        self._version = VERSIONS[0]
        self._refused_until_s = 0.0
        self._is_told = False
        self._served_at_s: dict[str, float] = {}

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.read_due()
            await asyncio.sleep(ROUND_S)

    async def read_due(self) -> None:
        """Read those that are due, up to a limit, round robin over namespaces."""
        loop = asyncio.get_running_loop()
        queued = self._index.queued_children()
        self._forget_others({child.uid for _, child in queued})
        due: RoundRobin[tuple[JobRef, ChildSummary]] = RoundRobin()
        for ref, child in sorted(queued, key=lambda item: self._served_at_s.get(item[0].namespace, 0.0)):
            reading = self._readings.get(child.uid)
            if reading is None or reading.is_due(child, loop.time()):
                due.put(ref.namespace, (ref, child))
        self._served_at_s = {ref.namespace: self._served_at_s.get(ref.namespace, 0.0) for ref, _ in queued}
        for _ in range(min(READS_PER_ROUND, len(due))):
            if loop.time() < self._refused_until_s:
                return
            ref, child = due.take()
            self._served_at_s[ref.namespace] = loop.time()
            await self._read(ref, child)
            await asyncio.sleep(1 / READS_PER_SECOND)

    async def _read(self, ref: JobRef, child: ChildSummary) -> None:
        now_s = asyncio.get_running_loop().time()
        known = self._readings.get(child.uid)
        reading = _Reading(child.is_suspended, now_s, now_s, known.workload if known else "")
        if known is not None and known.was_suspended == child.is_suspended:
            reading.since_s = known.since_s
        try:
            name = reading.workload or await self._find(ref.namespace, child.uid)
            body = await self._api.get(workload_path(self._version, ref.namespace, name)) if name else {}
        except ApiError as error:
            if error.status == 404 and reading.workload:
                reading.workload = ""  # replaced by another, which the next round looks for
                reading.read_at_s = 0.0
                self._readings[child.uid] = reading
            elif error.reason == TOO_LARGE:
                # Somebody has labelled very many: the child counts as one without a Workload, and is asked for as
                # seldom.
                self._readings[child.uid] = reading
            else:
                self._note_refusal(error)
            return
        except Exception:
            # One bad answer must not end the process.
            _log.exception("The Workload of %s in %s cannot be read", child.name, ref.namespace)
            self._readings[child.uid] = reading
            return
        self._is_told = False
        summary = read_workload(body) if name else None
        reading.workload = name
        # Kueue resumes a child after it has written that it is admitted.
        reading.is_settled = summary is not None and summary.is_admitted and not child.is_suspended
        self._readings[child.uid] = reading
        if (job := self._index.put_workload(ref, child.uid, summary)) is not None:
            self._enqueue(job)

    async def _find(self, namespace: str, uid: str) -> str:
        """Return the name of the Workload of a Job or MPIJob; empty where there is none. Raises ApiError."""
        for version in (self._version, *(other for other in VERSIONS if other != self._version)):
            path = workload_path(version, namespace)
            try:
                # From the API server's cache: with a limit older ones would read the whole namespace out of etcd.
                selector = f"{JOB_UID_LABEL}={uid}"
                page = await self._api.list_metadata(path, labelSelector=selector, resourceVersion="0")
            except ApiError as error:
                if error.status == 404 and version != VERSIONS[-1]:
                    continue
                raise
            self._version = version
            return _owned_name(page.get("items") or (), uid)
        return ""

    def _note_refusal(self, error: ApiError) -> None:
        """Ask nothing for a while: Kueue may be installed, and a right be given, at any time."""
        if error.status in (401, 403, 404):
            if not self._is_told:
                _log.info("Workloads cannot be read (%s); why a queue holds a job is not told", error)
            self._is_told = True
            self._refused_until_s = asyncio.get_running_loop().time() + AFTER_REFUSAL_S
        else:
            _log.debug("Workloads: %s", error)

    def _forget_others(self, wanted: set[str]) -> None:
        for uid in self._readings.keys() - wanted:
            del self._readings[uid]
        self._index.keep_workloads(wanted)


def _owned_name(items: Sequence[dict[str, object]], uid: str) -> str:
    """Return the name of the Workload that this very object owns: anyone may write labels."""
    for item in items:
        metadata = item.get("metadata")
        if isinstance(metadata, dict) and "deletionTimestamp" not in metadata:
            owners = metadata.get("ownerReferences") or ()
            if any(owner.get("uid") == uid for owner in owners):
                return str(metadata.get("name", ""))
    return ""
