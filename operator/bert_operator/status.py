"""From facts to the status that people and machines read: phase, conditions, attempt, stage, failures. Pure.

It decides nothing; ``plan`` does, and hands its verdict in.
"""

from __future__ import annotations

from dataclasses import dataclass

from bert_operator.api.conditions import ConditionType, Reason
from bert_operator.api.job_status import (
    MAX_FAILURES,
    MAX_MESSAGE,
    TERMINAL_PHASES,
    Condition,
    Failure,
    JobStatus,
    Phase,
)
from bert_operator.names import PREPARE_RUN
from bert_operator.progress import ProgressRecord
from bert_operator.timestamps import render_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Where the job stands, and why."""

    phase: Phase
    reason: Reason
    message: str = ""
    """A sentence for people; empty: the reason's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a job once its children and its last status are put together."""

    attempt: int
    """Newest attempt, the one that is about to be created included."""
    run: str | None
    completed_runs: tuple[str, ...]
    failures: tuple[Failure, ...]
    progress: ProgressRecord | None
    started: bool
    """Whether a child was created or is about to be."""


def describe(previous: JobStatus, facts: Facts, verdict: Verdict, *, generation: int | None, now_s: float) -> JobStatus:
    """Return the status to write. Times of the previous one are kept where nothing changed."""
    now = render_time(now_s)
    start_time = previous.start_time or (now if facts.started else None)
    completion_time = previous.completion_time or (now if verdict.phase in TERMINAL_PHASES else None)
    return JobStatus(
        observed_generation=generation,
        phase=verdict.phase,
        run=facts.run,
        stage=_stage(previous, facts),
        attempt=facts.attempt,
        completed_runs=facts.completed_runs,
        conditions=_conditions(previous, facts, verdict, generation, now),
        failures=facts.failures[-MAX_FAILURES:],
        start_time=start_time,
        completion_time=completion_time,
    )


def _stage(previous: JobStatus, facts: Facts) -> str | None:
    """Return the stage of the newest attempt; a line of an earlier attempt does not count."""
    progress = facts.progress
    if progress is not None and progress.stage and progress.attempt == facts.attempt:
        return progress.stage[:63]
    return previous.stage if previous.attempt == facts.attempt else None


def _conditions(
    previous: JobStatus, facts: Facts, verdict: Verdict, generation: int | None, now: str
) -> tuple[Condition, ...]:
    conditions = {condition.type: condition for condition in previous.conditions}

    def say(kind: ConditionType, is_true: bool, reason: Reason, message: str = "") -> None:
        status = "True" if is_true else "False"
        before = conditions.get(kind)
        conditions[kind] = Condition(
            type=kind.value,
            status="True" if is_true else "False",
            reason=reason.value,
            message=(message or reason.sentence)[:MAX_MESSAGE],
            last_transition_time=before.last_transition_time if before and before.status == status else now,
            observed_generation=generation,
        )

    if PREPARE_RUN in facts.completed_runs:
        say(ConditionType.PREPARED, True, Reason.DATASET_COMPLETE)
    runs = verdict.reason in (
        Reason.CHILD_RUNNING,
        Reason.STOPPING_ON_REQUEST,
        Reason.STOPPING_AT_DEADLINE,
        Reason.STOPPING_DUPLICATES,
    )
    say(ConditionType.RUNNING, runs, verdict.reason, verdict.message)
    match verdict.phase:
        case "Stopped":
            say(ConditionType.STOPPED, True, verdict.reason, verdict.message)
        case "Succeeded":
            say(ConditionType.SUCCEEDED, True, verdict.reason, verdict.message)
        case "Failed":
            say(ConditionType.FAILED, True, verdict.reason, verdict.message)
    if verdict.phase != "Stopped" and ConditionType.STOPPED in conditions:
        say(ConditionType.STOPPED, False, Reason.RESUMED)
    return tuple(conditions.values())
