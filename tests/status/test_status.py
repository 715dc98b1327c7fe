"""From facts to the status that people read."""

from __future__ import annotations

from bert_job.progress import parse_progress_line
from bert_operator.api.schema.conditions import BlockerReason, Reason
from bert_operator.api.schema.status import ChildRef, Failure, JobStatus
from bert_operator.state.observed import Blocker, Child, Observed
from bert_operator.state.plan import plan
from bert_operator.state.status import Facts, Verdict, describe, describe_invalid
from sample_job import sample_job

NOW_S = 1_700_000_000.0
RUNNING = Verdict(phase="Running", reason=Reason.CHILD_RUNNING)


def facts(**rest: object) -> Facts:
    known: dict[str, object] = {
        "namespace": "team-a",
        "attempt": 2,
        "run": "training",
        "completed_runs": (),
        "failures": (),
        "progress": None,
        "started": True,
    }
    return Facts(**(known | rest))  # type: ignore[arg-type]


def line(text: str) -> object:
    return parse_progress_line(f"bert-trainer/1 {text}")


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    first = describe(JobStatus(), facts(), RUNNING, generation=1, now_s=NOW_S)
    second = describe(first, facts(), RUNNING, generation=1, now_s=NOW_S + 60)
    assert second == first
    waiting = Verdict(phase="Pending", reason=Reason.BACKING_OFF, message="Attempt 2 failed")
    third = describe(second, facts(), waiting, generation=2, now_s=NOW_S + 60)
    condition, ready = third.conditions
    assert (condition.type, condition.status, condition.reason) == ("Running", "False", "BackingOff")
    assert ready == condition.model_copy(update={"type": "Ready"})
    assert condition.message == "Attempt 2 failed"
    assert condition.last_transition_time == "2023-11-14T22:14:20Z"
    assert (condition.observed_generation, third.observed_generation) == (2, 2)


def test_the_time_in_each_phase_is_added_up_over_attempts() -> None:
    def at(second: int, before: JobStatus, phase: str, run: str | None = "training") -> JobStatus:
        verdict = Verdict(phase=phase, reason=Reason.CHILD_RUNNING)  # type: ignore[arg-type]
        return describe(before, facts(run=run), verdict, generation=1, now_s=NOW_S + second)

    queued = at(0, JobStatus(), "Queued", "prepare")
    assert (queued.phase_since, queued.phase_times) == ("2023-11-14T22:13:20Z", ())
    status = at(10, queued, "Running", "prepare")
    assert at(30, status, "Running", "prepare") == status, "a job that stays where it is has no other status"
    for second, phase in ((70, "Running"), (100, "Pending"), (130, "Running"), (190, "Stopping")):
        status = at(second, status, phase)
    times = {(item.phase, item.run): item.seconds for item in status.phase_times}
    assert times == {
        ("Queued", "prepare"): 10,
        ("Running", "prepare"): 60,
        ("Running", "training"): 30 + 60,
        ("Pending", "training"): 30,
    }
    assert status.phase_since == "2023-11-14T22:16:30Z"
    broken = describe_invalid(status, "spec.workers: no", generation=2, now_s=NOW_S + 195)
    assert ("Stopping", "training", 5) in [(item.phase, item.run, item.seconds) for item in broken.phase_times]


def test_an_operator_that_begins_to_count_late_invents_nothing() -> None:
    older = describe(JobStatus(), facts(), RUNNING, generation=1, now_s=NOW_S).model_copy(update={"phase_since": None})
    # Nothing is written for it alone: where the API server drops unknown fields, that would be at every look.
    assert describe(older, facts(), RUNNING, generation=1, now_s=NOW_S + 500) == older
    waiting = Verdict(phase="Pending", reason=Reason.BACKING_OFF)
    status = describe(older, facts(), waiting, generation=1, now_s=NOW_S + 500)
    assert (status.phase_since, status.phase_times) == ("2023-11-14T22:21:40Z", ())
    # A clock that was set back.
    assert describe(status, facts(), waiting, generation=1, now_s=NOW_S).phase_times == ()


def test_a_reason_without_a_message_speaks_its_own_sentence() -> None:
    status = describe(JobStatus(), facts(), RUNNING, generation=None, now_s=NOW_S)
    assert status.conditions[0].message == "The child of this attempt is running."


def test_the_stage_is_that_of_the_newest_attempt_s_lines() -> None:
    ours = facts(progress=line("event=progress stage=phase1 attempt=2"))
    status = describe(JobStatus(), ours, RUNNING, generation=None, now_s=NOW_S)
    assert status.stage == "phase1"
    late = facts(progress=line("event=progress stage=phase2 attempt=1"))
    assert describe(status, late, RUNNING, generation=None, now_s=NOW_S).stage == "phase1"
    next_attempt = facts(attempt=3, progress=line("event=progress stage=phase2 attempt=2"))
    assert describe(status, next_attempt, RUNNING, generation=None, now_s=NOW_S).stage is None


def test_a_message_is_cut_to_what_the_status_takes() -> None:
    verdict = Verdict(phase="Failed", reason=Reason.INVALID_INPUT, message="m" * 5000)
    status = describe(JobStatus(), facts(), verdict, generation=None, now_s=NOW_S)
    assert {len(condition.message) for condition in status.conditions} == {1024}


def test_a_status_survives_being_written_and_read() -> None:
    seen = Observed(children=(Child(run="prepare", attempt=1, state="Failed", signal=9, finished_at_s=NOW_S),))
    status = plan(sample_job(), seen, NOW_S).status
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert written["failures"][0]["finishedAt"] == "2023-11-14T22:13:20Z"
    assert JobStatus.model_validate(written) == status


def test_a_status_of_a_newer_release_is_read() -> None:
    assert JobStatus.model_validate({"phase": "Running", "invented": 1}).phase == "Running"


# What a person sees of a child, and of a spec that is wrong.


def seen_child(kind: str) -> ChildRef:
    return ChildRef(kind=kind, name="demo-a2", uid="u", attempt=2)  # type: ignore[arg-type]


def test_the_command_that_follows_the_log_is_named() -> None:
    for kind, logs in (
        ("MPIJob", "kubectl logs -f -n team-a job/demo-a2-launcher -c trainer"),
        ("Job", "kubectl logs -f -n team-a job/demo-a2 -c trainer"),
        ("Process", None),
    ):
        status = describe(JobStatus(), facts(child=seen_child(kind)), RUNNING, generation=None, now_s=NOW_S)
        assert status.logs == logs


def test_a_blocker_is_the_reason_of_a_pending_job() -> None:
    blocker = Blocker(reason=BlockerReason.UNSCHEDULABLE, message="no node fits. Next: wait")
    waits = Verdict(phase="Pending", reason=Reason.WAITING_TO_START)
    status = describe(JobStatus(), facts(blocker=blocker), waits, generation=1, now_s=NOW_S)
    assert (status.reason, status.message) == ("Unschedulable", "no node fits. Next: wait")
    blocked = {item.type: (item.status, item.reason) for item in status.conditions}
    assert blocked == {
        "Running": ("False", "WaitingToStart"),
        "Blocked": ("True", "Unschedulable"),
        "Ready": ("False", "Unschedulable"),
    }
    # What runs, or only pauses, is hindered by nothing.
    for verdict in (RUNNING, Verdict(phase="Pending", reason=Reason.BACKING_OFF)):
        free = describe(status, facts(blocker=blocker), verdict, generation=1, now_s=NOW_S + 9)
        assert free.reason == verdict.reason
        assert ("Blocked", "False", "Cleared") in {(item.type, item.status, item.reason) for item in free.conditions}


def test_an_invalid_job_keeps_its_record() -> None:
    failed = Failure(
        run="training", attempt=1, kind="Infrastructure", reason="Killed", finished_at="2023-11-14T22:13:20Z"
    )
    known = facts(child=seen_child("Job"), failures=(failed,), completed_runs=("prepare",))
    before = describe(JobStatus(), known, RUNNING, generation=1, now_s=NOW_S)
    invalid = describe_invalid(before, "spec.workers: got 0", generation=2, now_s=NOW_S + 60)
    assert (invalid.phase, invalid.reason, invalid.message) == ("Invalid", "SpecInvalid", "spec.workers: got 0")
    kept = ("attempt", "run", "child", "failures", "completed_runs", "start_time")
    assert all(getattr(invalid, field) == getattr(before, field) for field in kept)
    valid = next(item for item in invalid.conditions if item.type == "Valid")
    assert (valid.status, valid.observed_generation, invalid.observed_generation) == ("False", 2, 2)
    # Said once, not at every look.
    assert describe_invalid(invalid, "spec.workers: got 0", generation=2, now_s=NOW_S + 120) == invalid
    corrected = describe(invalid, known, RUNNING, generation=3, now_s=NOW_S + 180)
    accepted = next(item for item in corrected.conditions if item.type == "Valid")
    assert (accepted.status, accepted.reason) == ("True", "SpecAccepted")
    assert corrected.failures == (failed,)


def test_a_job_that_was_never_invalid_says_nothing_of_it() -> None:
    status = describe(JobStatus(), facts(), RUNNING, generation=1, now_s=NOW_S)
    assert [item.type for item in status.conditions] == ["Running", "Ready"]


REPORT = "event=progress stage=phase1 attempt=2 step={step} steps=200 remaining_s=3"


def test_progress_is_reported_in_figures_and_unchanged_while_they_are_equal() -> None:
    text = "event=progress stage=phase1 attempt=2 step=50 steps=200 remaining_s=130 loss=7.25 sequences_per_s=1234.5"
    report = facts(progress=line(text))
    first = describe(JobStatus(), report, RUNNING, generation=1, now_s=NOW_S)
    assert first.progress is not None
    progress = first.progress
    assert (progress.step, progress.total_steps, progress.progress_percentage, progress.eta) == (
        50,
        200,
        25,
        "2:10 min",
    )
    assert (progress.loss, progress.sequences_per_second) == ("7.25", "1234")
    assert describe(first, report, RUNNING, generation=1, now_s=NOW_S + 60) == first
    # A line of an attempt that is over says nothing about this one.
    late = facts(progress=line("event=progress stage=phase1 attempt=1 step=60 steps=200"))
    assert describe(first, late, RUNNING, generation=1, now_s=NOW_S + 60).progress == progress


def test_a_new_attempt_starts_without_the_figures_of_the_one_before() -> None:
    prepared = describe(
        JobStatus(),
        facts(attempt=1, run="prepare", progress=line("event=progress stage=prepare attempt=1 step=25 steps=25")),
        RUNNING,
        generation=1,
        now_s=NOW_S,
    )
    assert prepared.progress is not None
    # The last lines of the preparation are still the newest that were read.
    late = line("event=progress stage=prepare attempt=1 step=25 steps=25")
    training = describe(prepared, facts(progress=late), RUNNING, generation=1, now_s=NOW_S + 1)
    assert (training.stage, training.progress) == (None, None)
    started = facts(progress=line("event=stage_started stage=phase1 kind=pretrain steps=200 attempt=2"))
    begun = describe(training, started, RUNNING, generation=1, now_s=NOW_S + 2)
    assert begun.progress is not None
    assert (begun.stage, begun.progress.step, begun.progress.total_steps) == ("phase1", None, 200)
    assert describe(begun, started, RUNNING, generation=1, now_s=NOW_S + 60) == begun
    reported = describe(begun, facts(progress=line(REPORT.format(step=195))), RUNNING, generation=1, now_s=NOW_S + 3)
    # A failed attempt's figures stay as long as it is the newest.
    backing_off = Verdict(phase="Pending", reason=Reason.BACKING_OFF)
    assert describe(reported, facts(), backing_off, generation=1, now_s=NOW_S + 4).progress == reported.progress
    assert describe(reported, facts(attempt=3), RUNNING, generation=1, now_s=NOW_S + 5).progress is None
    next_stage = facts(progress=line("event=stage_started stage=phase2 steps=50 attempt=2"))
    second = describe(reported, next_stage, RUNNING, generation=1, now_s=NOW_S + 6)
    assert second.progress is not None
    assert (second.stage, second.progress.step, second.progress.loss) == ("phase2", None, None)


def test_a_job_that_has_succeeded_is_in_no_stage() -> None:
    reported = describe(JobStatus(), facts(progress=line(REPORT.format(step=200))), RUNNING, generation=1, now_s=NOW_S)
    assert reported.stage == "phase1"
    done = Verdict(phase="Succeeded", reason=Reason.ALL_STAGES_DONE)
    ended = describe(reported, facts(completed_runs=("training",)), done, generation=1, now_s=NOW_S + 1)
    assert (ended.stage, ended.progress and ended.progress.step) == (None, 200)
    failed = Verdict(phase="Failed", reason=Reason.INVALID_INPUT)
    assert describe(reported, facts(), failed, generation=1, now_s=NOW_S + 1).stage == "phase1"


def test_a_program_that_knows_no_end_keeps_its_last_step() -> None:
    reported = describe(
        JobStatus(), facts(progress=line("event=progress step=7 attempt=2")), RUNNING, generation=1, now_s=NOW_S
    )
    ended = describe(reported, facts(completed_runs=("training",)), RUNNING, generation=1, now_s=NOW_S + 1).progress
    assert ended is not None
    assert (ended.step, ended.progress_percentage) == (7, 100)


def test_the_end_of_training_keeps_the_last_report() -> None:
    reported = describe(JobStatus(), facts(progress=line(REPORT.format(step=195))), RUNNING, generation=1, now_s=NOW_S)
    done = facts(progress=line(REPORT.format(step=200) + " loss=6.5"), completed_runs=("training",))
    ended = describe(reported, done, RUNNING, generation=1, now_s=NOW_S + 1).progress
    assert ended is not None
    assert (ended.step, ended.progress_percentage, ended.eta, ended.loss) == (200, 100, None, "6.5")


def test_a_run_that_ended_between_two_reports_is_done_nevertheless() -> None:
    reported = describe(JobStatus(), facts(progress=line(REPORT.format(step=195))), RUNNING, generation=1, now_s=NOW_S)
    ended = describe(reported, facts(completed_runs=("training",)), RUNNING, generation=1, now_s=NOW_S + 1).progress
    assert ended is not None
    assert (ended.step, ended.progress_percentage) == (200, 100)
    again = describe(
        reported.model_copy(update={"progress": ended}),
        facts(completed_runs=("training",)),
        RUNNING,
        generation=1,
        now_s=NOW_S + 2,
    )
    assert again.progress == ended


def test_an_estimate_of_many_years_is_none() -> None:
    for seconds, eta in (("1e15", None), ("999999999", None), ("130", "2:10 min")):
        record = line(f"event=progress stage=phase1 step=2 steps=9 remaining_s={seconds} job=u attempt=2")
        progress = describe(JobStatus(), facts(progress=record), RUNNING, generation=1, now_s=NOW_S).progress
        assert progress is not None
        assert progress.eta == eta
        assert (progress.estimated_remaining_seconds is None) == (eta is None)
