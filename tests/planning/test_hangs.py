"""Attempts without progress: what is said of them, and what is done where nobody in the pod can do it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bert_job.progress import parse_progress_line
from bert_operator.api.schema.conditions import FailureReason, Reason
from bert_operator.api.schema.status import ChildRef, JobStatus
from bert_operator.cluster.log_reader import LatestRecords, read_latest_records
from bert_operator.render.hangs import hang_environment
from bert_operator.state.observed import Child, Observed, Silence
from bert_operator.state.plan import plan
from plan_inputs import NOW_S, TRAINING_ONLY

REF = ChildRef(kind="Job", name="bert-a1", uid="u", attempt=1)
RUNNING = Child(run="training", attempt=1, state="Running", ref=REF)
STATUS = JobStatus(phase="Running", attempt=1, run="training", child=REF)
HUNG = 'bert-trainer/1 event=hung stage=phase1 step=55 message="rank 1 on w-1: no progress" job=uid attempt=1'
ALIVE = "bert-trainer/1 event=alive every_s=60 job=uid attempt=1"


def with_policy(**policy: Any) -> Any:
    run_policy = TRAINING_ONLY.spec.run_policy.model_copy(update=policy)
    return TRAINING_ONLY.model_copy(update={"spec": TRAINING_ONLY.spec.model_copy(update={"run_policy": run_policy})})


def test_the_status_names_the_rank_that_makes_no_progress() -> None:
    hang = parse_progress_line(HUNG)
    step = plan(TRAINING_ONLY, Observed(status=STATUS, children=(RUNNING,), hang=hang), NOW_S)
    assert (step.status.phase, step.status.reason) == ("Running", Reason.NO_PROGRESS)
    assert step.status.message == "rank 1 on w-1: no progress"
    assert not step.stop
    other = replace(RUNNING, attempt=2)
    step = plan(TRAINING_ONLY, Observed(status=STATUS, children=(other,), hang=hang), NOW_S)
    assert step.status.reason == Reason.CHILD_RUNNING, "another attempt's"


def test_a_silent_launcher_fails_its_attempt_and_is_removed_before_the_next() -> None:
    step = plan(TRAINING_ONLY, Observed(status=STATUS, children=(RUNNING,), silence=Silence(1, 301)), NOW_S)
    (failure,) = step.status.failures
    assert (failure.kind, failure.reason) == ("Infrastructure", FailureReason.HUNG)
    assert "301 s" in failure.message
    assert [child.ref for child in (*step.remove, *step.stop)] == [REF]
    assert step.create is None, "two attempts never share an output folder"
    leaving = Observed(status=step.status, children=(replace(RUNNING, stopping=True),), silence=Silence(1, 301))
    again = plan(TRAINING_ONLY, leaving, NOW_S + 5)
    assert (again.status, again.stop, again.remove, again.create) == (step.status, (), (), None)
    gone = plan(TRAINING_ONLY, Observed(status=step.status), NOW_S + 10)
    assert gone.create is not None
    assert gone.create.attempt == 2


def test_an_attempt_whose_worker_has_ended_fails_even_where_hangs_are_only_told() -> None:
    lost = replace(RUNNING, lost="Pod bert-a1-worker-0 has ended", pod="bert-a1-worker-0", node="node-1")
    step = plan(with_policy(on_hang="Notify"), Observed(status=STATUS, children=(lost,)), NOW_S)
    (failure,) = step.status.failures
    assert (failure.kind, failure.reason, failure.pod) == ("Infrastructure", FailureReason.KILLED, "bert-a1-worker-0")
    assert failure.message == "Pod bert-a1-worker-0 has ended"
    assert [child.ref for child in (*step.remove, *step.stop)] == [REF]


@pytest.mark.parametrize("lost", ["", "Pod bert-a1-worker-0 has ended"])
def test_an_attempt_that_is_given_up_stops_like_any_other_on_request(lost: str) -> None:
    child, silence = replace(RUNNING, lost=lost), None if lost else Silence(1, 301)
    status = STATUS
    for children, phase, stopped in (((child,), "Stopping", [REF]), ((replace(child, stopping=True),), "Stopping", [])):
        seen = Observed(status=status, children=children, silence=silence, stop_requested=True)
        step = plan(TRAINING_ONLY, seen, NOW_S)
        assert (step.status.phase, [it.ref for it in step.stop], step.remove) == (phase, stopped, ())
        status = step.status
    gone = plan(TRAINING_ONLY, Observed(status=status, stop_requested=True), NOW_S)
    assert gone.status.phase == "Stopped"


def test_during_a_back_off_nothing_of_a_frozen_attempt_goes_on() -> None:
    spent = JobStatus(phase="Running", attempt=3, run="training", failures=tuple(failures(2)))
    third = replace(RUNNING, attempt=3, ref=REF.model_copy(update={"attempt": 3, "name": "bert-a3"}))
    step = plan(
        with_policy(infrastructure_retries=5), Observed(status=spent, children=(third,), silence=Silence(3, 301)), NOW_S
    )
    assert step.status.reason == Reason.BACKING_OFF
    assert [child.attempt for child in step.stop] == [3]


def failures(count: int) -> Any:
    status = STATUS
    for attempt in range(1, count + 1):
        child = replace(RUNNING, attempt=attempt, ref=REF.model_copy(update={"attempt": attempt}))
        status = status.model_copy(update={"attempt": attempt})
        status = plan(
            with_policy(infrastructure_retries=9),
            Observed(status=status, children=(child,), silence=Silence(attempt, 9)),
            0,
        ).status
    return status.failures


def test_a_silent_launcher_goes_on_where_the_job_says_so() -> None:
    step = plan(
        with_policy(on_hang="Notify"), Observed(status=STATUS, children=(RUNNING,), silence=Silence(1, 301)), NOW_S
    )
    assert (step.status.phase, step.status.reason, step.stop) == ("Running", Reason.NO_PROGRESS, ())
    assert not step.status.failures


def test_an_attempt_is_not_failed_for_the_silence_of_the_one_before() -> None:
    second = replace(RUNNING, attempt=2, ref=REF.model_copy(update={"attempt": 2}))
    running = STATUS.model_copy(update={"attempt": 2})
    step = plan(TRAINING_ONLY, Observed(status=running, children=(second,), silence=Silence(1, 301)), NOW_S)
    assert (step.status.reason, step.stop, step.status.failures) == (Reason.CHILD_RUNNING, (), ())


def test_only_what_runs_can_be_silent() -> None:
    for state in ("Pending", "Queued"):
        waiting = replace(RUNNING, state=state)
        assert not plan(TRAINING_ONLY, Observed(children=(waiting,), silence=Silence(1, 301)), NOW_S).status.failures


def read(text: str, before: LatestRecords | None = None, attempt: int = 1) -> LatestRecords:
    return read_latest_records(text, "uid", attempt, before or LatestRecords())


def test_a_hang_is_over_once_a_rank_reports_again() -> None:
    hung = read(f"{ALIVE}\n{HUNG}\n")
    assert hung.hang is not None
    assert read("nothing new", hung).hang is hung.hang
    assert read(f"{HUNG}\n{ALIVE}", hung).hang is not None, "a launcher's sign of life is no progress"
    saved = f"{HUNG}\nbert-trainer/1 event=checkpoint stage=phase1 step=50 job=uid attempt=1"
    assert read(saved, hung).hang is not None, "a checkpoint may be written while ranks hang"
    assert read(f"{HUNG}\nbert-trainer/1 event=progress step=56 job=uid attempt=1", hung).hang is None
    assert read("", hung, attempt=2).hang is None


def test_another_attempt_promises_for_itself() -> None:
    first = read(ALIVE)
    assert first.promise is not None
    assert read("", first).promise is not None
    assert read("", first, attempt=2).promise is None


def test_pods_get_what_the_job_says_and_nothing_else() -> None:
    policy = TRAINING_ONLY.spec.run_policy
    assert hang_environment(policy) == {}
    changed = policy.model_copy(update={"on_hang": "Notify", "hang_max_seconds": 600})
    assert hang_environment(changed) == {"BERT_ON_HANG": "Notify", "BERT_HANG_LIMITS_S": "120,600"}
