"""The state machine: what to create, stop and write next, and when to requeue.

``plan`` is a function of the job, the observed state and the time; it has no side effects, reads no clock and keeps no
state. Executors carry a plan out in this order: status, stops, creation. It is level-triggered and idempotent: once
carried out, the next plan is empty, so it may be called at any time and any number of times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.schema.conditions import BlockerReason, FailureReason, Reason
from bert_operator.api.schema.status import TERMINAL_PHASES, ChildRef, Failure, JobStatus
from bert_operator.state import status
from bert_operator.state.bad_nodes import find_bad_nodes
from bert_operator.state.budgets import (
    back_off_s,
    is_storage,
    max_unconfirmed,
    num_counted,
    since_checkpoint,
    since_confirmed_progress,
    since_long_run,
)
from bert_operator.state.deadlines import (
    earliest,
    seconds_left,
    seconds_to_live,
    seconds_to_reach_workers,
    seconds_to_start,
)
from bert_operator.state.failures import list_failures, was_observed
from bert_operator.state.findings import find_findings
from bert_operator.state.observed import Blocker, Child, Observed
from bert_operator.state.queues import describe_queued, find_queue
from bert_operator.state.results import add_results, describe_results
from bert_operator.state.runs import ChildSpec, Run, list_runs
from bert_operator.state.status import Facts, Verdict
from bert_operator.state.stop_grace import raise_grace
from bert_operator.state.volumes import describe_volume
from bert_operator.timestamps import parse_time, render_time

SAME_TIME_S = 1.0
"""Clocks that differ by less agree: timestamps are cut to whole seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Actions, in this order: write the status, stop and remove children, create a child, delete the job."""

    status: JobStatus
    stop: tuple[Child, ...] = ()
    """Ask them to write a checkpoint and exit."""
    remove: tuple[Child, ...] = ()
    """Ended children of the same run; the next attempt is created once they are gone."""
    create: ChildSpec | None = None
    delete_job: bool = False
    """The job has outlived its TTL."""
    requeue_after_s: float | None = None
    """Seconds until time alone changes the plan; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A decision, before it is put into a status."""

    verdict: Verdict
    stop: tuple[Child, ...] = ()
    remove: tuple[Child, ...] = ()
    create: ChildSpec | None = None
    requeue_after_s: float | None = None


def plan(job: BertPretrainJob, observed: Observed, now_s: float) -> Plan:
    """Plan the next actions for a job.

    Args:
        job: A valid job.
        observed: Its state.
        now_s: Seconds since 1970, by the API server's clock in a cluster. Later times in the status are replaced by
            it: a clock that was ahead costs one back-off, not the hours until its times are reached.
    """
    observed = replace(observed, status=_without_future(observed.status, now_s))
    active = [child for child in observed.children if child.is_active]
    if observed.status.phase in TERMINAL_PHASES:
        # A terminal phase is never left: a late event must not restart a job that was reported as finished. Only what
        # still runs is stopped, and the TTL is awaited.
        left_s = seconds_to_live(job, observed.status, now_s)
        return Plan(
            status=observed.status,
            stop=_not_stopping([child for child in observed.children if child.is_active or child.is_held]),
            delete_job=left_s is not None and left_s <= 0,
            requeue_after_s=left_s,
        )
    # Whoever wants the job stopped has it stopped by the way that every child takes, and told as that.
    candidates = [] if observed.stop_requested else active
    ends = {child: _why_given_up(job, observed, child, now_s) for child in candidates}
    failed = {child: end for child, end in ends.items() if end is not None}
    given_up = list(failed)
    observed = replace(observed, children=tuple(failed.get(child, child) for child in observed.children))
    active = [child for child in active if child not in given_up]
    # The status outlives the cache: a child whose outcome it has is over, even if a late watch still shows it running.
    over = [child for child in active if observed.is_over(child)]
    active = [child for child in active if child not in over]
    facts = _gather(job, observed, now_s)
    step = _decide(job, observed, facts, active, now_s)
    if step.stop and step.verdict.phase == "Stopping":
        # In the status before it is stopped: its attempt number must not be reused once it is gone.
        facts = replace(facts, child=max(active, key=lambda child: child.attempt).ref or facts.child)
    if step.create is not None:
        facts = replace(facts, attempt=step.create.attempt, run=step.create.run, started=True)
    new = status.describe(observed.status, facts, step.verdict, generation=job.metadata.generation, now_s=now_s)
    left_s = seconds_to_live(job, new, now_s) if new.phase in TERMINAL_PHASES else step.requeue_after_s
    # At once, and not when the next attempt is due: its workers may go on.
    held = [child for child in observed.children if child.is_held]
    left = [child for child in (*given_up, *held) if child.ref not in [other.ref for other in step.remove]]
    # Nobody has seen it end: another operator, which did not know that it had been there, may have made it once more.
    lost = {failure.attempt for failure in observed.status.failures if failure.reason == FailureReason.LOST}
    found_again = [child for child in over if child.attempt in lost]
    stop = (*step.stop, *_not_stopping(left), *_not_stopping(found_again))
    return Plan(status=new, stop=stop, remove=step.remove, create=step.create, requeue_after_s=left_s)


def _gather(job: BertPretrainJob, observed: Observed, now_s: float) -> Facts:
    """Merge the last status with the children; where they overlap, the status wins, since it is already published."""
    previous = observed.status
    children = sorted(observed.children, key=lambda child: child.attempt)
    record = observed.checkpoint or observed.progress
    newest_saved = status.newest_checkpoint(previous, record)
    # What it took is of no use in a list of hundreds.
    checkpoint = newest_saved and newest_saved.model_copy(update={"seconds": None, "stop_seconds": None})
    failures = list_failures(job.spec, observed, checkpoint, now_s)
    given_s = job.spec.run_policy.stop_grace_seconds
    raised_s = raise_grace(given_s, previous.stop_grace_seconds, newest_saved, observed.max_grace_s)
    done = [child.run for child in children if child.state == "Succeeded"]
    newest = children[-1] if children else None
    # An older child than the status knows is a leftover, as after a conflict between two operators.
    newer = newest if newest is not None and newest.attempt >= previous.attempt else None
    return Facts(
        namespace=job.metadata.namespace,
        # Children count as well: a status that was lost must not lead to a number that is taken.
        attempt=max([previous.attempt, *(child.attempt for child in children)]),
        run=newer.run if newer else previous.run,
        completed_runs=tuple(dict.fromkeys([*previous.completed_runs, *done])),
        failures=failures,
        progress=observed.progress,
        checkpoint=record,
        results=add_results(previous.results, observed.results, [stage.name for stage in job.spec.stages]),
        started=bool(children) or previous.attempt > 0,
        child=_child_worth_writing(previous, newer),
        queue=find_queue(previous, newer),
        image=previous.image or next((child.image for child in children if child.image is not None), None),
        blocker=newest.blocker if newest is not None and newest.is_active else observed.blocker,
        waits_for_workers=newest is not None and observed.waits_for_workers(newest),
        findings=find_findings(observed, newest, newest_saved, max(given_s, raised_s or 0)),
        stop_grace_s=raised_s,
        storage_blocker=_storage_blocker(job, failures),
    )


def _storage_blocker(job: BertPretrainJob, failures: tuple[Failure, ...]) -> Blocker | None:
    if not failures or not is_storage(failures[-1]):
        return None
    last = failures[-1]
    told = last.message or FailureReason.STORAGE_FAILED.sentence
    where = describe_volume(job.spec, told)
    message = f"{last.run}, attempt {last.attempt}{f', {where}' if where else ''}: {told}"
    return Blocker(reason=BlockerReason.STORAGE_FAILED, message=message)


def _is_silent(child: Child, observed: Observed) -> bool:
    """Return whether a running child's launcher writes nothing any more: then no end of it will ever be reported."""
    silence = observed.silence
    return silence is not None and child.state == "Running" and child.attempt == silence.attempt


def _why_given_up(job: BertPretrainJob, observed: Observed, child: Child, now_s: float) -> Child | None:
    """Return a child that can only be ended as one that has failed, with the reason; None if it goes on."""
    left_s = seconds_to_reach_workers(job, observed, child, now_s)
    if child.lost:
        reason, message = child.reason or FailureReason.KILLED.value, child.lost
    elif left_s is not None and left_s <= 0:
        reason, message = FailureReason.WORKERS_UNREACHABLE.value, _describe_unreached(job, observed)
    elif _is_silent(child, observed) and job.spec.run_policy.on_hang != "Notify":
        reason, message = FailureReason.HUNG.value, _describe_silence(observed)
    else:
        return None
    return replace(child, state="Failed", reason=reason, message=message)


def _describe_unreached(job: BertPretrainJob, observed: Observed) -> str:
    missing = observed.unreached.text("message") if observed.unreached is not None else None
    return (
        f"All pods have run for {job.spec.mpi.worker_wait_seconds} s, and the launcher still waits for "
        f"{missing or 'its workers'}. Next: see that names resolve and that no network policy keeps the launcher from "
        "port 2222 of the workers; where workers take longer to start, raise mpi.workerWaitSeconds"
    )


def _describe_silence(observed: Observed) -> str:
    seconds = observed.silence.seconds if observed.silence is not None else 0
    return (
        f"The log is silent for {seconds} s, longer than the launcher promises: its pod or its node is "
        "stopped or frozen"
    )


def _without_future(previous: JobStatus, now_s: float) -> JobStatus:
    """Return a status without times in the future, which a clock that was ahead has written."""
    now, latest_s = render_time(now_s), now_s + SAME_TIME_S
    failures = tuple(
        failure.model_copy(update={"finished_at": now}) if parse_time(failure.finished_at) > latest_s else failure
        for failure in previous.failures
    )
    ahead = [
        field
        for field in ("start_time", "completion_time", "phase_since")
        if (text := getattr(previous, field)) is not None and parse_time(text) > latest_s
    ]
    if failures == previous.failures and not ahead:
        return previous
    return previous.model_copy(update={"failures": failures, **dict.fromkeys(ahead, now)})


def _child_worth_writing(previous: JobStatus, newest: Child | None) -> ChildRef | None:
    """Return the child for the status. One that is merely pending is not worth an extra status write."""
    if newest is None or newest.ref is None:
        return previous.child
    merely_waits = newest.state == "Pending" and newest.blocker is None and not newest.stopping
    return previous.child if merely_waits else newest.ref


def _decide(job: BertPretrainJob, observed: Observed, facts: Facts, active: list[Child], now_s: float) -> _Step:
    """Return the first decision that applies, in order of urgency."""
    run = next((run for run in list_runs(job) if run.name not in facts.completed_runs), None)
    left_s = seconds_left(job, observed.status, now_s)
    # Before the deadline: a job whose last run completed in time has succeeded, however late that is seen.
    final = _final_verdict(job, facts, run)
    if active:
        return _supervise(job, observed, active, final, left_s, now_s)
    if final is not None:
        return _Step(verdict=final)
    if observed.status.reason == Reason.STOPPING_AT_START_DEADLINE:
        # The children are gone, and with them the reason: only the status remembers why they were stopped.
        message = observed.status.message or ""
        return _Step(verdict=Verdict(phase="Failed", reason=Reason.START_DEADLINE_EXCEEDED, message=message))
    if left_s is not None and left_s <= 0:
        deadline_s = job.spec.run_policy.active_deadline_seconds
        message = f"The job was not finished after {deadline_s} s"
        return _Step(verdict=Verdict(phase="Failed", reason=Reason.DEADLINE_EXCEEDED, message=message))
    if observed.stop_requested:
        return _Step(verdict=Verdict(phase="Stopped", reason=Reason.STOPPED_ON_REQUEST), requeue_after_s=left_s)
    assert run is not None, "a job without remaining runs has a final verdict"
    return _start(run, observed, facts, left_s, now_s)


def _supervise(
    job: BertPretrainJob,
    observed: Observed,
    active: list[Child],
    final: Verdict | None,
    left_s: float | None,
    now_s: float,
) -> _Step:
    """Decide while children are active: stop all of them, stop the older ones, or let them run."""
    newest = _still_running(max(active, key=lambda child: child.attempt), observed.status)
    is_newest_of_all = newest.attempt >= observed.status.attempt
    late_in_s = seconds_to_start(job, newest, now_s) if is_newest_of_all else None
    if stopping := _reason_to_stop(observed, newest, final, left_s, late_in_s):
        after_s = left_s if stopping.reason == Reason.STOPPING_TO_RESTART else None
        return _Step(verdict=stopping, stop=_not_stopping(active), requeue_after_s=after_s)
    # Two children write into one output folder: the newest one stays, since its number is in the status.
    older = [child for child in active if child.attempt < newest.attempt]
    if older:
        verdict = Verdict(phase="Running", reason=Reason.STOPPING_DUPLICATES)
    elif newest.state == "Queued":
        verdict = describe_queued(newest, observed.status)
    elif newest.state == "Pending":
        # The reason from its creation stays until it runs; another one would be another status write.
        is_retry = observed.status.reason == Reason.RETRYING_AT_ONCE
        verdict = Verdict(phase="Pending", reason=Reason.RETRYING_AT_ONCE if is_retry else Reason.WAITING_TO_START)
    else:
        verdict = _running(observed, newest)
    reach_s = seconds_to_reach_workers(job, observed, newest, now_s)
    return _Step(verdict=verdict, stop=_not_stopping(older), requeue_after_s=earliest(left_s, late_in_s, reach_s))


def _running(observed: Observed, newest: Child) -> Verdict:
    """Return that the newest child runs, and what is known against it."""
    hang = observed.hang
    if hang is not None and hang.attempt == newest.attempt:
        return Verdict(phase="Running", reason=Reason.NO_PROGRESS, message=hang.text("message") or "")
    if _is_silent(newest, observed):
        return Verdict(phase="Running", reason=Reason.NO_PROGRESS, message=_describe_silence(observed))
    return Verdict(phase="Running", reason=Reason.CHILD_RUNNING)


def _still_running(newest: Child, previous: JobStatus) -> Child:
    """Return a child that was running as running: if some of its pods are missing it is ending, not starting."""
    was_running = previous.phase == "Running" and previous.attempt == newest.attempt
    return replace(newest, state="Running") if was_running and newest.state == "Pending" else newest


def _reason_to_stop(
    observed: Observed, newest: Child, final: Verdict | None, left_s: float | None, late_in_s: float | None
) -> Verdict | None:
    """Return why all active children have to stop, None if they do not."""
    if observed.stop_requested:
        return Verdict(phase="Stopping", reason=Reason.STOPPING_ON_REQUEST)
    if final is not None:
        return Verdict(phase="Stopping", reason=Reason.STOPPING_DUPLICATES)
    previous = observed.status
    if previous.phase == "Stopping" and previous.reason == Reason.STOPPING_AT_START_DEADLINE:
        return Verdict(phase="Stopping", reason=Reason.STOPPING_AT_START_DEADLINE, message=previous.message or "")
    if left_s is not None and left_s <= 0:
        return Verdict(phase="Stopping", reason=Reason.STOPPING_AT_DEADLINE)
    if previous.phase in ("Stopping", "Stopped") and newest.attempt <= previous.attempt:
        # A stop is never withdrawn: the child may have received it already. It is restarted afterwards.
        return Verdict(phase="Stopping", reason=Reason.STOPPING_TO_RESTART)
    if late_in_s is not None and late_in_s <= 0:
        message = newest.blocker.message if newest.blocker else ""
        return Verdict(phase="Stopping", reason=Reason.STOPPING_AT_START_DEADLINE, message=message)
    return None


def _final_verdict(job: BertPretrainJob, facts: Facts, run: Run | None) -> Verdict | None:
    """Return the job's final verdict, whatever is still running; None if it goes on."""
    if run is None:
        results = describe_results(facts.results)
        message = f"{Reason.ALL_STAGES_DONE.sentence}{results}" if results else ""
        return Verdict(phase="Succeeded", reason=Reason.ALL_STAGES_DONE, message=message)
    # Budgets are per run: failures of data preparation do not use up those of training.
    failures = [failure for failure in facts.failures if failure.run == run.name]
    if not failures:
        return None
    last = failures[-1]
    message = f"{last.run}, attempt {last.attempt}: {last.message or last.reason}"
    if any(failure.kind == "InvalidInput" for failure in failures):
        return Verdict(phase="Failed", reason=Reason.INVALID_INPUT, message=message)
    policy = job.spec.run_policy
    if sum(failure.kind == "Application" for failure in failures) > policy.application_retries:
        return Verdict(phase="Failed", reason=Reason.APPLICATION_RETRIES_SPENT, message=message)
    in_vain = since_checkpoint(failures)
    if num_counted(in_vain) > policy.infrastructure_retries:
        count = sum(failure.kind == "Infrastructure" for failure in in_vain)
        message = f"{_say_failures(count)} without a new checkpoint in between. {message}"
        return Verdict(phase="Failed", reason=Reason.INFRASTRUCTURE_RETRIES_SPENT, message=message)
    unproven = since_confirmed_progress(failures)
    if num_counted(unproven) > max_unconfirmed(policy.infrastructure_retries):
        count = sum(failure.kind == "Infrastructure" for failure in unproven)
        message = (
            f"{_say_failures(count)}, and no attempt has told (event=resumed) that it went on from what those "
            f"before it have reported as saved. {message}"
        )
        return Verdict(phase="Failed", reason=Reason.INFRASTRUCTURE_RETRIES_SPENT, message=message)
    return None


def _say_failures(count: int) -> str:
    return f"{count} failures in a row" if count > 1 else "1 failure"


def _start(run: Run, observed: Observed, facts: Facts, left_s: float | None, now_s: float) -> _Step:
    """Create the next attempt at a run, or wait: for the back-off, or until the previous child is gone."""
    failures = since_long_run([failure for failure in facts.failures if failure.run == run.name])
    # From the failure on, not from now: a restart of the operator must not prolong the wait.
    wait_s = back_off_s(failures) - (now_s - parse_time(failures[-1].finished_at)) if failures else 0.0
    if wait_s > 0:
        message = f"Attempt {failures[-1].attempt} failed ({failures[-1].reason}); {len(failures)} so far"
        verdict = Verdict(phase="Pending", reason=Reason.BACKING_OFF, message=message)
        return _Step(verdict=verdict, requeue_after_s=earliest(wait_s, left_s))
    # Of this run only: children of completed runs stay, with their logs, until the job is deleted.
    leftovers = tuple(child for child in observed.children if child.run == run.name and child.ref is not None)
    if leftovers:
        held = next((child.describe_hold() for child in leftovers if child.held_by), "")
        message = f"{Reason.REMOVING_PREVIOUS.sentence} {held}" if held else ""
        verdict = Verdict(phase="Pending", reason=Reason.REMOVING_PREVIOUS, message=message)
        return _Step(verdict=verdict, remove=_not_stopping(list(leftovers)), requeue_after_s=left_s)
    attempt = facts.attempt if _was_never_created(observed, facts) else facts.attempt + 1
    # Not after a stop: that attempt did not fail, whatever those before it did.
    is_at_once = len(failures) == 1 and back_off_s(failures) == 0.0 and failures[0].attempt == attempt - 1
    reason = Reason.RETRYING_AT_ONCE if is_at_once else Reason.WAITING_TO_START
    avoided = find_bad_nodes(facts.failures)
    child = ChildSpec(
        run=run.name,
        attempt=attempt,
        stages=run.stages,
        ranks=run.ranks,
        avoided_nodes=avoided,
        image=facts.image,
        stop_grace_s=facts.stop_grace_s,
    )
    return _Step(verdict=Verdict(phase="Pending", reason=reason), create=child, requeue_after_s=left_s)


def _was_never_created(observed: Observed, facts: Facts) -> bool:
    """Return whether the newest attempt is in the status but has no child: then its number is used again.

    Its child may exist all the same, unseen; creating it twice is harmless, since an attempt's child has one name.
    """
    previous = observed.status
    ended = {failure.attempt for failure in facts.failures}
    return (
        previous.attempt > 0
        and previous.attempt == facts.attempt
        and not (was_observed(observed) or previous.attempt in ended or previous.run in facts.completed_runs)
    )


def _not_stopping(children: list[Child]) -> tuple[Child, ...]:
    return tuple(child for child in children if not child.stopping)
