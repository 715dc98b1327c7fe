"""Verdicts on jobs under faults, from evidence made of literals."""

from __future__ import annotations

import dataclasses

import pytest

from fault import Fault
from job_watch import Commit, JobWatch, Trained, longest_pause, read_ledger, seconds_to_a_step, surviving
from verdict import Evidence, Moment, as_json, commits_by_turns, compare_ledgers, is_right_or_late, judge, worst

FAULT = Fault(name="SIGKILL of a rank", group="training", inject=lambda scene: None)
LEDGER = {("phase1", 0): (1, 2), ("phase1", 1): (3, 4), ("phase2", 0): (1, 3)}
SOUND = Evidence(
    moments=(Moment(step=20, recovery_s=12.0, trained_again=7, attempts=1),),
    phase="Succeeded",
    reasons=("SIGKILL",),
    ledger=LEDGER,
    expected_ledger=LEDGER,
    outcome={"model.safetensors": "aa"},
    expected_outcome={"model.safetensors": "aa"},
    commits=[Commit("phase1-00000010", "first", 1.0), Commit("phase1-00000020", "second", 2.0)],
    again_allowed=11,
    start_s=9.0,
)


def test_a_job_with_the_same_result_in_time_is_resilient() -> None:
    judgement = judge(FAULT, SOUND)
    assert (judgement.verdict, judgement.findings) == ("resilient", ())


@pytest.mark.parametrize(
    ("changed", "verdict", "says"),
    [
        ({"phase": "Failed"}, "failed", "ended Failed instead of Succeeded (SIGKILL)"),
        ({"phase": ""}, "failed", "ended never"),
        ({"outcome": {"model.safetensors": "bb"}}, "failed", "run's: model.safetensors: bb, expected aa"),
        ({"outcome": {}}, "failed", "run's: model.safetensors: missing, expected aa"),
        ({"ledger": {**LEDGER, ("phase2", 0): (1, 1)}}, "failed", "1 samples lost and 1 doubled"),
        (
            {"commits": [Commit("a", "first", 1.0), Commit("b", "second", 2.0), Commit("c", "first", 3.0)]},
            "failed",
            "first committed c after second had taken over",
        ),
        ({"moments": (Moment(20, 39.5),)}, "degraded", "a step again after 39.5 s; the bar is 39.0 s"),
        ({"moments": (Moment(20, 1.0, 12),)}, "degraded", "12 steps trained again; the bar is 11"),
        ({"left_over": ("pod/x",)}, "degraded", "left behind: pod/x"),
        ({"not_in_effect": "no such pod"}, "inconclusive", "no such pod"),
        # What is wrong is wrong, whether or not the fault did it.
        ({"not_in_effect": "no such pod", "phase": "Failed"}, "failed", "ended Failed"),
    ],
)
def test_every_finding_has_its_verdict(changed: dict[str, object], verdict: str, says: str) -> None:
    judgement = judge(FAULT, dataclasses.replace(SOUND, **changed))
    assert judgement.verdict == verdict
    assert says in "; ".join(judgement.findings)


@pytest.mark.parametrize(
    ("moment", "left_over", "expected"),
    [
        (Moment(20, 12.0), (), True),
        (Moment(20, 39.5, 12), (), True),
        (Moment(20, 12.0), ("pod/x",), False),
        (Moment(20, 39.5), (".report.json.7.partial",), False),
    ],
)
def test_what_is_late_is_told_from_what_is_wrong(moment: Moment, left_over: tuple[str, ...], expected: bool) -> None:
    evidence = dataclasses.replace(SOUND, moments=(moment,), left_over=left_over)
    assert is_right_or_late(as_json(judge(FAULT, evidence), evidence)) is expected


def test_neither_an_interruption_that_may_not_be_nor_a_fault_without_effect_is_late() -> None:
    patient = dataclasses.replace(FAULT, steps_interrupted=False)
    assert not is_right_or_late(as_json(judge(patient, SOUND), SOUND))
    unknown = dataclasses.replace(SOUND, not_in_effect="no such pod")
    assert not is_right_or_late(as_json(judge(FAULT, unknown), unknown))


def test_a_fault_that_may_interrupt_no_step_is_held_to_that() -> None:
    patient = dataclasses.replace(FAULT, steps_interrupted=False)
    assert judge(patient, SOUND).verdict == "degraded"
    assert judge(patient, dataclasses.replace(SOUND, moments=(Moment(20, 0.2, 0, 0, 4.0),))).verdict == "resilient"
    late = judge(patient, dataclasses.replace(SOUND, moments=(Moment(20, 0.2, 0, 0, 15.5),)))
    assert late.findings == ("the status was right after 15.5 s; the bar is 15 s",)


def test_a_job_that_has_to_fail_is_compared_up_to_where_it_got_and_for_its_reason() -> None:
    ends = dataclasses.replace(FAULT, ends="Failed", reason="NotFinite")
    found = dataclasses.replace(
        SOUND, phase="Failed", reasons=("NotFinite",), ledger={("phase1", 0): (1, 2)}, outcome={}
    )
    assert judge(ends, found).verdict == "resilient"
    assert judge(ends, dataclasses.replace(found, ledger={("phase1", 1): (3, 4)})).lost_samples == 2
    assert judge(ends, dataclasses.replace(found, reasons=("Exited",))).verdict == "failed"
    assert judge(ends, SOUND).verdict == "failed"


def test_samples_are_counted_step_by_step() -> None:
    assert compare_ledgers(LEDGER, LEDGER, whole=True) == (0, 0)
    swapped = {**LEDGER, ("phase1", 0): (3, 4), ("phase1", 1): (1, 2)}
    assert compare_ledgers(swapped, LEDGER, whole=True) == (4, 4)
    assert compare_ledgers({("phase1", 0): (1, 2, 2)}, LEDGER, whole=True) == (4, 1)


def test_runs_commit_one_after_another() -> None:
    assert not commits_by_turns([Commit("a", "first", 1.0), Commit("b", "first", 2.0), Commit("c", "second", 3.0)])


def test_the_last_time_that_a_step_was_trained_counts_and_torn_lines_are_counted() -> None:
    line = '{{"stage": "phase1", "step": 0, "samples": [{}]}}\n'
    text = line.format(1) + line.format(2) + line.format(3)[:20] + "\n"
    lines, broken = read_ledger(text)
    assert (surviving(lines), broken) == ({("phase1", 0): (2,)}, 1)


def test_the_longest_pause_begins_at_the_fault() -> None:
    lines = [Trained("phase1", step, (), seen_s) for step, seen_s in enumerate((1.0, 2.0, 2.5, 14.0, 15.0))]
    assert longest_pause(lines, 2.2) == (14.0, 11.5)
    assert longest_pause(lines, 15.0) == (15.0, 0.0)


def test_a_job_has_got_over_a_fault_once_it_has_taken_a_step() -> None:
    lines = [Trained("phase1", step, (), seen_s) for step, seen_s in enumerate((1.0, 2.0, 2.5, 14.0, 15.0))]
    assert seconds_to_a_step(lines, 2.2) == pytest.approx(11.8), "it paused after one more step"
    assert seconds_to_a_step(lines, 14.2) == pytest.approx(0.8)
    assert seconds_to_a_step(lines, 15.0) is None, "none at all is no recovery at once"


def test_steps_that_are_trained_while_a_checkpoint_is_written_are_counted(tmp_path) -> None:
    watch = JobWatch(tmp_path)
    watch.lines = [Trained("phase1", step, (), 10.0 + step) for step in range(15)]
    watch.commits = [Commit("phase1-00000010", "first", 10.0 + 11.5)]
    assert watch.most_steps_during_a_write() == 2  # steps 10 and 11, counted from 0, after the tenth step was taken
    assert watch.reached == 15


def test_the_worst_verdict_is_that_of_the_fault() -> None:
    assert worst(["resilient", "inconclusive", "degraded"]) == "degraded"
    assert worst(["resilient", "inconclusive"]) == "inconclusive"
