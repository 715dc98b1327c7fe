"""Retry budgets: what counts against them, and that a new checkpoint begins the count again."""

from __future__ import annotations

from typing import Any

from bert_operator.api.schema.conditions import Reason
from bert_operator.api.schema.status import JobStatus
from bert_operator.state.observed import Observed
from bert_operator.state.plan import Plan, plan
from bert_operator.state.progress import ProgressRecord, parse_progress_line
from plan_inputs import NOW_S, TRAINING_ONLY, child, ref

DAY_S = 86_400.0


def checkpoint(step: int, attempt: int) -> ProgressRecord:
    record = parse_progress_line(f"bert-trainer/1 event=checkpoint stage=phase1 step={step} job=uid attempt={attempt}")
    assert record is not None
    return record


def fail(before: JobStatus, attempt: int, now_s: float, step: int | None = None, **how: Any) -> Plan:
    """Let an attempt fail; step: that of the newest checkpoint."""
    written = before.model_copy(update={"attempt": attempt, "run": "training", "phase": "Running"})
    how = {"exit_code": 137, "signal": 9, **how}
    failed = child(attempt, finished_at_s=now_s, **how)
    record = None if step is None else checkpoint(step, attempt)
    return plan(TRAINING_ONLY, Observed(status=written, children=(failed,), checkpoint=record), now_s)


def test_a_job_that_is_killed_once_a_day_goes_on() -> None:
    status = JobStatus()
    for day in range(1, 41):
        step = fail(status, day, NOW_S + day * DAY_S, step=100 * day)
        status = step.status
        assert status.phase == "Pending", status
        assert status.reason == Reason.RETRYING_AT_ONCE, "each failure is the first since the newest checkpoint"
    assert len(status.failures) == 40
    newest = status.failures[-1].checkpoint
    assert newest is not None
    assert newest.step == 4000


def test_attempts_without_a_new_checkpoint_end_the_job() -> None:
    retries = TRAINING_ONLY.spec.run_policy.infrastructure_retries
    status = fail(JobStatus(), 1, NOW_S, step=100).status
    for attempt in range(2, retries + 2):
        status = fail(status, attempt, NOW_S + attempt, step=200).status
        assert status.phase == "Pending"
    status = fail(status, retries + 2, NOW_S + 60, step=200).status
    assert (status.phase, status.reason) == ("Failed", Reason.INFRASTRUCTURE_RETRIES_SPENT)
    assert status.message is not None
    # The second attempt brought a checkpoint and died behind it: as many retries as are allowed brought none.
    assert status.attempt - 2 == retries
    assert status.message.startswith(f"{retries + 1} failures in a row without a new checkpoint in between. ")


def test_a_checkpoint_that_only_an_earlier_attempt_reported_still_counts() -> None:
    status = fail(JobStatus(), 1, NOW_S, step=100).status
    status = fail(status, 2, NOW_S + 60).status
    assert [failure.checkpoint for failure in status.failures] == [status.checkpoint] * 2


def test_a_program_that_fails_by_itself_has_one_budget_for_good() -> None:
    how = {"exit_code": 1, "signal": None}
    status = fail(JobStatus(), 1, NOW_S, step=100, **how).status
    assert status.phase == "Pending"
    status = fail(status, 2, NOW_S + 60, step=200, **how).status
    assert (status.phase, status.reason) == ("Failed", Reason.APPLICATION_RETRIES_SPENT)


def test_a_checkpoint_that_lags_behind_an_earlier_one_is_no_progress() -> None:
    retries = TRAINING_ONLY.spec.run_policy.infrastructure_retries
    status = fail(JobStatus(), 1, NOW_S, step=300).status
    for attempt in range(2, retries + 2):
        # Other steps each time, as of a program that begins anew, and none beyond 300.
        status = fail(status, attempt, NOW_S + attempt, step=17 * attempt).status
    assert (status.phase, status.reason) == ("Failed", Reason.INFRASTRUCTURE_RETRIES_SPENT)


STORAGE = {"exit_code": 4, "signal": None, "reason": "StorageFailed", "message": "/mnt/output/run: the disk is full"}


def test_a_full_volume_is_waited_for_and_uses_up_one_retry_in_a_day() -> None:
    status, now_s, attempt = JobStatus(), NOW_S, 0
    while now_s < NOW_S + 0.9 * DAY_S:
        attempt += 1
        step = fail(status, attempt, now_s, step=100, **STORAGE)
        status = step.status
        assert (status.phase, status.reason) == ("Pending", "StorageFailed")
        assert step.requeue_after_s is not None
        now_s += step.requeue_after_s
    assert attempt > 200, "the waits are at most 6 minutes"
    # Somebody frees space, and a node dies: its retries are untouched.
    for _ in range(TRAINING_ONLY.spec.run_policy.infrastructure_retries - 1):
        attempt += 1
        status = fail(status, attempt, now_s, step=100).status
        assert status.phase == "Pending"


def test_a_volume_that_stays_full_ends_the_job_in_the_end() -> None:
    status, now_s, attempt = JobStatus(), NOW_S, 0
    while status.phase != "Failed":
        attempt += 1
        step = fail(status, attempt, now_s, step=100, **STORAGE)
        status = step.status
        now_s += step.requeue_after_s or 0.0
    retries = TRAINING_ONLY.spec.run_policy.infrastructure_retries
    assert DAY_S < now_s - NOW_S < DAY_S + 2 * retries * 360
    assert status.reason == Reason.INFRASTRUCTURE_RETRIES_SPENT
    assert "the disk is full" in (status.message or "")


def test_an_attempt_after_a_stop_is_no_retry_of_one_that_failed_before_it() -> None:
    status = fail(JobStatus(), 1, NOW_S).status
    assert (status.reason, status.attempt) == (Reason.RETRYING_AT_ONCE, 2)
    ended = child(2, state="Stopped", ref=ref(2))
    stopped = plan(TRAINING_ONLY, Observed(status=status, children=(ended,), stop_requested=True), NOW_S + 60).status
    assert stopped.phase == "Stopped"
    resumed = plan(TRAINING_ONLY, Observed(status=stopped, created=ref(2)), NOW_S + 90)
    assert resumed.create is not None
    assert (resumed.create.attempt, resumed.status.reason) == (3, Reason.WAITING_TO_START)
