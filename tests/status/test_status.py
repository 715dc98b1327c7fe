"""From facts to the status that people read."""

from __future__ import annotations

from bert_operator.api.conditions import Reason
from bert_operator.api.job_status import JobStatus
from bert_operator.observe import Child, Observed
from bert_operator.plan import plan
from bert_operator.progress import parse_progress_line
from bert_operator.status import Facts, Verdict, describe
from sample_job import sample_job

NOW_S = 1_700_000_000.0
RUNNING = Verdict(phase="Running", reason=Reason.CHILD_RUNNING)


def facts(**rest: object) -> Facts:
    known: dict[str, object] = {
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
    (condition,) = third.conditions
    assert (condition.type, condition.status, condition.reason) == ("Running", "False", "BackingOff")
    assert condition.message == "Attempt 2 failed"
    assert condition.last_transition_time == "2023-11-14T22:14:20Z"
    assert (condition.observed_generation, third.observed_generation) == (2, 2)


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
