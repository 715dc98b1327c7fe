"""Retry budgets: what counts against them, and that a checkpoint which a later attempt has found begins them again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bert_job.checkpoints import CheckpointSpec
from bert_job.progress import ProgressRecord, parse_progress_line
from bert_operator.api.schema.conditions import Reason
from bert_operator.api.schema.status import CheckpointStatus, JobStatus
from bert_operator.state.observed import Observed
from bert_operator.state.plan import Plan, plan
from bert_operator.timestamps import render_time
from plan_inputs import JOB, NOW_S, TRAINING_ONLY, child, ref

DAY_S = 86_400.0


def record(event: str, attempt: int, rest: str) -> ProgressRecord:
    found = parse_progress_line(f"bert-trainer/1 event={event} {rest} job=uid attempt={attempt}")
    assert found is not None
    return found


def fail(
    before: JobStatus,
    attempt: int,
    now_s: float,
    step: int | None = None,
    *,
    began: int | None = None,
    ran_s: float = 0.0,
    run: str = "training",
    **how: Any,
) -> Plan:
    """Let an attempt fail.

    Args:
        before: The status when it was created.
        attempt: Its number.
        now_s: When it fails.
        step: That of the newest checkpoint that it has reported; of a build, how many parts are finished.
        began: From which it has told that it goes on.
        ran_s: How long its pods ran.
        run: What it did.
        how: Of its child.
    """
    running = {"phase": "Running", "phase_since": render_time(now_s - ran_s)}
    written = before.model_copy(update={"attempt": attempt, "run": run, **running})
    failed = child(attempt, run=run, finished_at_s=now_s, **{"exit_code": 137, "signal": 9, **how})
    seen = Observed(status=written, children=(failed,))
    if run == "prepare":
        parts = f"stage=prepare step=7 steps=99 {f'kept={began}' if began else ''} {f'saved={step}' if step else ''}"
        return plan(JOB, replace(seen, progress=record("progress", attempt, " ".join(parts.split()))), now_s)
    saved = None if step is None else record("checkpoint", attempt, f"stage=phase1 step={step}")
    resumed = None if began is None else record("resumed", attempt, f"stage=phase1 step={began}")
    return plan(TRAINING_ONLY, replace(seen, checkpoint=saved, resumed=resumed), now_s)


def fail_until_the_end(most: int, **how: Any) -> list[float]:
    """Return the pauses between attempts until the job has failed, each of which is told by its number."""
    status, now_s, pauses = JobStatus(), NOW_S, list[float]()
    for attempt in range(1, most + 1):
        step = fail(status, attempt, now_s, **{key: tell(attempt) for key, tell in how.items()})
        status = step.status
        if status.phase == "Failed":
            assert status.reason == Reason.INFRASTRUCTURE_RETRIES_SPENT
            return pauses
        pauses.append(step.requeue_after_s or 0.0 if status.reason == Reason.BACKING_OFF else 0.0)
        now_s += pauses[-1] + 6
    return pauses


def test_checkpoints_that_no_attempt_resumes_from_end_the_job_and_never_shorten_the_pauses() -> None:
    pauses = fail_until_the_end(100, step=lambda n: 100 * n, exit_code=lambda _: 4, signal=lambda _: None)
    assert pauses == [0, 10, 20, 40, 80, 160, 320]


def test_what_a_program_tells_of_its_beginning_does_not_shorten_the_pauses_either() -> None:
    pauses = fail_until_the_end(
        30, step=lambda n: 100 * n, began=lambda n: 100 * n - 100, exit_code=lambda _: 4, signal=lambda _: None
    )
    assert pauses == [0, 10, 20, 40, 80, 160, 320, *[360] * 23]


def test_an_attempt_that_ran_for_long_begins_the_pauses_again() -> None:
    status = JobStatus()
    for attempt in (1, 2, 3):
        status = fail(status, attempt, NOW_S + attempt, step=100).status
    assert status.reason == Reason.BACKING_OFF
    status = fail(status, 4, NOW_S + 9000, step=200, began=100, ran_s=601).status
    assert status.reason == Reason.RETRYING_AT_ONCE
    assert status.failures[-1].ran_seconds == 601


def test_a_job_that_an_earlier_release_has_begun_keeps_what_it_had() -> None:
    status = JobStatus()
    for day in range(1, 20):
        status = fail(status, day, NOW_S + day * DAY_S, step=100 * day, ran_s=3600).status
        old = [failure.model_copy(update={"ran_seconds": None}) for failure in status.failures]
        status = status.model_copy(update={"failures": tuple(old)})
        assert status.phase == "Pending", status


def test_a_checkpoint_tells_where_its_attempt_began_in_case_that_the_log_s_beginning_was_not_read() -> None:
    written = JobStatus(phase="Running", attempt=2, run="training")
    saved = record("checkpoint", 2, "stage=phase2 step=20 resumed_stage=phase1 resumed_step=700")
    failed = child(2, exit_code=137, signal=9)
    status = plan(TRAINING_ONLY, Observed(status=written, children=(failed,), checkpoint=saved), NOW_S).status
    assert status.failures[0].resumed == CheckpointStatus(stage="phase1", step=700)
    assert status.failures[0].checkpoint == CheckpointStatus(stage="phase2", step=20)


EVICTED = {"exit_code": None, "signal": None, "reason": "Evicted", "message": "Pod p: A pod was evicted."}


def test_evictions_of_a_build_that_gets_on_never_end_the_job() -> None:
    status = JobStatus()
    for attempt in range(1, 30):
        began = 5 * attempt - 5
        how = {"run": "prepare", "ran_s": 1200, **EVICTED}
        status = fail(status, attempt, NOW_S + 1300 * attempt, 5 * attempt, began=began, **how).status
        assert status.phase == "Pending", status.message
    assert status.failures[-1].resumed == CheckpointStatus(stage="prepare", step=140)
    assert status.checkpoint is None, "a build's parts are no checkpoint of the training"


def test_evictions_of_a_build_that_finishes_nothing_end_it_and_say_what_helps() -> None:
    retries = JOB.spec.run_policy.infrastructure_retries
    status = JobStatus()
    for attempt in range(1, retries + 2):
        assert status.phase == "Pending"
        status = fail(status, attempt, NOW_S + 1300 * attempt, run="prepare", ran_s=1200, **EVICTED).status
    assert (status.phase, status.attempt) == ("Failed", retries + 1)
    assert "No part of the data was finished in the 1200 s that it ran" in (status.message or "")


@pytest.mark.parametrize(
    ("ran_s", "changes", "told"),
    [
        (340, {}, "checkpoints come every 600 s. Where attempts do not last as long, apply the job with a smaller"),
        (700, {}, None),
        (340, {"everySteps": 1000}, "checkpoints come every 1000 steps"),
        (340, {"periodic": False}, "since checkpoint.periodic is false"),
        (0, {}, None),
    ],
)
def test_an_attempt_that_is_taken_away_before_its_first_checkpoint_says_what_helps(
    ran_s: int, changes: dict[str, Any], told: str | None
) -> None:
    job = TRAINING_ONLY.model_copy(deep=True)
    job.spec.__dict__["checkpoint"] = CheckpointSpec(**changes)
    since = render_time(NOW_S - ran_s)
    written = JobStatus(phase="Running", attempt=1, run="training", stage="phase1", phase_since=since)
    gone = child(1, finished_at_s=NOW_S, reason="Evicted", message="Pod p on node n: A pod was evicted.")
    [failure] = plan(job, Observed(status=written, children=(gone,)), NOW_S).status.failures
    assert failure.message.startswith("Pod p on node n: A pod was evicted.")
    assert (told is None) == (failure.message == "Pod p on node n: A pod was evicted.")
    assert told is None or told in failure.message


def test_a_job_that_is_killed_once_a_day_goes_on() -> None:
    status = JobStatus()
    for day in range(1, 41):
        began = 100 * (day - 1) or None
        status = fail(status, day, NOW_S + day * DAY_S, step=100 * day, began=began, ran_s=80_000).status
        assert status.phase == "Pending", status
        assert status.reason == Reason.RETRYING_AT_ONCE, "each attempt has run for long"
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
