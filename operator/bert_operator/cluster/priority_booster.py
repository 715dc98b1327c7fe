"""Tells Kueue which running jobs have work that is not saved, by an annotation of their Workloads (``priority_boost``).

Off unless the settings have ``priorityBoost``, since Kueue reads it behind a feature gate. At most one write for each
checkpoint and for each age that unsaved work reaches, and one when a queue takes a job out: until its pods are gone it
does not wait for quota again, so that it waits without a boost. While no operator runs, what is written stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.index import Index
from bert_operator.cluster.log_reader import LatestRecords, select_records
from bert_operator.cluster.object_summaries import ChildSummary
from bert_operator.cluster.paths import workload_path
from bert_operator.cluster.round_robin import RoundRobin
from bert_operator.cluster.workloads import VERSIONS, WorkloadSummary
from bert_operator.names import JobRef
from bert_operator.state.priority_boost import BOOST_ANNOTATION, choose_boost, find_unsaved_s

ROUND_S = 1.0
AFTER_REFUSAL_S = 30.0
"""Between two writes where the right to write Workloads is missing, or the API server refuses them."""

_log = logging.getLogger(__name__)


class _Due(NamedTuple):
    """An annotation that has to be written."""

    ref: JobRef
    child: ChildSummary
    workload: WorkloadSummary
    boost: int


class PriorityBooster:
    """Maintains the priority boost annotation on the Workloads of running children."""

    def __init__(
        self, api: ApiClient, index: Index, latest: Callable[[JobRef], LatestRecords], after_s: Sequence[float]
    ) -> None:
        """Have written nothing.

        Args:
            api: The API server.
            index: What is known of children and their Workloads.
            latest: Returns the newest records of a job.
            after_s: Ages of unsaved work, ascending; each makes a job 1 dearer.
        """
        self._api, self._index, self._latest, self._after_s = api, index, latest, tuple(after_s)
        self._written: dict[str, int] = {}
        """By the child's uid; what stands there is read once, with its Workload."""
        self._refused_until_s: dict[str, float] = {}
        """By namespace; of all where it is empty. By the child's uid where its Workload is gone."""

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self.write_due()
            await asyncio.sleep(ROUND_S)

    async def write_due(self) -> None:
        """Write changed annotations; those of preempted children first, since a waiting child must have no boost."""
        queued = self._index.queued_children()
        for uid in self._written.keys() - {child.uid for _, child in queued}:
            del self._written[uid]
        now_s = self._now_s()
        self._refused_until_s = {what: at_s for what, at_s in self._refused_until_s.items() if now_s < at_s}
        due: dict[bool, RoundRobin[_Due]] = {True: RoundRobin(), False: RoundRobin()}
        for ref, child in queued:
            workload, job = self._index.workload(child.uid), self._index.job(ref)
            # Anybody may label a Job like a child of ours; kueue makes a Workload of it.
            if workload is None or job is None or job.uid != child.owner_uid:
                continue
            wanted = self._choose(ref, child, workload)
            if wanted != self._written.setdefault(child.uid, workload.boost):
                due[wanted == 0].put(ref.namespace, _Due(ref, child, workload, wanted))
        for fair in due.values():
            for _ in range(len(fair)):
                one = fair.take()
                if not self._refused_until_s.keys() & {"", one.ref.namespace, one.child.uid}:
                    await self._write(one)

    def _choose(self, ref: JobRef, child: ChildSummary, workload: WorkloadSummary) -> int:
        if child.is_suspended or not workload.is_admitted or workload.evicted[0]:
            return 0
        # Of the run that goes on now; and of this job alone: anybody may label a Job like a child of ours.
        records = select_records(self._latest(ref), child, self._index.pods(ref, child.name))
        progress = records.progress
        if progress is None or (progress.job, progress.attempt) != (child.owner_uid, child.attempt):
            return 0
        # The age is what the job's program prints: no work can be older than the pods that do it.
        unsaved_s = min(find_unsaved_s(progress, records.checkpoint), self._api.now_s() - child.created_at_s)
        return choose_boost(unsaved_s, self._after_s)

    async def _write(self, due: _Due) -> None:
        path = workload_path(VERSIONS[0], due.ref.namespace, due.workload.name)
        try:
            await self._api.patch(path, {"metadata": {"annotations": {BOOST_ANNOTATION: str(due.boost)}}})
        except ApiError as error:
            if error.status == 404:
                # Its Workload is gone, and another one will be read.
                self._refused_until_s[due.child.uid] = self._now_s() + AFTER_REFUSAL_S
                return
            _log.info("The boost of %s cannot be written (%s); Kueue chooses by age alone", due.ref, error)
            if error.status in (0, 401, 429):
                self._refused_until_s[""] = self._now_s() + AFTER_REFUSAL_S
                return
            # A webhook, a right that is missing there, or an object that etcd does not take: others' go on.
            if error.status == 403 or error.status >= 500:
                self._refused_until_s[due.ref.namespace] = self._now_s() + AFTER_REFUSAL_S
                return
            # It is about this Workload, which must not keep others from theirs: the next number is tried.
        except Exception:
            # One bad answer must not end the process.
            _log.exception("The boost of %s cannot be written", due.ref)
            return
        self._written[due.child.uid] = due.boost

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
