"""What counts as a failed attempt, and against which retry budget. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from bert_job.progress import ProgressRecord
from bert_operator.api.schema.bert_pretrain_job import JobSpec
from bert_operator.api.schema.conditions import FailureReason, Reason
from bert_operator.api.schema.status import MAX_MESSAGE, CheckpointStatus, Failure, FailureKind, JobStatus
from bert_operator.names import PREPARE_RUN, TRAINING_RUN
from bert_operator.state.budgets import is_storage
from bert_operator.state.observed import EXIT_BAD_INPUT, EXIT_INFRASTRUCTURE, Child, Observed
from bert_operator.state.unsaved import describe_unsaved
from bert_operator.timestamps import parse_time, render_time

_TAKEN_AWAY = frozenset(
    {
        FailureReason.EVICTED,
        FailureReason.DISRUPTED,
        FailureReason.POD_DELETED,
        FailureReason.KILLED,
        FailureReason.LOST,
        FailureReason.STOPPED_UNASKED,
    }
)
"""What ends an attempt from outside, however well it trains: how often it saves decides what that costs."""


def list_failures(
    spec: JobSpec, observed: Observed, checkpoint: CheckpointStatus | None, now_s: float
) -> tuple[Failure, ...]:
    """Return every failed attempt, oldest first: those in the status, and those of children that have ended since.

    Args:
        spec: The job's.
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
            failure = _failure(child, kind, now_s)
            failures[child.attempt] = _with_progress(failure, spec, observed, checkpoint)
    if _is_lost(observed, set(failures)):
        failures[previous.attempt] = _with_progress(_lost(previous, now_s), spec, observed, checkpoint)
    return tuple(failures[attempt] for attempt in sorted(failures))


def _with_progress(failure: Failure, spec: JobSpec, observed: Observed, checkpoint: CheckpointStatus | None) -> Failure:
    """Return a failure with how long the attempt ran, where it began, and how far all have come by then."""
    previous, reported = observed.status, observed.progress
    ran_s = 0
    if previous.phase == "Running" and previous.attempt == failure.attempt and previous.phase_since is not None:
        ran_s = max(0, int(parse_time(failure.finished_at) - parse_time(previous.phase_since)))
    if failure.run == PREPARE_RUN:
        own = reported if reported is not None and reported.attempt == failure.attempt else None
        saved, began = _place(own, "saved"), _place(own, "kept")
    else:
        saved, began = checkpoint, _place_of_resumed(observed, failure.attempt)
    earlier = [other.checkpoint for other in previous.failures if other.run == failure.run]
    has_saved = saved is not None and saved not in (began, *earlier)
    told = ""
    if failure.kind == "Infrastructure" and failure.reason in _TAKEN_AWAY and ran_s and not has_saved:
        told = describe_unsaved(spec, failure.run, previous.stage, ran_s)
    message = f"{failure.message.rstrip('.')}. {told}" if told and failure.message else failure.message or told
    return failure.model_copy(
        update={"checkpoint": saved, "resumed": began, "ran_seconds": ran_s, "message": message[:MAX_MESSAGE]}
    )


def _place_of_resumed(observed: Observed, attempt: int) -> CheckpointStatus | None:
    if observed.resumed is not None and observed.resumed.attempt == attempt:
        return _place(observed.resumed, "step")
    # The trainer says it once more with every checkpoint: the line of its start may not have been read.
    saved = observed.checkpoint
    own = saved if saved is not None and saved.attempt == attempt else None
    return _place(own, "resumed_step", "resumed_stage")


def _place(record: ProgressRecord | None, count: str, stage: str = "stage") -> CheckpointStatus | None:
    """Return how far a record says that a run is; None where it says nothing, or that it is at the beginning."""
    name = record.text(stage) if record is not None else None
    number = record.count(count) if record is not None else None
    return CheckpointStatus(stage=name[:63], step=number) if name and number is not None and number > 0 else None


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


def _failure(child: Child, kind: FailureKind, now_s: float) -> Failure:
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
        finished_at=render_time(now_s if child.finished_at_s is None else child.finished_at_s),
    )


def _is_lost(observed: Observed, failed: set[int]) -> bool:
    """Return whether the newest child in the status has disappeared, although nothing asked it to stop."""
    previous = observed.status
    # At least: another operator may have gone on to the next attempt.
    present = any(child.attempt >= previous.attempt for child in observed.children)
    accounted = previous.attempt in failed or previous.run in previous.completed_runs
    expected = observed.stop_requested or _are_all_stopped(previous)
    return previous.attempt > 0 and was_observed(observed) and not (present or accounted or expected)


def _lost(previous: JobStatus, now_s: float) -> Failure:
    return Failure(
        run=previous.run or TRAINING_RUN,
        attempt=previous.attempt,
        kind="Infrastructure",
        reason=FailureReason.LOST.value,
        message=FailureReason.LOST.sentence,
        finished_at=render_time(now_s),
    )


def _has_trained(child: Child, observed: Observed, failures: Mapping[int, Failure]) -> bool:
    """Return whether the output folder has worked before: then a storage failure is not the user's mistake."""
    previous, seen = observed.status, observed.checkpoint or observed.progress
    is_saved = previous.checkpoint is not None or seen is not None and seen.event in ("checkpoint", "resumed")
    earlier = (failure for failure in failures.values() if failure.attempt < child.attempt)
    return child.run == TRAINING_RUN and (is_saved or any(is_storage(failure) for failure in earlier))


def was_observed(observed: Observed) -> bool:
    """Return whether the child of the status' newest attempt was ever observed."""
    previous = observed.status
    records = (previous.child, observed.created)
    on_record = any(child is not None and child.attempt >= previous.attempt for child in records)
    return on_record or any(child.attempt >= previous.attempt for child in observed.children)
