"""Writes the status of a job against the version that was read, and emits what changed as Events and metrics."""

from __future__ import annotations

import math
from typing import Any, Protocol

from bert_operator.api.schema.status import JobStatus
from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.events import JobEvent, events_between
from bert_operator.cluster.index import Index
from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.object_summaries import JobSummary, read_job
from bert_operator.cluster.paths import job_path
from bert_operator.cluster.work_queue import Requeue
from bert_operator.names import KIND, JobRef

Document = dict[str, Any]

CONFLICT_PAUSE_S = 0.2


class EventSink(Protocol):
    """Accepts Kubernetes Events."""

    def emit(self, ref: JobRef, uid: str, event: JobEvent) -> None:
        """Queue an Event about the job with this uid."""


class StatusWriter:
    """Reads and writes jobs at the API server, and updates the index with every response."""

    def __init__(self, api: ApiClient, index: Index, recorder: EventSink, metrics: Metrics) -> None:
        """Share the index with the watches."""
        self._api = api
        self._index = index
        self._recorder = recorder
        self._metrics = metrics

    async def write(self, ref: JobRef, summary: JobSummary, before: JobStatus, after: JobStatus) -> JobSummary:
        """Write a status if it differs; return the summary at the version that the write led to.

        Args:
            ref: The job.
            summary: What ``before`` was read from; its version is the precondition of the write.
            before: The last status.
            after: The new one.

        Raises:
            Requeue: The job changed or disappeared in between; the index is up to date by then.
            ApiError: The API server refused, or could not be reached.
        """
        if after == before:
            return summary
        # A merge patch with the resourceVersion that was read is a compare-and-swap: of two operators that act on the
        # same version, one gets 409, re-reads and plans again. Server-Side Apply alone would not do: its conflicts are
        # between field managers, and two operators are the same one. The uid refuses the write to a job that was
        # deleted and recreated under the same name.
        patch = {
            "metadata": {"resourceVersion": str(summary.version), "uid": summary.uid},
            # With its nulls: in a merge patch null removes a field, and one that is left out keeps its old value.
            "status": after.model_dump(mode="json", by_alias=True),
        }
        try:
            answer = await self._api.patch(job_path(ref, part="status"), patch)
        except ApiError as error:
            if error.status == 404:
                self._index.drop_uid(KIND, ref.namespace, ref.name, summary.uid)
                raise Requeue(CONFLICT_PAUSE_S) from error
            if error.status == 409:
                await self.read_job(ref, summary)
                raise Requeue(CONFLICT_PAUSE_S) from error
            raise
        self._index.put_job(answer)
        # Only after the write: a refused status was never true, and its Events would be emitted again.
        for event in events_between(before, after):
            self._recorder.emit(ref, summary.uid, event)
        known = {failure.attempt for failure in before.failures}
        for failure in after.failures:
            if failure.attempt not in known:
                self._metrics.attempt_failed(failure.kind, failure.reason)
        # Not the index's summary: the watch may have delivered a newer spec meanwhile, for which this plan was not
        # made. That change has queued the job again.
        return summary._replace(version=int(answer["metadata"]["resourceVersion"]))

    async def read_job(self, ref: JobRef, summary: JobSummary) -> JobSummary | None:
        """Read a job from the API server, however large it is; None if it no longer exists."""
        try:
            answer = await self._api.get(job_path(ref))
        except ApiError as error:
            if error.status != 404:
                raise
            self._index.drop_uid(KIND, ref.namespace, ref.name, summary.uid)
            return None
        self._index.put_job(answer)
        return read_job(answer, max_bytes=math.inf)

    async def is_outdated(self, ref: JobRef, summary: JobSummary) -> bool:
        """Return whether the API server has a newer version of a job; the index then has it too."""
        await self.read_job(ref, summary)
        known = self._index.job(ref)
        return known is None or (known.uid, known.version) != (summary.uid, summary.version)
