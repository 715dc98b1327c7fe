"""What counts as a failed attempt, and against which retry budget. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from bert_operator.api.schema.conditions import FailureReason, Reason
from bert_operator.api.schema.status import CheckpointStatus, Failure, FailureKind, JobStatus
from bert_operator.names import TRAINING_RUN
from bert_operator.state.budgets import is_storage
from bert_operator.state.observed import EXIT_BAD_INPUT, EXIT_INFRASTRUCTURE, Child, Observed
from bert_operator.timestamps import render_time


def list_failures(observed: Observed, checkpoint: CheckpointStatus | None, now_s: float) -> tuple[Failure, ...]:
    """Return every failed attempt, oldest first: those in the status, and those of children that have ended since.

    Args:
        observed: What is seen of the job.
        checkpoint: The newest.
        now_s: Seconds since 1970.
    """
    previous = observed.status
    # Failures of earlier attempts are only in the status: their children are removed before the next attempt.
    failures = {failure.attempt: failure for failure in previous.failures}
    for child in sorted(observed.children, key=lambda child: child.attempt):
        has_trained = _has_trained(child, observed, failures)
        kind = _failure_kind(child, was_asked=_was_asked(child, observed), has_trained=has_trained)
        if kind is not None and child.attempt not in failures:
            failures[child.attempt] = _failure(child, kind, checkpoint, now_s)
    if _is_lost(observed, set(failures)):
        failures[previous.attempt] = _lost(previous, checkpoint, now_s)
    return tuple(failures[attempt] for attempt in sorted(failures))


def _was_asked(child: Child, observed: Observed) -> bool:
    """Return whether the operator asked a child to stop. A deletion by anyone else is a failure of infrastructure."""
    newest = max((other.attempt for other in observed.children), default=0)
    by_us = _are_all_stopped(observed.status) or child.attempt < newest
    return observed.stop_requested or (child.stopping and by_us)


def _are_all_stopped(previous: JobStatus) -> bool:
    """Return whether the last status was that the operator stops, has stopped or removes all children."""
    return previous.phase in ("Stopping", "Stopped") or previous.reason == Reason.REMOVING_PREVIOUS


def _failure_kind(child: Child, *, was_asked: bool, has_trained: bool) -> FailureKind | None:
    """Return the retry budget that a child's outcome counts against; None if it is no failure.

    Args:
        child: An ended child, or any other.
        was_asked: The operator asked it to stop.
        has_trained: The run had a checkpoint, so a storage failure is not wrong input.
    """
    if child.state == "Stopped":
        return None if was_asked else "Infrastructure"
    if child.state != "Failed":
        return None
    # Before the exit code: until its first step, a run reports an outage of the file server with the exit code of a
    # mistyped path. Only that it has written before tells them apart.
    if child.reason == FailureReason.STORAGE_FAILED and has_trained:
        return None if was_asked else "Infrastructure"
    if child.exit_code == EXIT_BAD_INPUT:
        return "InvalidInput"
    # No exit code: the pod disappeared with its node, or was deleted.
    if child.signal is not None or child.exit_code in (None, EXIT_INFRASTRUCTURE):
        return None if was_asked else "Infrastructure"
    return "Application"


def _failure(child: Child, kind: FailureKind, checkpoint: CheckpointStatus | None, now_s: float) -> Failure:
    if kind == "InvalidInput":
        reason = FailureReason.REFUSED_INPUT
    elif child.state == "Stopped":
        reason = FailureReason.STOPPED_UNASKED
    else:
        reason = FailureReason.EXITED if kind == "Application" else FailureReason.KILLED
    return Failure(
        run=child.run,
        attempt=child.attempt,
        kind=kind,
        reason=child.reason or reason.value,
        pod=child.pod,
        node=child.node,
        exit_code=child.exit_code,
        signal=child.signal,
        message=child.message,
        checkpoint=checkpoint,
        finished_at=render_time(now_s if child.finished_at_s is None else child.finished_at_s),
    )


def _is_lost(observed: Observed, failed: set[int]) -> bool:
    """Return whether the newest child in the status has disappeared, although nothing asked it to stop."""
    previous = observed.status
    # At least: another operator may have gone on to the next attempt.
    present = any(child.attempt >= previous.attempt for child in observed.children)
    accounted = previous.attempt in failed or previous.run in previous.completed_runs
    expected = observed.stop_requested or _are_all_stopped(previous)
    return previous.attempt > 0 and was_seen(observed) and not (present or accounted or expected)


def _lost(previous: JobStatus, checkpoint: CheckpointStatus | None, now_s: float) -> Failure:
    return Failure(
        run=previous.run or TRAINING_RUN,
        attempt=previous.attempt,
        kind="Infrastructure",
        reason=FailureReason.LOST.value,
        message=FailureReason.LOST.sentence,
        checkpoint=checkpoint,
        finished_at=render_time(now_s),
    )


def _has_trained(child: Child, observed: Observed, failures: Mapping[int, Failure]) -> bool:
    """Return whether the output folder has worked before: then a storage failure is not the user's mistake."""
    previous, seen = observed.status, observed.checkpoint or observed.progress
    is_saved = previous.checkpoint is not None or seen is not None and seen.event in ("checkpoint", "resumed")
    earlier = (failure for failure in failures.values() if failure.attempt < child.attempt)
    return child.run == TRAINING_RUN and (is_saved or any(is_storage(failure) for failure in earlier))


def was_seen(observed: Observed) -> bool:
    """Return whether the child of the newest attempt in the status was ever seen."""
    previous = observed.status
    records = (previous.child, observed.created)
    on_record = any(child is not None and child.attempt >= previous.attempt for child in records)
    return on_record or any(child.attempt >= previous.attempt for child in observed.children)
