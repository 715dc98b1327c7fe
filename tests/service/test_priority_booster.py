"""What is written to Workloads so that a queue spares jobs with unsaved work: little, and 0 for those that wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from bert_job.progress import ProgressRecord
from bert_operator.cluster.client import ApiError
from bert_operator.cluster.log_reader import LatestRecords
from bert_operator.cluster.priority_booster import PriorityBooster
from bert_operator.cluster.settings import PriorityBoost
from bert_operator.cluster.workloads import WorkloadSummary, read_workload
from bert_operator.names import JobRef
from bert_operator.state.priority_boost import BOOST_ANNOTATION

AFTER_S = (60.0, 300.0)
REF = JobRef("ns", "demo")


@dataclass
class Queue:
    """A job in a queue as the operator's index has it, and what is written about it."""

    boost: int = 0
    """That stands in its Workload when the operator starts."""
    is_suspended: bool = False
    is_admitted: bool = True
    evicted: str = ""
    age_s: float = 0.0
    step: int = 10
    saved: int = 0
    written: list[tuple[str, str]] = field(default_factory=list)
    owner: str = "uid"
    pod: str = "launcher"
    """That runs; the records are of the pod "launcher"."""
    refuses: int = 0
    """The status with which writes are refused; 0: none is."""
    refuses_in: str = ""
    """In this namespace alone; empty: in all."""
    refs: tuple[JobRef, ...] = (REF,)
    runs_s: float = 10_000.0
    """For so long its child exists."""

    def queued_children(self) -> list[tuple[JobRef, Any]]:
        child = {"name": "demo-a1", "attempt": 1, "owner_uid": self.owner, "conditions": (), "created_at_s": 0.0}
        child |= {"kind": "MPIJob", "is_suspended": self.is_suspended}
        return [(ref, SimpleNamespace(**child, uid=f"child in {ref.namespace}")) for ref in self.refs]

    def job(self, ref: JobRef) -> Any:
        return SimpleNamespace(uid="uid")

    def now_s(self) -> float:
        return self.runs_s

    def pods(self, ref: JobRef, child: str) -> list[Any]:
        return [SimpleNamespace(uid=self.pod, role="launcher", is_deleting=False, created_at_s=0.0)]

    def workload(self, uid: str) -> WorkloadSummary:
        conditions = [{"type": "Admitted", "status": "True"}] if self.is_admitted else []
        if self.evicted:
            conditions.append({"type": "Evicted", "status": "True", "reason": self.evicted})
        metadata = {"name": "mpijob-demo-a1", "annotations": {BOOST_ANNOTATION: str(self.boost)}}
        return read_workload({"metadata": metadata, "status": {"conditions": conditions}})

    def latest(self, ref: JobRef) -> LatestRecords:
        fields = {"stage": "phase1", "step": str(self.step), "checkpoint_age_s": str(self.age_s)}
        checkpoint = ProgressRecord("checkpoint", "uid", 1, {"stage": "phase1", "step": str(self.saved)})
        return LatestRecords(
            progress=ProgressRecord("progress", "uid", 1, fields), checkpoint=checkpoint, job="uid", pod="launcher"
        )

    async def patch(self, path: str, document: Any) -> None:
        if self.refuses and f"/namespaces/{self.refuses_in}" in path:
            raise ApiError(self.refuses, "no", "")
        self.written.append((path.rpartition("/")[2], document["metadata"]["annotations"][BOOST_ANNOTATION]))


def looked(queue: Queue, *ages_s: float) -> list[str]:
    """Look once at each age of the unsaved work; return the boosts that were written."""
    booster = PriorityBooster(queue, queue, queue.latest, AFTER_S)  # type: ignore[arg-type]

    async def look() -> None:
        for age_s in ages_s:
            queue.age_s = age_s
            await booster.write_due()

    asyncio.run(look())
    return [boost for _, boost in queue.written]


def test_each_age_is_written_once_and_each_checkpoint_too() -> None:
    assert looked(Queue(), 0, 30, 60, 61, 120, 299, 300, 5000, 9000, 1, 2, 61) == ["1", "2", "0", "1"]


def test_a_checkpoint_counts_before_the_next_step_is_reported() -> None:
    queue = Queue(boost=2, saved=10)
    assert looked(queue, 500) == ["0"]


@pytest.mark.parametrize("change", [{"is_suspended": True}, {"is_admitted": False}, {"evicted": "Preempted"}])
def test_who_waits_or_has_to_go_has_no_boost(change: dict[str, Any]) -> None:
    assert looked(Queue(boost=2, **change), 500, 500) == ["0"]
    assert looked(Queue(boost=0, **change), 500, 500) == []


def test_what_was_not_saved_before_a_preemption_counts_no_more() -> None:
    assert looked(Queue(boost=2, pod="of the next run"), 500) == ["0"]


def test_a_job_that_somebody_labels_like_a_child_of_ours_gets_nothing() -> None:
    assert looked(Queue(owner=""), 500) == []


def test_an_operator_that_starts_again_writes_what_has_changed_only() -> None:
    assert looked(Queue(boost=1), 70, 80) == []
    assert looked(Queue(boost=1), 301) == ["2"]


def test_what_somebody_wrote_instead_of_a_number_is_replaced() -> None:
    queue = Queue()
    queue.boost = "many"  # type: ignore[assignment]
    assert looked(queue, 61) == ["1"]


@pytest.mark.parametrize("status", [403, 422, 500])
def test_refused_writes_are_tried_again_later_and_harm_nothing(status: int) -> None:
    assert looked(Queue(refuses=status), 61, 62) == []


@pytest.mark.parametrize(("status", "written"), [(403, 1), (404, 1), (500, 1), (401, 0), (429, 0)])
def test_what_one_namespace_refuses_keeps_no_other_from_its_boost(status: int, written: int) -> None:
    queue = Queue(refuses=status, refuses_in="a/", refs=(JobRef("a", "demo"), JobRef("b", "demo")))
    assert looked(queue, 61, 62) == ["1"] * written


def test_no_work_is_older_than_the_pods_that_do_it() -> None:
    assert looked(Queue(runs_s=59), 1e9) == []
    assert looked(Queue(runs_s=61), 1e9) == ["1"]


def test_a_workload_that_refuses_its_number_is_asked_again_with_the_next_one() -> None:
    queue = Queue(refuses=422)
    booster = PriorityBooster(queue, queue, queue.latest, AFTER_S)  # type: ignore[arg-type]

    async def look() -> None:
        for queue.age_s, queue.refuses in ((61, 422), (62, 0), (301, 0)):
            await booster.write_due()

    asyncio.run(look())
    assert [boost for _, boost in queue.written] == ["2"]


@pytest.mark.parametrize("ages_s", [[], [300, 60], [60, 60], [0], [*range(1, 11)]])
def test_ages_ascend_and_are_few(ages_s: list[float]) -> None:
    with pytest.raises(ValueError, match="afterSeconds"):
        PriorityBoost.model_validate({"afterSeconds": ages_s})
