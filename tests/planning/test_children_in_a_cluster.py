"""What the plan decides about children of a cluster: others may delete them, they wait, and they stay behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bert_operator.api.schema.conditions import BlockerReason
from bert_operator.api.schema.status import JobStatus
from bert_operator.state.observed import Blocker, Child, Observed
from bert_operator.state.plan import plan
from plan_inputs import JOB, NOW_S, TRAINING_ONLY, child, observed, reason_of, ref
from sample_job import PREPARE, sample_job


def with_policy(**policy: Any) -> Any:
    return sample_job(
        lambda spec: spec.update(runPolicy=policy, dataset={"path": "data"}, stages=spec["stages"][PREPARE + 1 :])
    )


def settled(job: Any, seen: Observed, now_s: float = NOW_S) -> JobStatus:
    """Return the status after a look, which a second look has to leave alone."""
    status = plan(job, seen, now_s).status
    again = plan(job, replace(seen, status=status), now_s)
    assert again.status == status
    return status


# Creation.


def test_an_attempt_whose_child_was_never_created_is_created_under_the_same_number() -> None:
    first = plan(TRAINING_ONLY, Observed(), NOW_S)
    again = plan(TRAINING_ONLY, Observed(status=first.status), NOW_S + 60)
    assert again.create == first.create
    assert again.status == first.status


def test_the_same_goes_for_a_later_attempt() -> None:
    first = plan(TRAINING_ONLY, observed(child(1, exit_code=1)), NOW_S)
    again = plan(TRAINING_ONLY, Observed(status=first.status), NOW_S + 60)
    assert again.create is not None
    assert again.create.attempt == 2
    assert again.status.failures == first.status.failures


def test_an_attempt_that_this_process_has_created_is_lost_when_it_is_gone() -> None:
    status = plan(TRAINING_ONLY, Observed(), NOW_S).status
    step = plan(TRAINING_ONLY, Observed(status=status, created=ref()), NOW_S)
    assert [failure.reason for failure in step.status.failures] == ["Lost"]
    assert step.create is not None
    assert step.create.attempt == 2


def test_a_child_that_merely_waits_is_not_worth_a_write() -> None:
    written = plan(TRAINING_ONLY, Observed(), NOW_S).status
    waits = child(state="Pending", ref=ref())
    assert plan(TRAINING_ONLY, Observed(status=written, children=(waits,)), NOW_S + 5).status == written
    retried = plan(TRAINING_ONLY, observed(child(1, exit_code=1)), NOW_S).status
    waits = child(2, state="Pending", ref=ref(2))
    assert plan(TRAINING_ONLY, Observed(status=retried, children=(waits,)), NOW_S + 5).status == retried


# Children that others delete.


def test_a_deletion_by_others_counts_once_as_a_failure_of_the_infrastructure() -> None:
    running = settled(TRAINING_ONLY, observed(child(state="Running", ref=ref())))
    leaving = child(state="Running", stopping=True, ref=ref())
    status = settled(TRAINING_ONLY, Observed(status=running, children=(leaving,)))
    assert (status.phase, status.failures) == ("Running", ())
    left = child(state="Stopped", stopping=True, exit_code=3, ref=ref())
    step = plan(TRAINING_ONLY, Observed(status=status, children=(left,)), NOW_S)
    assert [(failure.kind, failure.reason) for failure in step.status.failures] == [
        ("Infrastructure", "StoppedUnasked")
    ]
    gone = plan(TRAINING_ONLY, Observed(status=step.status), NOW_S)
    assert gone.status.failures == step.status.failures


def test_a_child_that_others_deleted_and_that_left_no_trace_counts_once_too() -> None:
    running = settled(TRAINING_ONLY, observed(child(state="Running", ref=ref())))
    step = plan(TRAINING_ONLY, Observed(status=running), NOW_S)
    assert [failure.reason for failure in step.status.failures] == ["Lost"]
    again = plan(TRAINING_ONLY, Observed(status=step.status), NOW_S)
    assert (again.create, again.status.failures) == (step.create, step.status.failures)


# Stops that are withdrawn.


def stopping() -> JobStatus:
    running = settled(TRAINING_ONLY, observed(child(state="Running", ref=ref())))
    seen = Observed(status=running, children=(child(state="Running", ref=ref()),), stop_requested=True)
    return plan(TRAINING_ONLY, seen, NOW_S).status


@pytest.mark.parametrize("is_stopping", [True, False])
def test_a_withdrawn_stop_is_completed_once_the_child_is_terminating(is_stopping: bool) -> None:
    leaving = child(state="Running", stopping=is_stopping, ref=ref())
    step = plan(TRAINING_ONLY, Observed(status=stopping(), children=(leaving,)), NOW_S)
    assert (step.status.phase, step.status.reason, step.create) == ("Stopping", "StoppingToRestart", None)
    assert step.stop == (() if is_stopping else (leaving,))
    gone = plan(TRAINING_ONLY, Observed(status=step.status), NOW_S)
    assert gone.create is not None
    assert (gone.create.attempt, gone.status.failures) == (2, ())


@pytest.mark.parametrize("end", [{"state": "Stopped", "exit_code": 3}, {"signal": 9}])
def test_what_left_on_request_is_no_failure_when_the_stop_is_withdrawn_before_it_is_gone(end: dict[str, Any]) -> None:
    left = child(stopping=True, ref=ref(), **end)
    status = settled(TRAINING_ONLY, Observed(status=stopping(), children=(left,)))
    assert (status.reason, status.failures) == ("RemovingPrevious", ())
    gone = plan(TRAINING_ONLY, Observed(status=status), NOW_S)
    assert gone.create is not None
    assert (gone.create.attempt, gone.status.failures) == (2, ())


def test_a_child_is_in_the_status_before_it_is_stopped() -> None:
    written = plan(TRAINING_ONLY, Observed(), NOW_S).status
    waits = child(state="Pending", ref=ref())
    step = plan(TRAINING_ONLY, Observed(status=written, children=(waits,), stop_requested=True), NOW_S)
    assert step.status.child == ref()
    # Its number is not used again, even by a process that has never seen it.
    gone = plan(TRAINING_ONLY, Observed(status=step.status), NOW_S)
    assert gone.create is not None
    assert gone.create.attempt == 2


def test_a_stop_of_what_was_only_written_down_creates_nothing() -> None:
    written = plan(TRAINING_ONLY, Observed(), NOW_S).status
    stopped = plan(TRAINING_ONLY, Observed(status=written, stop_requested=True), NOW_S)
    assert (stopped.status.phase, stopped.create) == ("Stopped", None)
    resumed = plan(TRAINING_ONLY, Observed(status=stopped.status), NOW_S)
    assert resumed.create is not None
    assert resumed.create.attempt == 1


# Waiting to start, and in a queue.


def waiting(since_s: float | None = NOW_S, **rest: Any) -> Child:
    return child(state="Pending", waiting_since_s=since_s, ref=ref(), **rest)


def test_a_start_deadline_requeues_the_job_and_ends_it() -> None:
    job = with_policy(startDeadlineSeconds=60)
    written = plan(job, Observed(), NOW_S).status
    assert plan(job, Observed(status=written, children=(waiting(),)), NOW_S + 20).requeue_after_s == 40
    unschedulable = Blocker(reason=BlockerReason.UNSCHEDULABLE, message="no node fits")
    late = waiting(blocker=unschedulable)
    step = plan(job, Observed(status=written, children=(late,)), NOW_S + 60)
    assert (step.stop, step.status.reason) == ((late,), "StoppingAtStartDeadline")
    # Nothing that happens while it leaves changes that.
    still = plan(job, Observed(status=step.status, children=(replace(late, state="Running"),)), NOW_S + 61)
    assert still.status.reason == "StoppingAtStartDeadline"
    after = plan(job, Observed(status=step.status), NOW_S + 70)
    assert (after.status.phase, after.status.reason) == ("Failed", "StartDeadlineExceeded")
    assert after.status.message == "no node fits"


def test_what_was_running_is_not_late_when_it_loses_a_pod() -> None:
    job = with_policy(startDeadlineSeconds=60)
    running = plan(job, observed(child(state="Running", ref=ref())), NOW_S).status
    step = plan(job, Observed(status=running, children=(waiting(),)), NOW_S + 3600)
    assert (step.status, step.stop) == (running, ())


def test_what_is_leaving_is_not_late() -> None:
    job = with_policy(startDeadlineSeconds=60)
    written = plan(job, Observed(), NOW_S).status
    step = plan(job, Observed(status=written, children=(waiting(stopping=True),)), NOW_S + 3600)
    assert step.status.phase == "Pending"


def test_time_in_a_queue_does_not_count_against_the_start_deadline() -> None:
    job = with_policy(startDeadlineSeconds=60)
    written = plan(job, Observed(), NOW_S).status
    queued = child(state="Queued", waiting_since_s=NOW_S, ref=ref())
    step = plan(job, Observed(status=written, children=(queued,)), NOW_S + 3600)
    assert (step.status.phase, step.status.reason, step.stop) == ("Queued", "Queued", ())
    let_go = plan(job, Observed(status=step.status, children=(waiting(None),)), NOW_S + 3600)
    assert (let_go.status.phase, let_go.requeue_after_s) == ("Pending", None)
    resumed = plan(job, Observed(status=step.status, children=(waiting(NOW_S + 3600),)), NOW_S + 3610)
    assert (resumed.status.phase, resumed.requeue_after_s) == ("Pending", 50)


def test_a_queue_may_take_a_running_child_back() -> None:
    running = settled(TRAINING_ONLY, observed(child(state="Running", ref=ref())))
    step = plan(TRAINING_ONLY, Observed(status=running, children=(child(state="Queued", ref=ref()),)), NOW_S)
    assert (step.status.phase, step.stop, step.status.failures) == ("Queued", (), ())


def test_a_blocker_is_reported_and_cleared() -> None:
    written = plan(TRAINING_ONLY, Observed(), NOW_S).status
    blocker = Blocker(reason=BlockerReason.QUOTA_EXCEEDED, message="quota. Next: ask for more")
    status = settled(TRAINING_ONLY, Observed(status=written, blocker=blocker))
    assert (status.phase, status.reason, status.message) == ("Pending", "QuotaExceeded", "quota. Next: ask for more")
    assert reason_of(status, "Blocked") == "QuotaExceeded"
    free = settled(TRAINING_ONLY, Observed(status=status, children=(waiting(),)))
    assert (free.reason, reason_of(free, "Blocked")) == ("WaitingToStart", None)


def test_a_refused_creation_is_no_blocker_while_the_job_is_suspended() -> None:
    children = (child(1, signal=9), child(2, signal=9))
    blocker = Blocker(reason=BlockerReason.QUOTA_EXCEEDED, message="quota")
    status = settled(TRAINING_ONLY, replace(observed(*children), blocker=blocker))
    assert status.reason == "BackingOff"


# Between attempts, and after the end.


def test_an_ended_child_is_removed_before_the_next_attempt_is_created() -> None:
    failed = child(1, exit_code=1, ref=ref())
    step = plan(TRAINING_ONLY, observed(failed), NOW_S)
    assert (step.remove, step.create, step.status.reason) == ((failed,), None, "RemovingPrevious")
    leaving = replace(failed, stopping=True)
    again = plan(TRAINING_ONLY, Observed(status=step.status, children=(leaving,)), NOW_S)
    assert (again.remove, again.create, again.status) == ((), None, step.status)
    gone = plan(TRAINING_ONLY, Observed(status=step.status), NOW_S)
    assert gone.create is not None
    assert gone.create.attempt == 2


def test_what_keeps_a_deleted_child_is_told() -> None:
    failed = child(1, exit_code=1, ref=ref())
    first = plan(TRAINING_ONLY, observed(failed), NOW_S)
    held = replace(failed, stopping=True, held_by=("example.com/held",))
    step = plan(TRAINING_ONLY, Observed(status=first.status, children=(held,)), NOW_S)
    assert (step.remove, step.create, step.status.reason) == ((), None, "RemovingPrevious")
    assert "is held by the finalizer example.com/held. Next: " in (step.status.message or "")
    assert plan(TRAINING_ONLY, Observed(status=step.status, children=(held,)), NOW_S).status == step.status


def test_the_child_of_a_complete_run_is_in_nobody_s_way() -> None:
    done = child(1, run="prepare", state="Succeeded", ref=ref())
    step = plan(JOB, observed(done), NOW_S)
    assert (step.remove, step.create is not None) == ((), True)


def test_a_child_whose_failure_is_on_record_is_removed_even_if_it_seems_to_run() -> None:
    step = plan(TRAINING_ONLY, observed(child(1, signal=9, ref=ref())), NOW_S)
    as_it_was = child(1, state="Running", ref=ref())
    late = plan(TRAINING_ONLY, Observed(status=step.status, children=(as_it_was,)), NOW_S)
    assert (late.remove, late.create, late.status.failures) == ((as_it_was,), None, step.status.failures)


def test_exit_code_4_counts_against_the_infrastructure() -> None:
    job = with_policy(applicationRetries=0, infrastructureRetries=1)
    step = plan(job, observed(child(exit_code=4)), NOW_S)
    assert step.create is not None
    assert [(failure.kind, failure.exit_code) for failure in step.status.failures] == [("Infrastructure", 4)]
    last = plan(job, observed(child(1, exit_code=4), child(2, exit_code=4)), NOW_S)
    assert reason_of(last.status, "Failed") == "InfrastructureRetriesSpent"


def test_a_failure_keeps_the_pod_and_the_node() -> None:
    status = plan(TRAINING_ONLY, observed(child(signal=9, pod="demo-a1-worker-3", node="node-7")), NOW_S).status
    assert [(failure.pod, failure.node) for failure in status.failures] == [("demo-a1-worker-3", "node-7")]


def test_a_job_is_deleted_when_its_ttl_is_over() -> None:
    job = with_policy(ttlSecondsAfterFinished=300)
    ended = plan(job, observed(child(state="Succeeded")), NOW_S)
    assert (ended.status.phase, ended.delete_job, ended.requeue_after_s) == ("Succeeded", False, 300)
    before = plan(job, Observed(status=ended.status), NOW_S + 299)
    assert (before.delete_job, before.requeue_after_s) == (False, 1)
    assert plan(job, Observed(status=ended.status), NOW_S + 300).delete_job


def test_a_job_without_a_ttl_stays() -> None:
    ended = plan(TRAINING_ONLY, observed(child(state="Succeeded")), NOW_S)
    later = plan(TRAINING_ONLY, Observed(status=ended.status), NOW_S + 1e8)
    assert (later.delete_job, later.requeue_after_s) == (False, None)


def test_a_job_that_restarts_or_has_stopped_is_requeued_for_its_deadline() -> None:
    job = with_policy(activeDeadlineSeconds=600)
    running = plan(job, observed(child(state="Running", ref=ref())), NOW_S).status
    seen = Observed(status=running, children=(child(state="Running", stopping=True, ref=ref()),), stop_requested=True)
    asked = plan(job, seen, NOW_S + 100).status
    restarts = plan(job, replace(seen, status=asked, stop_requested=False), NOW_S + 100)
    assert (restarts.status.reason, restarts.requeue_after_s) == ("StoppingToRestart", 500)
    stopped = plan(job, Observed(status=asked, stop_requested=True), NOW_S + 100)
    assert (stopped.status.phase, stopped.requeue_after_s) == ("Stopped", 500)


def test_a_child_that_was_put_down_as_lost_and_is_there_after_all_is_stopped() -> None:
    """Of two operators one did not know that it had been there, and has made it once more."""
    first = plan(TRAINING_ONLY, Observed(), NOW_S).status
    second = plan(TRAINING_ONLY, Observed(status=first, created=ref()), NOW_S).status
    assert [failure.reason for failure in second.failures] == ["Lost"]
    again, newer = child(1, state="Running"), child(2, state="Running")
    step = plan(TRAINING_ONLY, Observed(status=second, children=(again, newer)), NOW_S)
    assert (step.stop, step.create) == ((again,), None)
    settled(TRAINING_ONLY, Observed(status=second, children=(again, newer)))
    left = plan(TRAINING_ONLY, Observed(status=second, children=(replace(again, stopping=True), newer)), NOW_S)
    assert left.stop == ()


@pytest.mark.parametrize(("state", "exit_code", "phase"), [("Succeeded", 0, "Succeeded"), ("Failed", 2, "Failed")])
def test_a_pod_that_others_keep_after_the_trainer_is_deleted_once(state: str, exit_code: int, phase: str) -> None:
    held = child(state=state, exit_code=exit_code, is_held=True, ref=ref())
    step = plan(TRAINING_ONLY, observed(held), NOW_S)
    assert (step.status.phase, step.stop, step.remove) == (phase, (held,), ())
    # As after a restart in between: its job is over, and the pod still has its node.
    assert plan(TRAINING_ONLY, observed(held, status=step.status), NOW_S).stop == (held,)
    leaving = child(state="Running", stopping=True, ref=ref())
    assert plan(TRAINING_ONLY, observed(leaving, status=step.status), NOW_S).stop == ()


def test_a_retry_deletes_the_pod_that_others_keep_once() -> None:
    held = child(state="Failed", exit_code=1, is_held=True, ref=ref())
    step = plan(TRAINING_ONLY, observed(held), NOW_S)
    assert [*step.stop, *step.remove] == [held]


def test_one_failure_is_no_row_of_failures() -> None:
    lost = child(state="Failed", reason="PodDeleted", ref=ref())
    status = plan(with_policy(infrastructureRetries=0), observed(lost), NOW_S).status
    assert status.message is not None
    assert status.message.startswith("1 failure without a new checkpoint in between. ")
