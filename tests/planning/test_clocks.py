"""Clocks that are wrong by an hour: what was written by one costs a back-off at most, and ends no job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bert_operator.api.schema.status import Failure, JobStatus
from bert_operator.state.budgets import MAX_BACK_OFF_S
from bert_operator.state.observed import Observed
from bert_operator.state.plan import Plan, plan
from bert_operator.timestamps import parse_time, render_time
from plan_inputs import NOW_S, TRAINING_ONLY, child
from sample_job import PREPARE, sample_job

HOUR_S = 3600.0


def failed(*, count: int, at_s: float) -> Failure:
    return Failure(run="training", attempt=count, kind="Infrastructure", reason="Killed", finished_at=render_time(at_s))


@pytest.mark.parametrize(("failures", "back_off_s"), [(1, 0.0), (2, 10.0), (8, MAX_BACK_OFF_S)])
def test_a_failure_that_is_still_to_come_is_waited_for_no_longer_than_the_back_off(
    failures: int, back_off_s: float
) -> None:
    on_record = tuple(failed(count=number, at_s=NOW_S + HOUR_S) for number in range(1, failures + 1))
    job = TRAINING_ONLY.model_copy(deep=True)
    job.spec.run_policy.__dict__["infrastructure_retries"] = 10
    seen = Observed(status=JobStatus(attempt=failures, run="training", failures=on_record))
    now_s = NOW_S
    step = plan(job, seen, now_s)
    while step.create is None:
        assert step.requeue_after_s is not None
        now_s += step.requeue_after_s
        step = plan(job, replace(seen, status=step.status), now_s)
    assert now_s - NOW_S <= back_off_s + 1.0
    assert max(parse_time(failure.finished_at) for failure in step.status.failures) <= NOW_S


def at_deadline(start_s: float, now_s: float) -> Plan:
    """Return the plan for a running job that may take 1,800 s and began then."""
    document = sample_job(
        lambda spec: spec.update(
            dataset={"path": "data"}, stages=spec["stages"][PREPARE + 1 :], runPolicy={"activeDeadlineSeconds": 1800}
        )
    )
    status = JobStatus(phase="Running", attempt=1, run="training", start_time=render_time(start_s))
    return plan(document, Observed(status=status, children=(child(state="Running"),)), now_s)


def test_a_deadline_that_counts_from_a_time_to_come_counts_from_now() -> None:
    step = at_deadline(NOW_S + HOUR_S, NOW_S)
    assert (step.status.start_time, step.requeue_after_s) == (render_time(NOW_S), 1800)
    assert plan_again(step, NOW_S + 1801) == "StoppingAtDeadline"


def plan_again(step: Plan, now_s: float) -> str | None:
    assert step.status.start_time is not None
    return at_deadline(parse_time(step.status.start_time), now_s).status.reason


def test_the_time_to_live_of_a_job_that_ended_in_an_hour_counts_from_now() -> None:
    job = sample_job(lambda spec: spec.update(runPolicy={"ttlSecondsAfterFinished": 60}))
    ended = JobStatus(phase="Succeeded", attempt=1, run="training", completion_time=render_time(NOW_S + HOUR_S))
    step = plan(job, Observed(status=ended), NOW_S)
    assert (step.status.completion_time, step.requeue_after_s, step.delete_job) == (render_time(NOW_S), 60, False)


def test_times_of_the_same_second_are_left_as_they_are() -> None:
    status = at_deadline(NOW_S, NOW_S - 0.9).status
    assert status.start_time == render_time(NOW_S)


def test_the_time_in_a_phase_that_begins_in_an_hour_counts_from_now() -> None:
    document = sample_job(lambda spec: spec.update(dataset={"path": "data"}, stages=spec["stages"][PREPARE + 1 :]))
    status = JobStatus(phase="Running", attempt=1, run="training", phase_since=render_time(NOW_S + HOUR_S))
    step = plan(document, Observed(status=status, children=(child(state="Running"),)), NOW_S)
    assert step.status.phase_since == render_time(NOW_S)
