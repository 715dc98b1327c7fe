"""A job that was deleted and recreated under its name is another job, and inherits nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from bert_job.progress import parse_progress_line
from bert_operator.api.schema.conditions import BlockerReason
from bert_operator.api.schema.status import JobStatus
from bert_operator.cluster.children import Refusal
from bert_operator.cluster.client import ApiClient
from bert_operator.cluster.index import Index
from bert_operator.cluster.log_reader import LatestRecords
from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.object_summaries import JobSummary, read_job
from bert_operator.cluster.reconciler import Reconciler
from bert_operator.cluster.settings import Settings
from bert_operator.names import JobRef
from bert_operator.state.observed import Blocker
from sample_job import sample_document, sample_job
from walking_operator import Told


@dataclass
class TellsOfTheFirst(Told):
    """What the log of the first one said."""

    def latest(self, ref: JobRef) -> LatestRecords:
        recorded = parse_progress_line(
            "bert-trainer/1 event=progress job=first attempt=1 stage=phase1 step=9 steps=100"
        )
        assert recorded is not None
        return LatestRecords(progress=recorded, checkpoint=recorded)


def summary_of(uid: str) -> JobSummary:
    document = sample_document()
    metadata = {**document["metadata"], "namespace": "default", "uid": uid, "resourceVersion": "1", "generation": 1}
    return read_job({**document, "metadata": metadata})


def test_neither_progress_nor_checkpoint_nor_blocker_is_inherited() -> None:
    recorded, job = TellsOfTheFirst(), sample_job()
    reconciler = Reconciler(cast(ApiClient, None), Index(), Settings(), recorded, recorded, Metrics(), recorded)
    blocker = Blocker(reason=BlockerReason.REJECTED, message="no")
    reconciler._children._refusals[job.ref] = Refusal("first", blocker, pause_s=60, again_at_s=1e12)
    first, second = (reconciler._observe(job, summary_of(uid), JobStatus()) for uid in ("first", "second"))
    assert None not in (first.progress, first.checkpoint, first.blocker)
    assert (second.progress, second.checkpoint, second.blocker) == (None, None, None)
