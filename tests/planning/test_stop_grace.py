"""What a stop needs by measure, the grace period that pods have, and what the next attempt gets. Literals alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bert_job.progress import ProgressRecord, parse_progress_line
from bert_operator.api.schema.conditions import FailureReason, Reason
from bert_operator.api.schema.status import CheckpointStatus, ChildRef, Condition, JobStatus
from bert_operator.cluster.events import events_between
from bert_operator.cluster.object_summaries import read_child
from bert_operator.cluster.observation import observe_child
from bert_operator.render.children import render_child
from bert_operator.state.observed import Child, Observed
from bert_operator.state.plan import plan
from bert_operator.state.runs import ChildSpec
from bert_operator.state.stop_grace import describe_short_grace, raise_grace
from child_cases import case_frozen, templates
from child_documents import CREATED_S, child_document
from plan_inputs import NOW_S, TRAINING_ONLY

REF = ChildRef(kind="MPIJob", name="bert-a1", uid="u", attempt=1)
RUNNING = Child(run="training", attempt=1, state="Running", ref=REF, grace_s=120)
STATUS = JobStatus(phase="Running", attempt=1, run="training", child=REF)


def needs(seconds: int | None) -> CheckpointStatus:
    return CheckpointStatus(stage="phase1", step=10, stop_seconds=seconds)


def saved(times: str = "seconds=80.2 stop_s=100.1", *, event: str = "checkpoint", step: int = 10) -> ProgressRecord:
    line = f"bert-trainer/1 event={event} stage=phase1 step={step} {times} job=uid attempt=1"
    found = parse_progress_line(" ".join(line.split()))
    assert found is not None
    return found


def with_grace(seconds: int) -> Any:
    policy = TRAINING_ONLY.spec.run_policy.model_copy(update={"stop_grace_seconds": seconds})
    return TRAINING_ONLY.model_copy(update={"spec": TRAINING_ONLY.spec.model_copy(update={"run_policy": policy})})


def seen(status: JobStatus, child: Child = RUNNING, **more: Any) -> Observed:
    return Observed(status=status, children=(child,), **{"max_grace_s": 86_400, **more})


def condition(status: JobStatus) -> Condition | None:
    return next((item for item in status.conditions if item.type == "GraceTooShort"), None)


@pytest.mark.parametrize(
    ("given", "raised", "needed", "longest", "expected"),
    [
        (120, None, None, 86_400, None),  # nothing measured yet
        (120, None, 96, 86_400, None),  # just 0.8 of it
        (120, None, 97, 86_400, 194),
        (120, None, 97, 150, 150),
        (120, None, 900, 120, None),  # nothing more is allowed
        (120, None, 900, 60, None),  # a bound that has come since takes nothing away
        (120, 194, 97, 86_400, 194),
        (120, 194, 10, 86_400, 194),  # never less within a job
        (120, 194, 10, 60, 194),
        (120, 194, 156, 86_400, 312),
        (600, 194, 300, 86_400, 194),  # the job says more meanwhile
        (120, 194, 500, None, 194),  # no cluster
        (120, None, 500, None, None),
        (120, None, 1_000_000, 86_400, 86_400),
    ],
)
def test_the_next_attempt_gets_twice_what_a_stop_needs_within_the_bound(
    given: int, raised: int | None, needed: int | None, longest: int | None, expected: int | None
) -> None:
    assert raise_grace(given, raised, needs(needed), longest) == expected
    again = raise_grace(given, expected, needs(needed), longest)
    assert again == expected, "the same from the status that was written"


def test_without_a_checkpoint_nothing_is_raised_and_nothing_told() -> None:
    assert raise_grace(120, None, None, 86_400) is None
    assert describe_short_grace(120, None, 120, 86_400) is None


@pytest.mark.parametrize(
    ("grace", "needed", "longest"), [(None, 500, 86_400), (120, 96, 86_400), (120, None, 86_400), (120, 500, None)]
)
def test_nothing_is_told_where_pods_have_the_time_or_it_is_not_known(
    grace: int | None, needed: int | None, longest: int | None
) -> None:
    assert describe_short_grace(grace, needs(needed), 120, longest) is None


def test_measured_times_are_in_the_status_and_a_resume_keeps_them() -> None:
    status = plan(TRAINING_ONLY, seen(STATUS, checkpoint=saved()), NOW_S).status
    assert status.checkpoint == CheckpointStatus(stage="phase1", step=10, seconds=81, stop_seconds=101)
    resumed = saved("", event="resumed", step=8)
    status = plan(TRAINING_ONLY, seen(status, checkpoint=resumed), NOW_S).status
    assert status.checkpoint == CheckpointStatus(stage="phase1", step=8, seconds=81, stop_seconds=101)


@pytest.mark.parametrize("times", ["", "seconds=-1 stop_s=-3", "seconds=nan stop_s=1e9", "seconds=x stop_s=1_0"])
def test_a_time_that_cannot_be_true_is_none(times: str) -> None:
    status = plan(TRAINING_ONLY, seen(STATUS, checkpoint=saved(times)), NOW_S).status
    assert status.checkpoint == CheckpointStatus(stage="phase1", step=10)


def test_a_grace_that_is_too_short_is_told_with_numbers_and_the_next_attempt_gets_more() -> None:
    status = plan(TRAINING_ONLY, seen(STATUS, checkpoint=saved()), NOW_S).status
    told = condition(status)
    assert told is not None
    assert (told.status, told.reason) == ("True", Reason.SLOW_CHECKPOINTS)
    assert told.message.startswith("A stop needs 101 s")
    assert "killed 120 s after" in told.message
    assert "next attempt gets 202 s" in told.message
    assert (status.phase, status.stop_grace_seconds) == ("Running", None), "the pods that run keep what they have"
    assert [it.reason for it in events_between(STATUS, status)] == ["SlowCheckpoints"]
    assert plan(TRAINING_ONLY, seen(status, checkpoint=saved()), NOW_S + 5).status == status

    killed = replace(RUNNING, state="Failed", signal=9, finished_at_s=NOW_S, ref=None)
    step = plan(TRAINING_ONLY, seen(status, killed, checkpoint=saved()), NOW_S)
    assert step.create is not None
    assert (step.create.attempt, step.create.stop_grace_s, step.status.stop_grace_seconds) == (2, 202, 202)
    assert step.status.failures[0].reason == FailureReason.KILLED
    assert step.status.failures[0].checkpoint == CheckpointStatus(stage="phase1", step=10), "not in each of hundreds"
    again = plan(TRAINING_ONLY, Observed(status=step.status, max_grace_s=86_400), NOW_S + 60)
    assert again.create == step.create, "after a crash between status and child"

    second = replace(RUNNING, attempt=2, grace_s=202, ref=REF.model_copy(update={"attempt": 2}))
    status = plan(TRAINING_ONLY, seen(step.status, second), NOW_S + 90).status
    over = condition(status)
    assert over is not None
    assert (over.status, over.reason, status.stop_grace_seconds) == ("False", Reason.RECOVERED, 202)
    faster = replace(saved("seconds=2 stop_s=3", step=30), attempt=2)
    failed = replace(second, state="Failed", signal=9, finished_at_s=NOW_S, ref=None)
    third = plan(TRAINING_ONLY, seen(status, failed, checkpoint=faster), NOW_S + 200)
    assert third.create is not None
    assert third.create.stop_grace_s == 202


def test_where_the_settings_allow_no_more_the_condition_stays_and_says_who_can_do_something() -> None:
    status = plan(TRAINING_ONLY, seen(STATUS, checkpoint=saved(), max_grace_s=120), NOW_S).status
    told = condition(status)
    assert told is not None
    assert "The next attempt gets 120 s, since 120 s are the most" in told.message
    assert "limits.stopGraceSeconds" in told.message
    killed = replace(RUNNING, state="Failed", signal=9, finished_at_s=NOW_S, ref=None)
    step = plan(TRAINING_ONLY, seen(status, killed, max_grace_s=120), NOW_S)
    assert step.create is not None
    assert (step.create.stop_grace_s, step.status.stop_grace_seconds) == (None, None)


@pytest.mark.parametrize("state", ["Pending", "Queued"])
def test_of_pods_that_do_not_run_nothing_is_told(state: Any) -> None:
    status = plan(TRAINING_ONLY, seen(STATUS, replace(RUNNING, state=state), checkpoint=saved()), NOW_S).status
    told = condition(status)
    assert told is None or told.status == "False"


def test_a_job_that_gives_enough_hears_nothing() -> None:
    child = replace(RUNNING, grace_s=600)
    assert condition(plan(with_grace(600), seen(STATUS, child, checkpoint=saved()), NOW_S).status) is None


def test_outside_of_a_cluster_nothing_is_told_and_nothing_raised() -> None:
    status = plan(TRAINING_ONLY, seen(STATUS, checkpoint=saved(), max_grace_s=None), NOW_S).status
    assert condition(status) is None


@pytest.mark.parametrize(("raised", "expected"), [(None, 120), (202, 202), (60, 120)])
@pytest.mark.parametrize(("case", "workers"), [("claims", 1), ("two-workers-open-mpi", 2)])
def test_pods_of_every_role_get_it(case: str, workers: int, raised: int | None, expected: int) -> None:
    child = ChildSpec(run="training", attempt=2, stages=("phase1",), ranks=workers, stop_grace_s=raised)
    rendered = render_child(case_frozen(case), child)
    graces = {role: template["spec"]["terminationGracePeriodSeconds"] for role, template in templates(rendered)}
    roles = ["single"] if workers == 1 else ["launcher", "worker"]
    assert graces == dict.fromkeys(roles, expected)
    kept = child_document(rendered["kind"]) | {"spec": rendered["spec"]}
    found = read_child(kept)
    assert found is not None
    assert observe_child(found[1], [], {}, workers=workers, now_s=CREATED_S).grace_s == expected
