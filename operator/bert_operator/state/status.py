"""Renders the status of a job from facts and a verdict: phase, conditions, attempt, stage, failures. Pure.

It decides nothing; ``plan`` passes its verdict in. Equal facts must give an equal status: each difference from
the last one is a write to the API server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from bert_job.durations import render_duration
from bert_job.progress import ProgressRecord
from bert_operator.api.schema.conditions import FINDINGS, BlockerReason, ConditionType, Reason
from bert_operator.api.schema.status import (
    MAX_ATTEMPT_RUNS,
    MAX_FAILURES,
    MAX_FIGURES,
    MAX_MESSAGE,
    MAX_SAVE_SECONDS,
    OLDEST_OPERATOR,
    TERMINAL_PHASES,
    CheckpointStatus,
    ChildRef,
    Condition,
    Failure,
    JobStatus,
    Metric,
    Phase,
    Progress,
    QueueStatus,
    StageResult,
)
from bert_operator.names import CONTAINER, PREPARE_RUN, TRAINING_RUN
from bert_operator.state.bad_nodes import find_bad_nodes
from bert_operator.state.observed import Blocker, Finding
from bert_operator.state.phase_times import count_time
from bert_operator.timestamps import MAX_ESTIMATE_S, render_time

_FULL_MESSAGES = 16
"""Failures whose message is kept as it is."""
_SHORT_MESSAGE = 160
_WHILE_RUNNING = (BlockerReason.POD_NOT_READY, BlockerReason.POD_HELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Phase of the job, with reason and message."""

    phase: Phase
    reason: Reason
    message: str = ""
    """A sentence for people; empty: that of the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Known facts about a job, from its children and its last status."""

    namespace: str
    """The job's."""
    attempt: int
    """The newest attempt, including one that is about to be created."""
    run: str | None
    completed_runs: tuple[str, ...]
    failures: tuple[Failure, ...]
    progress: ProgressRecord | None
    started: bool
    """Whether a child was created or is about to be."""
    checkpoint: ProgressRecord | None = None
    """The newest record, if it is about a checkpoint."""
    results: tuple[StageResult, ...] = ()
    """The latest evaluation of every stage."""
    child: ChildRef | None = None
    """The newest child that was seen."""
    image: str | None = None
    """By digest, what the first attempt ran in."""
    queue: QueueStatus | None = None
    """Where the newest child waits, or what has admitted it."""
    blocker: Blocker | None = None
    """What keeps the next child, or the newest one, from running."""
    waits_for_workers: bool = False
    """Whether the newest child runs, and its launcher waits for its workers."""
    findings: Mapping[ConditionType, Finding] = field(default_factory=dict)
    """What is not as it should be while the newest child runs, by the condition that says so."""
    stop_grace_s: int | None = None
    """Grace period that the next attempt gets at least; None: as the job says."""
    storage_blocker: Blocker | None = None
    """Storage that ended the newest attempt, and would end the next one until it recovers."""


def describe(previous: JobStatus, facts: Facts, verdict: Verdict, *, generation: int | None, now_s: float) -> JobStatus:
    """Return the status to write; times of the previous one are kept if nothing else changed."""
    now = render_time(now_s)
    start_time = previous.start_time or (now if facts.started else None)
    completion_time = previous.completion_time or (now if verdict.phase in TERMINAL_PHASES else None)
    blocker = _blocker(previous, facts, verdict)
    phase_times, phase_since = count_time(previous, verdict.phase, facts.run, now)
    # A blocker explains more than "waiting to start": it is the status's reason and message while it lasts.
    return JobStatus(
        observed_generation=generation,
        phase=verdict.phase,
        reason=blocker.reason.value if blocker else verdict.reason.value,
        message=_cut(blocker.message if blocker else verdict.message or verdict.reason.sentence),
        min_operator_version=OLDEST_OPERATOR,
        # Not a fact: the freezer writes it before anything is created, and it must never be lost.
        frozen_hash=previous.frozen_hash,
        image=facts.image,
        run=facts.run,
        stage=None if verdict.phase == "Succeeded" else _stage(previous, facts),
        attempt=facts.attempt,
        attempt_run=_attempt_run(previous, facts),
        child=facts.child,
        queue=facts.queue,
        logs=_logs(facts),
        completed_runs=facts.completed_runs,
        progress=_held(_progress(previous, facts, now))
        if verdict.phase == "Queued"
        else _progress(previous, facts, now),
        checkpoint=newest_checkpoint(previous, facts.checkpoint),
        stop_grace_seconds=_stop_grace(previous, facts),
        results=facts.results,
        conditions=_conditions(previous, facts, verdict, blocker, generation, now),
        failures=_failures(facts.failures),
        avoided_nodes=find_bad_nodes(facts.failures),
        start_time=start_time,
        completion_time=completion_time,
        phase_since=phase_since,
        phase_times=phase_times,
    )


def describe_invalid(previous: JobStatus, message: str, *, generation: int | None, now_s: float) -> JobStatus:
    """Return the status of a job whose spec breaks rules; the history of earlier attempts is kept."""
    now = render_time(now_s)
    conditions = _Conditions(previous, generation, now)
    conditions.set(ConditionType.VALID, False, Reason.SPEC_INVALID, message)
    conditions.set(ConditionType.READY, False, Reason.SPEC_INVALID, message)
    conditions.set(ConditionType.STALLED, True, Reason.SPEC_INVALID, message)
    phase_times, phase_since = count_time(previous, "Invalid", previous.run, now)
    return previous.model_copy(
        update={
            "observed_generation": generation,
            "min_operator_version": OLDEST_OPERATOR,
            "phase": "Invalid",
            "reason": Reason.SPEC_INVALID.value,
            "message": _cut(message),
            "conditions": conditions.all(),
            "phase_since": phase_since,
            "phase_times": phase_times,
        }
    )


def describe_blocked(previous: JobStatus, blocker: Blocker, *, generation: int | None, now_s: float) -> JobStatus:
    """Return the status of a started job that cannot be read any more: the last one, and the condition Blocked."""
    conditions = _Conditions(previous, generation, render_time(now_s))
    conditions.set(ConditionType.BLOCKED, True, blocker.reason, blocker.message)
    conditions.set(ConditionType.READY, False, blocker.reason, blocker.message)
    return previous.model_copy(update={"conditions": conditions.all()})


def _blocker(previous: JobStatus, facts: Facts, verdict: Verdict) -> Blocker | None:
    """Return what to report as Blocked: nothing while the job is paused or cleans up, since no child is wanted then."""
    if verdict.reason == Reason.BACKING_OFF:
        return facts.storage_blocker
    if verdict.reason == Reason.CHILD_RUNNING:
        # A running child can only be blocked by a pod that does not answer, or does not end; or, while its launcher
        # waits for its workers, by whatever keeps those.
        if facts.waits_for_workers:
            return facts.blocker
        return facts.blocker if facts.blocker is not None and facts.blocker.reason in _WHILE_RUNNING else None
    if verdict.phase == "Queued":
        return facts.blocker
    if verdict.reason not in (Reason.WAITING_TO_START, Reason.RETRYING_AT_ONCE):
        return None
    # Whether storage has recovered shows only once the next attempt runs.
    was_reported = any(item.reason == BlockerReason.STORAGE_FAILED for item in previous.conditions)
    return facts.blocker or (facts.storage_blocker if was_reported else None)


def _cut(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 3]}..."


def _failures(failures: tuple[Failure, ...]) -> tuple[Failure, ...]:
    """Return the failures to keep: the full messages of hundreds of them would exceed etcd's object size limit."""
    # The newest failures are those that people read; of older ones only kind and reason are counted.
    older, newest = failures[-MAX_FAILURES:-_FULL_MESSAGES], failures[-_FULL_MESSAGES:]
    cut = (failure.model_copy(update={"message": failure.message[:_SHORT_MESSAGE]}) for failure in older)
    return (*cut, *newest)


def _logs(facts: Facts) -> str | None:
    """Return the command that follows the newest child's log, independent of kubectl's current namespace.

    It is the log of the child's only pod, or of its launcher's; local processes have none.
    """
    child = facts.child
    if child is None or child.kind == "Process":
        return None
    name = f"{child.name}-launcher" if child.kind == "MPIJob" else child.name
    # By its container's name: others may add theirs, and kubectl would take the first one.
    return f"kubectl logs -f -n {facts.namespace} job/{name} -c {CONTAINER}"


def _progress(previous: JobStatus, facts: Facts, now: str) -> Progress | None:
    """Return the progress of the newest attempt from its newest record; None before its first one."""
    before = previous.progress if previous.attempt == facts.attempt else None
    record = facts.progress
    progress = before
    # Records of an earlier attempt may still be the newest that were read.
    if record is not None and record.attempt == facts.attempt:
        if record.event == "progress":
            progress = _figures(record, now)
        elif record.event == "stage_started":
            progress = Progress(total_steps=record.count("steps"), last_updated_time=now)
    if progress is not None and TRAINING_RUN in facts.completed_runs:
        progress = _finished(progress)
    # The same figures again keep their time: a record is read every few seconds, and each difference is a write.
    if before is None or progress is None:
        return progress
    return (
        before if progress == before.model_copy(update={"last_updated_time": progress.last_updated_time}) else progress
    )


def _held(progress: Progress | None) -> Progress | None:
    """Return the progress of an attempt that a queue holds: how far it was, and nothing that says that it runs."""
    if progress is None:
        return None
    is_over = {"estimated_remaining_seconds", "eta", "sequences_per_second", "last_updated_time"}
    return progress.model_copy(update={**dict.fromkeys(is_over), "metrics": ()})


def _attempt_run(previous: JobStatus, facts: Facts) -> int | None:
    """Return which run of the newest attempt reports; None for its first one."""
    known = previous.attempt_run if previous.attempt == facts.attempt else None
    records = (record for record in (facts.progress, facts.checkpoint) if record and record.attempt == facts.attempt)
    told = (record.count("attempt_run") for record in records)
    # It only grows: the log that tells of an earlier run may be read later.
    return max((run for run in (known, *told) if run is not None and 1 < run <= MAX_ATTEMPT_RUNS), default=None)


def _figures(record: ProgressRecord, now: str) -> Progress:
    """Return the progress in a record."""
    step, total, left_s = record.count("step"), record.count("steps"), record.number("remaining_s")
    if left_s is not None and left_s > MAX_ESTIMATE_S:
        left_s = None
    rate, loss = record.number("sequences_per_s"), record.number("loss")
    figures = [(name, record.number(name)) for name in sorted(record.fields)]
    return Progress(
        step=step,
        total_steps=total,
        # Bounded: the record is untrusted, and the API server would reject the whole status.
        progress_percentage=min(100, 100 * step // total) if step is not None and total else None,
        estimated_remaining_seconds=None if left_s is None else max(0, round(left_s)),
        eta=None if left_s is None else render_duration(left_s),
        # As text: Kubernetes' API conventions advise against floating-point numbers.
        loss=None if loss is None else f"{loss:.4g}",
        sequences_per_second=None if rate is None else f"{rate:.4g}",
        # As long and as many as the schema of the status allows: the record is untrusted here, too.
        metrics=tuple(Metric(name=name[:63], value=f"{value:.6g}") for name, value in figures if value is not None)[
            :MAX_FIGURES
        ],
        last_updated_time=now,
    )


def _finished(progress: Progress) -> Progress:
    """Return the progress of a completed run: its last steps are not reported as an interval of their own."""
    return progress.model_copy(
        update={
            "step": progress.step if progress.total_steps is None else progress.total_steps,
            "progress_percentage": 100,
            "estimated_remaining_seconds": 0,
            "eta": None,
        }
    )


def newest_checkpoint(previous: JobStatus, record: ProgressRecord | None) -> CheckpointStatus | None:
    """Return the newest checkpoint of a job: that of the newest record, if it is about one, else the last known."""
    if record is None or record.event not in ("checkpoint", "resumed") or record.stage is None:
        return previous.checkpoint
    step, known = record.count("step"), previous.checkpoint
    if step is None:
        return known
    return CheckpointStatus(
        stage=record.stage[:63],
        step=max(0, step),
        # A run that resumes measures nothing; what was known until then is not wrong for that.
        seconds=_seconds(record, "seconds", known.seconds if known else None),
        stop_seconds=_seconds(record, "stop_s", known.stop_seconds if known else None),
    )


def _seconds(record: ProgressRecord, key: str, known: int | None) -> int | None:
    """Return a time of a record in whole seconds, rounded up; what is known where it has none that can be true."""
    found = record.number(key)
    return known if found is None or not 0 <= found <= MAX_SAVE_SECONDS else math.ceil(found)


def _stop_grace(previous: JobStatus, facts: Facts) -> int | None:
    """Return what attempts get at least: it is raised where one is created, so that the status says what pods have."""
    return facts.stop_grace_s if facts.attempt > previous.attempt else previous.stop_grace_seconds


def _stage(previous: JobStatus, facts: Facts) -> str | None:
    """Return the stage of the newest attempt; records of earlier attempts do not count."""
    progress = facts.progress
    if progress is not None and progress.stage and progress.attempt == facts.attempt:
        return progress.stage[:63]
    return previous.stage if previous.attempt == facts.attempt else None


class _Conditions:
    """Conditions by type; lastTransitionTime changes only with the status of a condition, as API conventions ask."""

    def __init__(self, previous: JobStatus, generation: int | None, now: str) -> None:
        self._known = {condition.type: condition for condition in previous.conditions}
        self._generation, self._now = generation, now

    def __contains__(self, kind: ConditionType) -> bool:
        return kind in self._known

    def set(self, kind: ConditionType, is_true: bool, reason: Reason | BlockerReason, message: str = "") -> None:
        status = "True" if is_true else "False"
        before = self._known.get(kind)
        self._known[kind] = Condition(
            type=kind.value,
            status="True" if is_true else "False",
            reason=reason.value,
            message=_cut(message or reason.sentence),
            last_transition_time=before.last_transition_time if before and before.status == status else self._now,
            observed_generation=self._generation,
        )

    def all(self) -> tuple[Condition, ...]:
        return tuple(self._known.values())


def _conditions(
    previous: JobStatus, facts: Facts, verdict: Verdict, blocker: Blocker | None, generation: int | None, now: str
) -> tuple[Condition, ...]:
    conditions = _Conditions(previous, generation, now)
    # Valid and Blocked appear once they have something to report, and are then kept up to date: jobs that never had a
    # problem have short lists.
    if ConditionType.VALID in conditions:
        conditions.set(ConditionType.VALID, True, Reason.SPEC_ACCEPTED)
    if PREPARE_RUN in facts.completed_runs:
        conditions.set(ConditionType.PREPARED, True, Reason.DATASET_COMPLETE)
    runs = verdict.reason in (
        Reason.CHILD_RUNNING,
        Reason.NO_PROGRESS,
        Reason.STOPPING_ON_REQUEST,
        Reason.STOPPING_AT_DEADLINE,
        Reason.STOPPING_DUPLICATES,
        Reason.STOPPING_TO_RESTART,
    )
    conditions.set(ConditionType.RUNNING, runs, verdict.reason, verdict.message)
    if blocker is not None:
        conditions.set(ConditionType.BLOCKED, True, blocker.reason, blocker.message)
    elif ConditionType.BLOCKED in conditions and not (
        facts.storage_blocker and verdict.reason == Reason.REMOVING_PREVIOUS
    ):
        conditions.set(ConditionType.BLOCKED, False, BlockerReason.CLEARED)
    for kind in FINDINGS:
        finding = facts.findings.get(kind)
        if finding is not None:
            conditions.set(kind, True, finding.reason, finding.message)
        elif kind in conditions:
            conditions.set(kind, False, Reason.RECOVERED)
    _set_outcome(conditions, verdict)
    is_ready = verdict.phase in ("Running", "Stopped", "Succeeded")
    if blocker is not None and not is_ready:
        conditions.set(ConditionType.READY, False, blocker.reason, blocker.message)
    else:
        conditions.set(ConditionType.READY, is_ready, verdict.reason, verdict.message)
    return conditions.all()


def _set_outcome(conditions: _Conditions, verdict: Verdict) -> None:
    match verdict.phase:
        case "Stopped":
            conditions.set(ConditionType.STOPPED, True, verdict.reason, verdict.message)
        case "Succeeded":
            conditions.set(ConditionType.SUCCEEDED, True, verdict.reason, verdict.message)
        case "Failed":
            conditions.set(ConditionType.FAILED, True, verdict.reason, verdict.message)
            conditions.set(ConditionType.STALLED, True, verdict.reason, verdict.message)
    if verdict.phase != "Stopped" and ConditionType.STOPPED in conditions:
        conditions.set(ConditionType.STOPPED, False, Reason.RESUMED)
    if verdict.phase != "Failed" and ConditionType.STALLED in conditions:
        conditions.set(ConditionType.STALLED, False, Reason.SPEC_ACCEPTED)
