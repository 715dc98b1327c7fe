"""What the plan decides in each situation. Inputs are children and a last status; nothing runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bert_operator.api.schema.status import CheckpointStatus, ChildRef, Failure, JobStatus
from bert_operator.state.observed import Observed
from bert_operator.state.plan import plan
from bert_operator.state.runs import ChildSpec, list_runs
from bert_operator.timestamps import render_time
from finetune_cases import MODEL, alone, finetune
from job_changes import both, only, put
from plan_inputs import JOB, NOW_S, TRAINING_ONLY, child, observed, reason_of
from sample_job import PREPARE, sample_job


def test_data_is_prepared_by_one_process_and_the_rest_done_in_all_ranks() -> None:
    prepare, training = list_runs(JOB)
    assert (prepare.name, prepare.stages, prepare.ranks) == ("prepare", ("prepare",), 1)
    assert (training.name, training.stages, training.ranks) == (
        "training",
        ("phase1", "evaluate", "export"),
        2,
    )


def test_a_job_without_a_prepare_stage_has_one_run() -> None:
    assert [run.name for run in list_runs(TRAINING_ONLY)] == ["training"]


def test_fine_tuning_is_part_of_training() -> None:
    _, training = list_runs(sample_job(finetune()))
    assert (training.stages, training.ranks) == (("phase1", "evaluate", "task", "export"), 2)
    (only,) = list_runs(sample_job(alone(MODEL)))
    assert (only.name, only.stages) == ("training", ("task", "export"))


def test_a_new_job_starts_with_its_first_run() -> None:
    step = plan(JOB, Observed(), NOW_S)
    assert step.create == ChildSpec(run="prepare", attempt=1, stages=("prepare",), ranks=1)
    assert (step.status.phase, step.status.attempt, step.status.run) == ("Pending", 1, "prepare")
    assert step.status.start_time == "2023-11-14T22:13:20Z"


def test_nothing_is_done_while_a_child_runs() -> None:
    step = plan(JOB, observed(child(state="Running", run="prepare")), NOW_S)
    assert (step.create, step.stop, step.requeue_after_s) == (None, (), None)
    assert step.status.phase == "Running"


def test_training_follows_a_complete_dataset_with_the_next_number() -> None:
    step = plan(JOB, observed(child(state="Succeeded", run="prepare")), NOW_S)
    assert step.create is not None
    assert (step.create.run, step.create.attempt, step.create.ranks) == ("training", 2, 2)
    assert reason_of(step.status, "Prepared") == "DatasetComplete"


def test_the_job_succeeds_with_its_last_run() -> None:
    children = (child(1, state="Succeeded", run="prepare"), child(2, state="Succeeded"))
    step = plan(JOB, observed(*children), NOW_S)
    assert (step.status.phase, step.create) == ("Succeeded", None)
    assert step.status.completion_time == render_time(NOW_S)


def test_a_job_that_only_prepares_is_done_with_its_dataset() -> None:
    job = sample_job(both(only(PREPARE), put("stages", PREPARE, "prepare", "sequenceLengths", value=[128, 512])))
    assert [run.name for run in list_runs(job)] == ["prepare"]
    assert plan(job, Observed(), NOW_S).create == ChildSpec(run="prepare", attempt=1, stages=("prepare",), ranks=1)
    step = plan(job, observed(child(state="Succeeded", run="prepare")), NOW_S)
    assert (step.status.phase, step.create) == ("Succeeded", None)
    assert reason_of(step.status, "Prepared") == "DatasetComplete"


def test_bad_input_is_never_tried_again() -> None:
    step = plan(TRAINING_ONLY, observed(child(exit_code=2, message="vocab.txt: no such file")), NOW_S)
    assert (step.status.phase, step.create) == ("Failed", None)
    assert reason_of(step.status, "Failed") == "InvalidInput"
    assert "vocab.txt: no such file" in step.status.conditions[-1].message


def test_a_failure_of_the_program_is_tried_again_at_once_and_only_once() -> None:
    first = plan(TRAINING_ONLY, observed(child(1, exit_code=1)), NOW_S)
    assert first.create is not None
    assert first.create.attempt == 2
    second = plan(TRAINING_ONLY, observed(child(1, exit_code=1), child(2, exit_code=1)), NOW_S)
    assert (second.status.phase, second.create) == ("Failed", None)
    assert reason_of(second.status, "Failed") == "ApplicationRetriesSpent"


STORAGE: dict[str, Any] = {
    "exit_code": 4,
    "reason": "StorageFailed",
    "message": "/out: the disk is full\nhint: free space",
}


def test_storage_that_fails_after_the_first_step_is_retried_and_reported_as_blocking() -> None:
    failed = plan(TRAINING_ONLY, observed(child(1, **STORAGE)), NOW_S)
    assert [failure.kind for failure in failed.status.failures] == ["Infrastructure"]
    assert (failed.status.phase, failed.status.reason, failed.requeue_after_s) == ("Pending", "StorageFailed", 10.0)
    assert failed.create is None
    blocked = [item for item in failed.status.conditions if item.type == "Blocked"]
    assert [(item.status, item.reason) for item in blocked] == [("True", "StorageFailed")]
    assert blocked[0].message == "training, attempt 1: /out: the disk is full\nhint: free space"

    again = plan(TRAINING_ONLY, Observed(status=failed.status, children=(child(1, **STORAGE),)), NOW_S + 10)
    assert again.create is not None
    assert again.create.attempt == 2
    waiting = Observed(status=again.status, children=(child(1, **STORAGE), child(2, state="Pending")))
    assert reason_of(plan(TRAINING_ONLY, waiting, NOW_S + 11).status, "Blocked") == "StorageFailed"
    running = Observed(status=again.status, children=(child(1, **STORAGE), child(2, state="Running")))
    assert reason_of(plan(TRAINING_ONLY, running, NOW_S + 12).status, "Blocked") is None


def test_waits_for_storage_grow_like_all_others() -> None:
    waits = []
    for count in (1, 2, 3):
        children = [child(number, **STORAGE) for number in range(1, count + 1)]
        waits.append(plan(TRAINING_ONLY, observed(*children), NOW_S).requeue_after_s)
    assert waits == [10.0, 20.0, 40.0]


@pytest.mark.parametrize("exit_code", [1, 2])
def test_storage_that_still_fails_when_the_next_attempt_opens_it_is_no_bad_input(exit_code: int) -> None:
    children = (child(1, **STORAGE), child(2, **{**STORAGE, "exit_code": exit_code}))
    step = plan(TRAINING_ONLY, observed(*children), NOW_S)
    assert [failure.kind for failure in step.status.failures] == ["Infrastructure", "Infrastructure"]
    assert step.requeue_after_s == 20.0


@pytest.mark.parametrize(("exit_code", "kind"), [(1, "Application"), (2, "InvalidInput")])
def test_storage_that_fails_before_the_first_step_is_what_its_exit_code_says(exit_code: int, kind: str) -> None:
    step = plan(TRAINING_ONLY, observed(child(1, **{**STORAGE, "exit_code": exit_code})), NOW_S)
    assert [failure.kind for failure in step.status.failures] == [kind]
    assert reason_of(step.status, "Blocked") is None


def test_a_run_that_has_a_checkpoint_has_taken_its_first_step() -> None:
    status = JobStatus(attempt=2, run="training", checkpoint=CheckpointStatus(stage="phase1", step=40))
    refused = child(2, **{**STORAGE, "exit_code": 2})
    step = plan(TRAINING_ONLY, observed(child(1, signal=9), refused, status=status), NOW_S)
    assert [failure.kind for failure in step.status.failures] == ["Infrastructure", "Infrastructure"]


def test_a_stop_long_after_storage_was_back_blocks_nothing() -> None:
    failed = plan(TRAINING_ONLY, observed(child(1, **STORAGE)), NOW_S)
    status = failed.status.model_copy(update={"attempt": 2, "phase": "Running", "reason": "ChildRunning"})
    running = plan(TRAINING_ONLY, Observed(status=status, children=(child(2, state="Running"),)), NOW_S + 60)
    stopped = Observed(status=running.status, children=(child(2, state="Stopped"),), stop_requested=True)
    paused = plan(TRAINING_ONLY, stopped, NOW_S + 90)
    resumed = plan(TRAINING_ONLY, Observed(status=paused.status), NOW_S + 100)
    assert resumed.create is not None
    assert reason_of(resumed.status, "Blocked") is None


def test_no_retries_means_one_attempt() -> None:
    job = sample_job(lambda spec: spec.update(runPolicy={"applicationRetries": 0, "infrastructureRetries": 0}))
    for end in ({"exit_code": 1}, {"signal": 9}):
        step = plan(job, observed(child(1, run="prepare", **end)), NOW_S)
        assert (step.status.phase, step.create) == ("Failed", None)


def test_killed_processes_have_a_budget_of_their_own() -> None:
    children = [child(1, exit_code=1), *(child(n, signal=9, exit_code=137) for n in (2, 3, 4))]
    step = plan(TRAINING_ONLY, observed(*children), NOW_S + 1000)
    assert step.create is not None
    assert step.create.attempt == 5
    last = plan(TRAINING_ONLY, observed(*children, child(5, signal=9, exit_code=137)), NOW_S + 1000)
    assert reason_of(last.status, "Failed") == "InfrastructureRetriesSpent"
    assert len(last.status.failures) == 5


def test_failures_of_preparation_do_not_count_against_training() -> None:
    children = (
        child(1, run="prepare", exit_code=1),
        child(2, run="prepare", state="Succeeded"),
        child(3, exit_code=1),
    )
    step = plan(JOB, observed(*children), NOW_S)
    assert step.create is not None
    assert (step.create.run, step.create.attempt) == ("training", 4)


@pytest.mark.parametrize(
    ("failures", "wait_s"),
    [(1, 0), (2, 10), (3, 20), (4, 40), (5, 80), (6, 160), (7, 320), (8, 360), (20, 360)],
)
def test_pauses_between_attempts_double_up_to_six_minutes(failures: int, wait_s: float) -> None:
    job = sample_job(
        lambda spec: spec.update(
            runPolicy={"infrastructureRetries": 100}, dataset={"path": "data"}, stages=spec["stages"][1:]
        )
    )
    children = [child(n, signal=9) for n in range(1, failures + 1)]
    step = plan(job, observed(*children), NOW_S)
    if wait_s:
        assert step.create is None
        assert step.requeue_after_s == pytest.approx(wait_s)
        assert plan(job, observed(*children), NOW_S + wait_s - 0.5).create is None
    later = plan(job, observed(*children), NOW_S + wait_s)
    assert later.create is not None
    assert later.create.attempt == failures + 1


def test_a_request_to_stop_is_passed_on_once() -> None:
    running = child(state="Running")
    step = plan(TRAINING_ONLY, observed(running, stop=True), NOW_S)
    assert (step.stop, step.create, step.status.phase) == ((running,), None, "Stopping")
    again = plan(TRAINING_ONLY, observed(replace(running, stopping=True), stop=True), NOW_S)
    assert (again.stop, again.status.phase) == ((), "Stopping")


@pytest.mark.parametrize("end", [{"state": "Stopped", "exit_code": 3}, {"signal": 9}])
def test_a_child_that_was_stopped_is_no_failure(end: dict[str, Any]) -> None:
    stopped = child(stopping=True, **end)
    step = plan(TRAINING_ONLY, observed(stopped, stop=True), NOW_S)
    assert (step.status.phase, step.create, step.status.failures) == ("Stopped", None, ())
    assert reason_of(step.status, "Stopped") == "StoppedOnRequest"


def test_a_stopped_job_goes_on_when_the_request_is_withdrawn() -> None:
    stopped = child(state="Stopped", stopping=True, exit_code=3)
    status = plan(TRAINING_ONLY, observed(stopped, stop=True), NOW_S).status
    step = plan(TRAINING_ONLY, observed(stopped, status=status), NOW_S + 5)
    assert step.create is not None
    assert step.create.attempt == 2
    (condition,) = [item for item in step.status.conditions if item.type == "Stopped"]
    assert (condition.status, condition.reason) == ("False", "Resumed")


def test_a_child_that_leaves_unasked_counts_against_the_infrastructure() -> None:
    step = plan(TRAINING_ONLY, observed(child(state="Stopped", exit_code=3)), NOW_S)
    assert step.create is not None
    assert [(failure.kind, failure.reason) for failure in step.status.failures] == [
        ("Infrastructure", "StoppedUnasked")
    ]


def test_a_stop_during_a_pause_starts_nothing() -> None:
    children = (child(1, signal=9), child(2, signal=9))
    step = plan(TRAINING_ONLY, replace(observed(*children), stop_requested=True), NOW_S)
    assert (step.status.phase, step.create) == ("Stopped", None)


def test_work_that_is_done_counts_although_a_stop_was_asked_for() -> None:
    done = child(state="Succeeded", stopping=True)
    assert plan(TRAINING_ONLY, observed(done, stop=True), NOW_S).status.phase == "Succeeded"


def deadline_job() -> Any:
    return sample_job(lambda spec: spec.update(runPolicy={"activeDeadlineSeconds": 60}))


def test_a_deadline_requeues_the_job() -> None:
    running = child(run="prepare", state="Running")
    assert plan(deadline_job(), Observed(), NOW_S).requeue_after_s == 60
    assert plan(deadline_job(), observed(running), NOW_S + 45).requeue_after_s == 15


def test_a_deadline_stops_the_child_and_then_fails_the_job() -> None:
    running = child(run="prepare", state="Running")
    step = plan(deadline_job(), observed(running), NOW_S + 60)
    assert (step.stop, step.status.phase) == ((running,), "Stopping")
    gone = child(run="prepare", state="Stopped", stopping=True, exit_code=3)
    after = plan(deadline_job(), observed(gone), NOW_S + 70)
    assert (after.status.phase, after.create) == ("Failed", None)
    assert reason_of(after.status, "Failed") == "DeadlineExceeded"


def test_a_pause_ends_at_the_deadline() -> None:
    children = [child(n, run="prepare", signal=9) for n in (1, 2, 3)]
    assert plan(deadline_job(), observed(*children), NOW_S + 0).requeue_after_s == 20
    late = [replace(each, finished_at_s=NOW_S + 50) for each in children]
    assert plan(deadline_job(), observed(*late), NOW_S + 50).requeue_after_s == 10


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_an_ended_job_stays_ended_and_stops_what_still_runs(phase: str) -> None:
    status = JobStatus(phase=phase, attempt=1)  # type: ignore[arg-type]
    revenant = child(2, state="Running")
    step = plan(TRAINING_ONLY, observed(revenant, status=status), NOW_S)
    assert (step.status, step.stop, step.create) == (status, (revenant,), None)


def test_an_attempt_without_a_trace_counts_as_lost() -> None:
    seen = ChildRef(kind="MPIJob", name="demo-a4", uid="uid", attempt=4)
    status = JobStatus(phase="Running", attempt=4, run="training", child=seen, start_time=render_time(NOW_S))
    step = plan(TRAINING_ONLY, Observed(status=status), NOW_S)
    assert step.create is not None
    assert step.create.attempt == 5
    assert [(failure.attempt, failure.reason) for failure in step.status.failures] == [(4, "Lost")]


def test_a_lost_status_is_harmless() -> None:
    children = (child(1, run="prepare", state="Succeeded"), child(2, signal=9))
    step = plan(JOB, Observed(children=children), NOW_S)
    assert step.create is not None
    assert (step.create.run, step.create.attempt) == ("training", 3)
    assert step.status.completed_runs == ("prepare",)


def test_lost_children_are_harmless_too() -> None:
    failure = Failure(run="training", attempt=2, kind="Infrastructure", reason="Killed", finished_at=render_time(NOW_S))
    status = JobStatus(phase="Pending", attempt=2, run="training", completed_runs=("prepare",), failures=(failure,))
    step = plan(JOB, Observed(status=status), NOW_S)
    assert step.create is not None
    assert (step.create.run, step.create.attempt) == ("training", 3)


def test_of_two_running_children_the_newest_is_kept() -> None:
    older, newer = child(1, state="Running"), child(2, state="Running")
    step = plan(TRAINING_ONLY, observed(newer, older), NOW_S)
    assert (step.stop, step.create) == ((older,), None)
