"""Pods of failed attempts that need no time to leave, and those that may still be saving something."""

from __future__ import annotations

from typing import Any

import pytest

from bert_operator.api.schema.status import ChildRef, Failure, JobStatus
from bert_operator.state.left_behind import find_left_behind
from bert_operator.state.observed import Child, Observed, Silence
from bert_operator.state.plan import plan
from plan_inputs import NOW_S, TRAINING_ONLY

REF = ChildRef(kind="MPIJob", name="bert-a1", uid="u", attempt=1)
CHILD = Child(run="training", attempt=1, state="Failed", stopping=True, ref=REF)


def failed(reason: str = "Killed", **end: Any) -> JobStatus:
    failure = Failure(
        run="training", attempt=1, kind="Infrastructure", reason=reason, finished_at="2023-11-14T22:13:20Z", **end
    )
    return JobStatus(phase="Pending", reason="RemovingPrevious", attempt=1, run="training", failures=(failure,))


@pytest.mark.parametrize(
    "status",
    [
        failed("Hung", exit_code=4),
        failed("Hung"),
        failed("WorkerLost", exit_code=4),
        failed("DeviceUnhealthy"),
        failed("Killed", signal=9),
        failed("Exited", exit_code=1),
        failed("OOMKilled", signal=9),
    ],
)
def test_a_program_that_is_over_or_hopeless_has_nothing_to_save(status: JobStatus) -> None:
    assert find_left_behind(status, [CHILD], stop_requested=False) == (CHILD,)


@pytest.mark.parametrize("reason", ["Evicted", "Disrupted", "PodDeleted", "Lost", "Killed"])
def test_others_of_a_pod_that_was_sent_away_may_still_be_saving(reason: str) -> None:
    assert find_left_behind(failed(reason), [CHILD], stop_requested=False) == ()


def test_a_program_that_left_with_a_checkpoint_is_not_hurried() -> None:
    assert find_left_behind(failed("StoppedUnasked", exit_code=3), [CHILD], stop_requested=False) == ()


@pytest.mark.parametrize("phase", ["Stopping", "Stopped", "Succeeded", "Failed"])
def test_a_job_that_stops_or_has_ended_is_left_alone(phase: Any) -> None:
    status = failed("Hung", exit_code=4).model_copy(update={"phase": phase})
    assert find_left_behind(status, [CHILD], stop_requested=False) == ()


def test_a_suspension_is_given_its_time() -> None:
    assert find_left_behind(failed("Hung", exit_code=4), [CHILD], stop_requested=True) == ()


def test_another_attempt_is_not_meant() -> None:
    other = Child(run="training", attempt=2, state="Running", ref=REF)
    assert find_left_behind(failed("Hung", exit_code=4), [other], stop_requested=False) == ()


def test_a_child_whose_launcher_is_silent_is_hurried_once_its_failure_is_put_down() -> None:
    status = JobStatus(phase="Running", attempt=1, run="training", child=REF)
    running = Child(run="training", attempt=1, state="Running", ref=REF)
    step = plan(TRAINING_ONLY, Observed(status=status, children=(running,), silence=Silence(1, 301)), NOW_S)
    assert [child.ref for child in step.hurry] == [REF]
    suspended = Observed(status=step.status, children=(CHILD,), silence=Silence(1, 301), stop_requested=True)
    assert plan(TRAINING_ONLY, suspended, NOW_S + 5).hurry == ()
