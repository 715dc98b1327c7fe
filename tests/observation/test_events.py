"""What is told as Events: every change once, in order, nothing where nothing has changed."""

from __future__ import annotations

from typing import Any

from bert_operator.api.schema.status import Condition, Failure, JobStatus
from bert_operator.cluster.events import events_between


def failure(attempt: int = 1, **rest: Any) -> Failure:
    known = {"run": "training", "kind": "Infrastructure", "reason": "OOMKilled", "finished_at": "2023-11-14T22:13:20Z"}
    return Failure(attempt=attempt, **(known | rest))


def blocked(status: str = "True", reason: str = "Unschedulable") -> Condition:
    return Condition(
        type="Blocked",
        status=status,  # type: ignore[arg-type]
        reason=reason,
        message="no node fits",
        last_transition_time="2023-11-14T22:13:20Z",
    )


def told(before: JobStatus, after: JobStatus) -> list[tuple[str, str]]:
    return [(event.kind, event.reason) for event in events_between(before, after)]


def test_nothing_new_is_no_news() -> None:
    status = JobStatus(phase="Running", attempt=2, failures=(failure(),), conditions=(blocked(),))
    assert told(status, status) == []


def test_a_failure_is_told_before_the_attempt_that_follows() -> None:
    before = JobStatus(phase="Running", attempt=1)
    after = JobStatus(phase="Pending", attempt=2, run="training", failures=(failure(),))
    assert told(before, after) == [("Warning", "AttemptFailed"), ("Normal", "AttemptStarted")]


def test_a_failure_is_told_with_its_end_and_its_message() -> None:
    for rest, words in (
        ({"signal": 9}, "OOMKilled, signal 9"),
        ({"exit_code": 1, "reason": "Exited"}, "Exited, exit code 1"),
        ({"reason": "Lost"}, "Lost, no exit code"),
        ({"exit_code": 1, "message": "no such file"}, "OOMKilled, exit code 1: no such file"),
    ):
        (event,) = events_between(JobStatus(attempt=1), JobStatus(attempt=1, failures=(failure(**rest),)))
        assert event.message == f"Attempt 1 (training) failed: {words}"


def test_only_new_failures_are_told() -> None:
    before = JobStatus(attempt=2, failures=(failure(1),))
    assert told(before, JobStatus(attempt=2, failures=(failure(1), failure(2)))) == [("Warning", "AttemptFailed")]


def test_a_complete_run_is_told_once() -> None:
    after = JobStatus(attempt=1, completed_runs=("prepare",))
    assert told(JobStatus(attempt=1), after) == [("Normal", "RunCompleted")]
    assert told(after, after) == []


def test_an_obstacle_is_told_when_it_appears_and_when_it_becomes_another() -> None:
    free, stuck = JobStatus(conditions=(blocked("False", "Cleared"),)), JobStatus(conditions=(blocked(),))
    assert told(JobStatus(), stuck) == [("Warning", "Unschedulable")]
    assert told(free, stuck) == [("Warning", "Unschedulable")]
    assert told(stuck, JobStatus(conditions=(blocked(reason="ImagePullFailed"),))) == [("Warning", "ImagePullFailed")]
    assert told(stuck, free) == []


def test_phases_are_told_by_their_reasons() -> None:
    for phase, reason, event in (
        ("Running", "ChildRunning", ("Normal", "Running")),
        ("Queued", "Queued", ("Normal", "Queued")),
        ("Stopping", "StoppingAtDeadline", ("Normal", "StoppingAtDeadline")),
        ("Stopped", "StoppedOnRequest", ("Normal", "StoppedOnRequest")),
        ("Succeeded", "AllStagesDone", ("Normal", "AllStagesDone")),
        ("Failed", "InvalidInput", ("Warning", "InvalidInput")),
        ("Invalid", "SpecInvalid", ("Warning", "SpecInvalid")),
    ):
        assert told(JobStatus(), JobStatus(phase=phase, reason=reason)) == [event]  # type: ignore[arg-type]
