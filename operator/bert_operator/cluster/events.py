"""Kubernetes Events for what changed between two statuses of a job, with stable reasons. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from bert_operator.api.schema.conditions import FINDINGS, ConditionType, Reason
from bert_operator.api.schema.status import Condition, JobStatus


class JobEvent(NamedTuple):
    """A Kubernetes Event about a job, before it has a name and a time."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str


def events_between(before: JobStatus, after: JobStatus) -> Iterator[JobEvent]:
    """Yield what happened between two statuses of a job, oldest first; each change is reported once."""
    known = {failure.attempt for failure in before.failures}
    for failure in after.failures:
        if failure.attempt not in known:
            end = f"signal {failure.signal}" if failure.signal is not None else f"exit code {failure.exit_code}"
            yield JobEvent(
                "Warning",
                "AttemptFailed",
                f"Attempt {failure.attempt} ({failure.run}) failed: {failure.reason}, "
                f"{end if failure.signal is not None or failure.exit_code is not None else 'no exit code'}"
                f"{f': {failure.message}' if failure.message else ''}",
            )
    yield from _target_events(before, after)
    for run in after.completed_runs:
        if run not in before.completed_runs:
            yield JobEvent("Normal", "RunCompleted", f"Run {run} completed")
    if after.attempt > before.attempt:
        yield JobEvent("Normal", "AttemptStarted", f"Created attempt {after.attempt} ({after.run})")
    blocked, was_blocked = _condition(after, ConditionType.BLOCKED), _condition(before, ConditionType.BLOCKED)
    # By reason alone: the message may name another pod each time, and each Event is a write.
    if blocked is not None and blocked.status == "True" and blocked.reason != (was_blocked and was_blocked.reason):
        yield JobEvent("Warning", blocked.reason, blocked.message)
    for kind in FINDINGS:
        found, was_found = _condition(after, kind), _condition(before, kind)
        if found is not None and found.status == "True" and found.reason != (was_found and was_found.reason):
            yield JobEvent("Warning", found.reason, found.message)
    if after.phase != before.phase:
        yield from _phase_events(after)


def _target_events(before: JobStatus, after: JobStatus) -> Iterator[JobEvent]:
    """Yield what became of the targets of stages, once that is decided."""
    known = {result.stage: result.message for result in before.results}
    for result in after.results:
        if result.target_met is None or result.message is None or known.get(result.stage) == result.message:
            continue
        message = f"{result.stage}: {result.message}"
        if result.target_met:
            yield JobEvent("Normal", "TargetMet", message)
        else:
            yield JobEvent("Warning", "TargetNotMet", message)


def _phase_events(after: JobStatus) -> Iterator[JobEvent]:
    message = after.message or ""
    match after.phase:
        case "Running":
            yield JobEvent("Normal", "Running", f"Attempt {after.attempt} ({after.run}) is running")
        case "Queued":
            yield JobEvent("Normal", Reason.QUEUED.value, message)
        case "Stopping":
            yield JobEvent("Normal", after.reason or "Stopping", message)
        case "Stopped":
            yield JobEvent("Normal", Reason.STOPPED_ON_REQUEST.value, message)
        case "Succeeded":
            yield JobEvent("Normal", Reason.ALL_STAGES_DONE.value, message)
        case "Failed":
            yield JobEvent("Warning", after.reason or "Failed", message)
        case "Invalid":
            yield JobEvent("Warning", Reason.SPEC_INVALID.value, message)


def _condition(status: JobStatus, kind: ConditionType) -> Condition | None:
    return next((condition for condition in status.conditions if condition.type == kind), None)
