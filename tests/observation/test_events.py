"""Events of a job: every change once, in order, none if nothing has changed."""

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


def emitted(before: JobStatus, after: JobStatus) -> list[tuple[str, str]]:
    return [(event.kind, event.reason) for event in events_between(before, after)]


def test_an_unchanged_status_emits_no_event() -> None:
    status = JobStatus(phase="Running", attempt=2, failures=(failure(),), conditions=(blocked(),))
    assert emitted(status, status) == []


def test_a_failure_is_emitted_before_the_attempt_that_follows() -> None:
    before = JobStatus(phase="Running", attempt=1)
    after = JobStatus(phase="Pending", attempt=2, run="training", failures=(failure(),))
    assert emitted(before, after) == [("Warning", "AttemptFailed"), ("Normal", "AttemptStarted")]


def test_a_failure_is_emitted_with_exit_code_or_signal_and_message() -> None:
    for rest, words in (
        ({"signal": 9}, "OOMKilled, signal 9"),
        ({"exit_code": 1, "reason": "Exited"}, "Exited, exit code 1"),
        ({"reason": "Lost"}, "Lost, no exit code"),
        ({"exit_code": 1, "message": "no such file"}, "OOMKilled, exit code 1: no such file"),
    ):
        (event,) = events_between(JobStatus(attempt=1), JobStatus(attempt=1, failures=(failure(**rest),)))
        assert event.message == f"Attempt 1 (training) failed: {words}"


def test_only_new_failures_are_emitted() -> None:
    before = JobStatus(attempt=2, failures=(failure(1),))
    assert emitted(before, JobStatus(attempt=2, failures=(failure(1), failure(2)))) == [("Warning", "AttemptFailed")]


def test_a_completed_run_is_emitted_once() -> None:
    after = JobStatus(attempt=1, completed_runs=("prepare",))
    assert emitted(JobStatus(attempt=1), after) == [("Normal", "RunCompleted")]
    assert emitted(after, after) == []


def test_a_blocker_is_emitted_when_it_appears_and_when_its_reason_changes() -> None:
    free, stuck = JobStatus(conditions=(blocked("False", "Cleared"),)), JobStatus(conditions=(blocked(),))
    assert emitted(JobStatus(), stuck) == [("Warning", "Unschedulable")]
    assert emitted(free, stuck) == [("Warning", "Unschedulable")]
    assert emitted(stuck, JobStatus(conditions=(blocked(reason="ImagePullFailed"),))) == [
        ("Warning", "ImagePullFailed")
    ]
    assert emitted(stuck, free) == []


def test_phases_are_emitted_with_their_reasons() -> None:
    for phase, reason, event in (
        ("Running", "ChildRunning", ("Normal", "Running")),
        ("Queued", "Queued", ("Normal", "Queued")),
        ("Stopping", "StoppingAtDeadline", ("Normal", "StoppingAtDeadline")),
        ("Stopped", "StoppedOnRequest", ("Normal", "StoppedOnRequest")),
        ("Succeeded", "AllStagesDone", ("Normal", "AllStagesDone")),
        ("Failed", "InvalidInput", ("Warning", "InvalidInput")),
        ("Invalid", "SpecInvalid", ("Warning", "SpecInvalid")),
    ):
        assert emitted(JobStatus(), JobStatus(phase=phase, reason=reason)) == [event]  # type: ignore[arg-type]
