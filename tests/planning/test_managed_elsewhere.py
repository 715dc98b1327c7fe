"""A job that ``spec.managedBy`` gives to another controller: the operator writes nothing, and counts it nowhere."""

from __future__ import annotations

import pytest

from bert_operator.cluster.object_summaries import read_job
from bert_operator.names import is_managed_elsewhere
from fake_cluster import Document
from fake_controllers import act
from job_walk import REF, Shape, World

MULTIKUEUE = "kueue.x-k8s.io/multikueue"
FAR = {"kind": "Job", "name": "demo-a1-training", "uid": "far", "attempt": 1}
MIRRORED = {
    "phase": "Running",
    "attempt": 1,
    "run": "training",
    "stage": "phase1",
    "observedGeneration": 1,
    "child": FAR,
    "progress": {"lastUpdatedTime": "2026-01-01T00:00:00Z", "metrics": [{"name": "loss", "value": "6.1"}]},
}
"""As MultiKueue copies it from the cluster where the job runs."""
DONE = {**MIRRORED, "phase": "Succeeded", "completionTime": "2026-01-01T00:00:00Z"}
"""Long enough ago that an operator of its own would delete the job."""


def world(managed_by: str | None, status: Document | None = None) -> World:
    made = World(Shape(workers=1, prepares=False, operators=1, run_policy={"ttlSecondsAfterFinished": 0}))
    assert made.job is not None
    spec = {**made.job["spec"], **({} if managed_by is None else {"managedBy": managed_by})}
    made.cluster.update(made.job, spec=spec, status=status or {})
    return made


def look_again_and_again(made: World) -> list[str]:
    """Return what the operator has written."""
    (operator,) = made.operators
    writes: list[str] = []
    for _ in range(3):
        made.look(operator)
        writes += operator.wire.writes
        act(made.cluster)
        made.cluster.now_s += 600
    return writes


@pytest.mark.parametrize("status", [None, MIRRORED, DONE])
@pytest.mark.parametrize("managed_by", [MULTIKUEUE, "example.com/of-a-newer-definition"])
def test_a_job_of_another_controller_is_left_alone(managed_by: str, status: Document | None) -> None:
    made = world(managed_by, status)
    before = dict(made.cluster.objects)
    assert look_again_and_again(made) == []
    assert made.cluster.objects == before
    assert made.operators[0].told.events == []


def test_it_counts_in_no_metric() -> None:
    made = world(MULTIKUEUE, MIRRORED)
    look_again_and_again(made)
    (operator,) = made.operators
    assert dict(operator.index.count_phases()) == {}
    summary = operator.index.job(REF)
    assert summary is not None
    assert (summary.series.figures, summary.child) == ((), None)
    assert operator.index.count()["jobs"] == 1, "it is in memory"


@pytest.mark.parametrize("managed_by", [None, "bert-operator.dev/operator"])
def test_a_job_of_this_operator_is_carried_out(managed_by: str | None) -> None:
    made = world(managed_by)
    look_again_and_again(made)
    assert made.status()["attempt"] == 1
    assert len(made.children()) == 1
    (operator,) = made.operators
    assert sum(operator.index.count_phases().values()) == 1


def test_a_namesake_of_a_job_that_ran_is_left_alone_and_its_children_with_it() -> None:
    made = world(None)
    look_again_and_again(made)
    job = made.job
    assert job is not None
    # Its child is still there, as between the deletion of an owner and the garbage collector.
    made.cluster.remove(job)
    made.make_job()
    assert made.job is not None
    made.cluster.update(made.job, spec={**made.job["spec"], "managedBy": MULTIKUEUE})
    before = dict(made.cluster.objects)
    made.look(made.operators[0])
    assert made.operators[0].wire.writes == []
    assert made.cluster.objects == before


def test_who_manages_a_job_is_read_from_documents_that_nobody_has_checked() -> None:
    assert [is_managed_elsewhere(spec) for spec in (None, [], {}, {"managedBy": None})] == [False] * 4
    assert not is_managed_elsewhere({"managedBy": "bert-operator.dev/operator"})
    assert is_managed_elsewhere({"managedBy": MULTIKUEUE})
    assert read_job({"metadata": {}, "spec": {"managedBy": MULTIKUEUE}}).is_managed_elsewhere
