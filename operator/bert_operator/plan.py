"""The state machine: what has to be created, stopped and written next, and when to look again.

``plan`` is a function of the job, of what is observed and of the time; it does nothing itself, reads no
clock and remembers nothing. Executors carry a plan out in this order: status, stops, creation. Carried out
and planned again, it comes out empty, so it may be called at any time and as often as one likes.
"""

from __future__ import annotations

from dataclasses import dataclass

from bert_operator import status
from bert_operator.api.conditions import FailureReason, Reason
from bert_operator.api.job_status import TERMINAL_PHASES, Failure, FailureKind, JobStatus
from bert_operator.api.v1alpha1 import BertPretrainJob
from bert_operator.names import PREPARE_RUN, TRAINING_RUN
from bert_operator.observe import EXIT_BAD_INPUT, Child, Observed
from bert_operator.status import Facts, Verdict
from bert_operator.timestamps import parse_time, render_time

FIRST_BACK_OFF_S = 10.0
MAX_BACK_OFF_S = 360.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive stages that one child does one after another."""

    name: str
    stages: tuple[str, ...]
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """A child that has to be created: one attempt at a run."""

    run: str
    attempt: int
    stages: tuple[str, ...]
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do, in this order: write the status, stop children, create a child."""

    status: JobStatus
    stop: tuple[Child, ...] = ()
    """To be told to write a checkpoint and leave."""
    create: ChildSpec | None = None
    look_again_in_s: float | None = None
    """Seconds until time alone changes something; empty: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A decision, before it is put into a status."""

    verdict: Verdict
    stop: tuple[Child, ...] = ()
    create: ChildSpec | None = None
    look_again_in_s: float | None = None


def list_runs(job: BertPretrainJob) -> tuple[Run, ...]:
    """Return a job's runs in order: data preparation in one process, then all else in all ranks."""
    prepare = tuple(stage.name for stage in job.spec.stages if stage.prepare is not None)
    others = tuple(stage.name for stage in job.spec.stages if stage.prepare is None)
    runs = (
        Run(name=PREPARE_RUN, stages=prepare, ranks=1),
        Run(name=TRAINING_RUN, stages=others, ranks=job.spec.ranks),
    )
    return tuple(run for run in runs if run.stages)


def plan(job: BertPretrainJob, observed: Observed, now_s: float) -> Plan:
    """Decide what comes next. now_s: seconds since 1970, not earlier than any time observed."""
    active = [child for child in observed.children if child.is_active]
    if observed.status.phase in TERMINAL_PHASES:
        return Plan(status=observed.status, stop=_untold(active))
    facts = _gather(observed, now_s)
    step = _decide(job, observed, facts, active, now_s)
    if step.create is not None:
        facts = _with_child(facts, step.create)
    new = status.describe(observed.status, facts, step.verdict, generation=job.metadata.generation, now_s=now_s)
    return Plan(status=new, stop=step.stop, create=step.create, look_again_in_s=step.look_again_in_s)


def _gather(observed: Observed, now_s: float) -> Facts:
    """Put the last status and the children together; where they overlap the status, written once, holds."""
    previous = observed.status
    children = sorted(observed.children, key=lambda child: child.attempt)
    failures = {failure.attempt: failure for failure in previous.failures}
    for child in children:
        kind = _failure_kind(child, stop_requested=observed.stop_requested)
        if kind is not None and child.attempt not in failures:
            failures[child.attempt] = _failure(child, kind, now_s)
    if _is_lost(observed, set(failures)):
        failures[previous.attempt] = _lost(previous, now_s)
    done = [child.run for child in children if child.state == "Succeeded"]
    newest = children[-1] if children else None
    newer = newest if newest is not None and newest.attempt >= previous.attempt else None
    return Facts(
        attempt=max([previous.attempt, *(child.attempt for child in children)]),
        run=newer.run if newer else previous.run,
        completed_runs=tuple(dict.fromkeys([*previous.completed_runs, *done])),
        failures=tuple(failures[attempt] for attempt in sorted(failures)),
        progress=observed.progress,
        started=bool(children) or previous.attempt > 0,
    )


def _decide(job: BertPretrainJob, observed: Observed, facts: Facts, active: list[Child], now_s: float) -> _Step:
    """Return the first decision that applies, in order of urgency."""
    run = next((run for run in list_runs(job) if run.name not in facts.completed_runs), None)
    left_s = _seconds_left(job, observed.status, now_s)
    ending = _ending(job, facts, run)
    if active:
        return _mind_children(observed, active, ending, left_s)
    if ending is not None:
        return _Step(verdict=ending)
    if left_s is not None and left_s <= 0:
        deadline_s = job.spec.run_policy.active_deadline_seconds
        message = f"The job was not done after {deadline_s} s"
        return _Step(verdict=Verdict(phase="Failed", reason=Reason.DEADLINE_EXCEEDED, message=message))
    if observed.stop_requested:
        return _Step(verdict=Verdict(phase="Stopped", reason=Reason.STOPPED_ON_REQUEST))
    assert run is not None, "a job without a run left has ended"
    return _start(run, facts, left_s, now_s)


def _mind_children(observed: Observed, active: list[Child], ending: Verdict | None, left_s: float | None) -> _Step:
    """Decide while something is running: stop all of it, stop the older ones, or let it run."""
    if observed.stop_requested:
        verdict = Verdict(phase="Stopping", reason=Reason.STOPPING_ON_REQUEST)
        return _Step(verdict=verdict, stop=_untold(active))
    if ending is not None:
        verdict = Verdict(phase="Stopping", reason=Reason.STOPPING_DUPLICATES)
        return _Step(verdict=verdict, stop=_untold(active))
    if left_s is not None and left_s <= 0:
        verdict = Verdict(phase="Stopping", reason=Reason.STOPPING_AT_DEADLINE)
        return _Step(verdict=verdict, stop=_untold(active))
    newest = max(active, key=lambda child: child.attempt)
    older = [child for child in active if child is not newest]
    if older:
        verdict = Verdict(phase="Running", reason=Reason.STOPPING_DUPLICATES)
    elif newest.state == "Pending":
        verdict = Verdict(phase="Pending", reason=Reason.WAITING_TO_START)
    else:
        verdict = Verdict(phase="Running", reason=Reason.CHILD_RUNNING)
    return _Step(verdict=verdict, stop=_untold(older), look_again_in_s=left_s)


def _ending(job: BertPretrainJob, facts: Facts, run: Run | None) -> Verdict | None:
    """Return how the job ends if it is decided, whatever may still be running."""
    if run is None:
        return Verdict(phase="Succeeded", reason=Reason.ALL_STAGES_DONE)
    failures = [failure for failure in facts.failures if failure.run == run.name]
    if not failures:
        return None
    last = failures[-1]
    told = f"{last.run}, attempt {last.attempt}: {last.message or last.reason}"
    if any(failure.kind == "InvalidInput" for failure in failures):
        return Verdict(phase="Failed", reason=Reason.INVALID_INPUT, message=told)
    policy = job.spec.run_policy
    for kind, retries, reason in (
        ("Application", policy.application_retries, Reason.APPLICATION_RETRIES_SPENT),
        ("Infrastructure", policy.infrastructure_retries, Reason.INFRASTRUCTURE_RETRIES_SPENT),
    ):
        if sum(failure.kind == kind for failure in failures) > retries:
            return Verdict(phase="Failed", reason=reason, message=told)
    return None


def _start(run: Run, facts: Facts, left_s: float | None, now_s: float) -> _Step:
    """Create the next attempt at a run, or wait for its turn."""
    failures = [failure for failure in facts.failures if failure.run == run.name]
    wait_s = _back_off(failures) - (now_s - parse_time(failures[-1].finished_at)) if failures else 0.0
    if wait_s > 0:
        message = f"Attempt {failures[-1].attempt} failed ({failures[-1].reason}); {len(failures)} so far"
        verdict = Verdict(phase="Pending", reason=Reason.BACKING_OFF, message=message)
        return _Step(verdict=verdict, look_again_in_s=wait_s if left_s is None else min(wait_s, left_s))
    reason = Reason.RETRYING_AT_ONCE if len(failures) == 1 else Reason.WAITING_TO_START
    child = ChildSpec(run=run.name, attempt=facts.attempt + 1, stages=run.stages, ranks=run.ranks)
    return _Step(verdict=Verdict(phase="Pending", reason=reason), create=child, look_again_in_s=left_s)


def _back_off(failures: list[Failure]) -> float:
    """Return the seconds from the last failure to the next attempt: none, 10, 20, 40 ... 360."""
    if len(failures) < 2:
        return 0.0
    doublings = min(len(failures) - 2, 16)
    return min(FIRST_BACK_OFF_S * 2.0**doublings, MAX_BACK_OFF_S)


def _seconds_left(job: BertPretrainJob, previous: JobStatus, now_s: float) -> float | None:
    deadline_s = job.spec.run_policy.active_deadline_seconds
    if deadline_s is None:
        return None
    started_at_s = parse_time(previous.start_time) if previous.start_time else now_s
    return started_at_s + deadline_s - now_s


def _failure_kind(child: Child, *, stop_requested: bool) -> FailureKind | None:
    """Return the budget that a child's end counts against; None where it is no failure."""
    asked = child.stopping or stop_requested
    if child.state == "Stopped":
        return None if asked else "Infrastructure"
    if child.state != "Failed":
        return None
    if child.exit_code == EXIT_BAD_INPUT:
        return "InvalidInput"
    if child.signal is not None or child.exit_code is None:
        return None if asked else "Infrastructure"
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
        exit_code=child.exit_code,
        signal=child.signal,
        message=child.message,
        finished_at=render_time(now_s if child.finished_at_s is None else child.finished_at_s),
    )


def _is_lost(observed: Observed, failed: set[int]) -> bool:
    """Tell whether the newest attempt on record left no trace; a job that was told to stop expects that."""
    previous = observed.status
    seen = any(child.attempt >= previous.attempt for child in observed.children)
    accounted = previous.attempt in failed or previous.run in previous.completed_runs
    expected = observed.stop_requested or previous.phase == "Stopped"
    return previous.attempt > 0 and not (seen or accounted or expected)


def _lost(previous: JobStatus, now_s: float) -> Failure:
    return Failure(
        run=previous.run or TRAINING_RUN,
        attempt=previous.attempt,
        kind="Infrastructure",
        reason=FailureReason.LOST.value,
        message=FailureReason.LOST.sentence,
        finished_at=render_time(now_s),
    )


def _untold(children: list[Child]) -> tuple[Child, ...]:
    return tuple(child for child in children if not child.stopping)


def _with_child(facts: Facts, child: ChildSpec) -> Facts:
    return Facts(
        attempt=child.attempt,
        run=child.run,
        completed_runs=facts.completed_runs,
        failures=facts.failures,
        progress=facts.progress,
        started=True,
    )
