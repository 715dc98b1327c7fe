"""Tells Kueue which running jobs have work that is not saved, by an annotation of their Workloads (``priority_boost``).

Off unless the settings have ``priorityBoost``, since Kueue reads it behind a feature gate. At most one write for each
checkpoint and for each age that unsaved work reaches, and one when a queue takes a job out: until its pods are gone it
does not wait for quota again, so that it waits without a boost. While no operator runs, what is written stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.index import Index
from bert_operator.cluster.log_reader import LatestRecords, select_records
from bert_operator.cluster.object_summaries import ChildSummary
from bert_operator.cluster.paths import workload_path
from bert_operator.cluster.workloads import VERSIONS, WorkloadSummary
from bert_operator.names import JobRef
from bert_operator.state.priority_boost import BOOST_ANNOTATION, choose_boost, find_unsaved_s

ROUND_S = 1.0
AFTER_REFUSAL_S = 30.0
"""Between two writes while the right to write Workloads is missing, or the API server refuses them."""

_log = logging.getLogger(__name__)


class PriorityBooster:
    """Keeps the annotation of the Workloads of running children."""

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
        self._refused_until_s = 0.0

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self.write_due()
            await asyncio.sleep(ROUND_S)

    async def write_due(self) -> None:
        """Write what has changed; those that a queue takes out come first, who waits must not have a boost."""
        queued = self._index.queued_children()
        for uid in self._written.keys() - {child.uid for _, child in queued}:
            del self._written[uid]
        due = []
        for ref, child in queued:
            workload = self._index.workload(child.uid)
            if workload is None:
                continue
            wanted = self._choose(ref, child, workload)
            if wanted != self._written.setdefault(child.uid, workload.boost):
                due.append((wanted, ref, child, workload))
        for wanted, ref, child, workload in sorted(due, key=lambda item: item[0]):
            if asyncio.get_running_loop().time() < self._refused_until_s:
                return
            await self._write(ref, child, workload, wanted)

    def _choose(self, ref: JobRef, child: ChildSummary, workload: WorkloadSummary) -> int:
        if child.is_suspended or not workload.is_admitted or workload.evicted[0]:
            return 0
        # Of the run that goes on now; and of this job alone: anybody may label a Job like a child of ours.
        records = select_records(self._latest(ref), child, self._index.pods(ref, child.name))
        progress = records.progress
        if progress is None or (progress.job, progress.attempt) != (child.owner_uid, child.attempt):
            return 0
        return choose_boost(find_unsaved_s(progress, records.checkpoint), self._after_s)

    async def _write(self, ref: JobRef, child: ChildSummary, workload: WorkloadSummary, boost: int) -> None:
        path = workload_path(VERSIONS[0], ref.namespace, workload.name)
        try:
            await self._api.patch(path, {"metadata": {"annotations": {BOOST_ANNOTATION: str(boost)}}})
        except ApiError as error:
            if error.status == 404:
                return  # its Workload is gone, and another one will be read
            _log.info("The boost of %s cannot be written (%s); Kueue chooses by age alone", ref, error)
            if error.status in (0, 401, 403, 429) or error.status >= 500:
                self._refused_until_s = asyncio.get_running_loop().time() + AFTER_REFUSAL_S
                return
            # It is about this Workload, which must not keep others from theirs: the next number is tried.
        except Exception:
            # One bad answer must not end the process.
            _log.exception("The boost of %s cannot be written", ref)
            return
        self._written[child.uid] = boost
