"""Nodes that let attempts down twice: listed, and avoided by the next attempt where there are others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bert_operator.api.schema.conditions import FailureReason
from bert_operator.api.schema.status import MAX_AVOIDED_NODES, Failure, JobStatus
from bert_operator.names import TRAINING_RUN
from bert_operator.render.children import render_child
from bert_operator.render.frozen import freeze
from bert_operator.state.bad_nodes import find_bad_nodes
from bert_operator.state.observed import Observed
from bert_operator.state.plan import plan
from bert_operator.state.runs import ChildSpec
from bert_operator.timestamps import render_time
from child_cases import case_frozen, child_of, templates
from plan_inputs import NOW_S, TRAINING_ONLY
from sample_job import sample_job

PREFERENCE = {
    "weight": 1,
    "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]},
}


def failed(attempt: int, node: str | None, reason: str = "Killed", kind: Any = "Infrastructure") -> Failure:
    finished_at = render_time(NOW_S - 10_000 + attempt)
    return Failure(
        run=TRAINING_RUN, attempt=attempt, kind=kind, reason=reason, node=node, exit_code=137, finished_at=finished_at
    )


def test_a_node_is_bad_from_its_second_failure_on() -> None:
    once = (failed(1, "n-1"), failed(2, "n-2"), failed(3, None), failed(4, None))
    assert find_bad_nodes(once) == ()
    assert find_bad_nodes((*once, failed(5, "n-2"), failed(6, "n-1"))) == ("n-2", "n-1")


@pytest.mark.parametrize("reason", [FailureReason.EVICTED, FailureReason.OUT_OF_MEMORY, FailureReason.STORAGE_FAILED])
def test_what_happens_on_any_node_blames_none(reason: str) -> None:
    assert find_bad_nodes(failed(attempt, "n-1", reason) for attempt in (1, 2, 3)) == ()
    assert find_bad_nodes(failed(attempt, "n-1", kind="Application") for attempt in (1, 2, 3)) == ()


def test_the_launcher_s_node_is_not_blamed_for_ranks_that_wait_for_each_other() -> None:
    hung = [failed(attempt, "n-1", FailureReason.HUNG) for attempt in (1, 2)]
    assert find_bad_nodes(hung) == ("n-1",)
    of_launcher = [one.model_copy(update={"pod": "demo-a1-launcher-x2x2x"}) for one in hung]
    assert find_bad_nodes(of_launcher) == ()


def test_the_list_is_bounded_and_keeps_the_newest() -> None:
    found = find_bad_nodes(failed(attempt, f"n-{attempt // 2}") for attempt in range(100))
    assert found == tuple(f"n-{number}" for number in range(50 - MAX_AVOIDED_NODES, 50))


def test_the_next_attempt_avoids_it_and_the_status_says_so() -> None:
    policy = TRAINING_ONLY.spec.run_policy.model_copy(update={"infrastructure_retries": 9})
    job = TRAINING_ONLY.model_copy(update={"spec": TRAINING_ONLY.spec.model_copy(update={"run_policy": policy})})
    status = JobStatus(attempt=2, run=TRAINING_RUN, failures=(failed(1, "n-1"), failed(2, "n-1")))
    step = plan(job, Observed(status=status), NOW_S)
    assert step.create is not None
    assert (step.create.avoided_nodes, step.status.avoided_nodes) == (("n-1",), ("n-1",))


@pytest.mark.parametrize("case", ["single-pod", "two-workers-open-mpi"])
def test_pods_prefer_any_other_node(case: str) -> None:
    frozen = case_frozen(case)
    child = child_of(frozen, TRAINING_RUN, 3)
    plain = dict(templates(render_child(frozen, child)))
    avoiding = dict(templates(render_child(frozen, replace(child, avoided_nodes=("n-1", "n-2")))))
    assert plain
    for role, template in avoiding.items():
        before, after = plain[role]["spec"], template["spec"]
        terms = after["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert [term["preference"]["matchFields"][0]["values"] for term in terms] == [["n-1"], ["n-2"]]
        assert {**after, "affinity": None} == {**before, "affinity": None}


def test_the_job_s_own_affinity_stays() -> None:
    given = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [PREFERENCE]}, "podAntiAffinity": {}}
    job = sample_job(lambda spec: spec.update(scheduling={"affinity": given}))
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "uid"})})
    child = ChildSpec(run=TRAINING_RUN, attempt=3, stages=("phase1",), ranks=1, avoided_nodes=("n-1",))
    ((_, template), *_) = templates(render_child(freeze(job, default_image="i"), child))
    affinity = template["spec"]["affinity"]
    assert affinity["podAntiAffinity"] == {}
    own, ours = affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert (own, ours["preference"]["matchFields"][0]["values"]) == (PREFERENCE, ["n-1"])
