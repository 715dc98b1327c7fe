"""A run ends when its evaluations have stopped improving; what it found is judged as it was written."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import pytest

from bert_job.finetuning import EarlyStoppingSpec
from bert_trainer.errors import Stopped
from bert_trainer.training.finetuning.results import Findings, Run, read_findings, spread
from bert_trainer.training.finetuning.run_plan import RunPlan
from finetune_runs import assert_same_run, evaluated, run
from in_process import progress_records
from tiny_finetune import finetune_document, finetune_stage, write_task

PLAN = RunPlan(num_rows=50, rows_per_step=11, epochs=Fraction(6), num_runs=2, evaluate_every=Fraction(1))
RUN = Run(number=1, rank=0, seed=43)


def findings(*values: float) -> Findings:
    """One value for each epoch of the second run, whose steps follow the 30 of the first."""
    by_step = {(0, 30 + 5 * epoch): {"f1": value} for epoch, value in enumerate(values, start=1)}
    return Findings("f1", PLAN, {(0, 5): {"f1": 0.99}, **by_step})


@pytest.mark.parametrize(
    ("values", "patience", "least", "over"),
    [
        ((0.5, 0.6, 0.7), 1, 0.0, False),
        ((0.5, 0.5), 1, 0.0, True),  # the same again is no improvement
        ((0.5, 0.4, 0.6), 2, 0.0, False),
        ((0.5, 0.4, 0.3), 2, 0.0, True),
        ((0.5, 0.55, 0.6), 2, 0.25, True),
        ((0.5, 0.75, 0.5), 2, 0.25, False),
        ((math.nan, math.nan), 1, 0.0, True),
        ((math.nan, 0.1), 2, 0.0, False),
        ((0.5, 0.4, 0.9), 1, 0.0, True),  # over by its second evaluation, whatever came later
    ],
)
def test_evaluations_without_improvement_are_counted(
    values: tuple[float, ...], patience: int, least: float, over: bool
) -> None:
    rule = EarlyStoppingSpec(patience=patience, min_improvement=least)
    assert findings(*values).is_over(RUN, rule, up_to=60) is over
    assert not findings(*values).is_over(RUN, None, up_to=60)


def test_only_what_came_before_a_step_is_judged() -> None:
    assert not findings(0.5, 0.4).is_over(RUN, EarlyStoppingSpec(patience=1), up_to=39)
    assert findings(0.5, 0.4).is_over(RUN, EarlyStoppingSpec(patience=1), up_to=40)


def test_of_equal_evaluations_the_first_is_the_best() -> None:
    assert findings(0.5, 0.7, 0.7).best_of(RUN) == (40, {"f1": 0.7})
    assert findings(math.nan).best_of(RUN) == (35, pytest.approx({"f1": math.nan}, nan_ok=True))
    assert Findings("f1", PLAN).best_of(RUN) is None


def test_the_spread_is_that_of_a_sample() -> None:
    assert spread([0.5, 0.7]) == (pytest.approx(0.6), pytest.approx(0.02**0.5))
    assert spread([0.5]) == (0.5, None)
    assert spread([-math.inf]) == (None, None)


def test_damaged_records_are_skipped() -> None:
    good = {"event": "evaluated", "stage": "rule", "when": "during", "step": 5, "f1": 0.5, "f1_mismatched": 1}
    records = [
        good,
        {**good, "step": "6"},
        {**good, "step": True},
        {**good, "step": 7, "rank": "x"},
        {**good, "step": 8, "stage": "other"},
        {**good, "step": 9, "when": "after"},
        {**good, "step": 10, "rank": 3, "f1": "high"},
        {"event": None},
    ]
    assert read_findings(records, "rule", ["f1"]) == {
        (0, 5): {"f1": 0.5, "f1_mismatched": 1.0},
        (3, 10): {"f1_mismatched": 1.0},
    }


@pytest.mark.parametrize(
    ("every", "epochs", "steps"),
    [
        ("1", "3", [5, 10, 15]),
        ("0.5", "1", [3, 5]),
        ("2", "3", [10, 15]),
        ("0.1", "0.4", [1, 2]),
        ("1", "2.5", [5, 10, 13]),
        ("9", "1", [5]),
    ],
)
def test_evaluations_are_due_by_epochs_and_at_the_end(every: str, epochs: str, steps: list[int]) -> None:
    plan = RunPlan(50, 11, Fraction(epochs), 1, Fraction(every))
    assert [step for step in range(1, plan.steps_per_run + 1) if plan.is_evaluated(step)] == steps
    assert [plan.evaluations_left(step) for step in range(plan.steps_per_run)] == [
        sum(due > step for due in steps) for step in range(plan.steps_per_run)
    ]


def test_a_last_part_of_an_epoch_has_whole_steps() -> None:
    plan = RunPlan(num_rows=50, rows_per_step=11, epochs=Fraction("1.5"), num_runs=1, evaluate_every=Fraction(1))
    assert plan.steps_per_run == 8  # 7.5 rounded up, as transformers does
    assert [plan.rows_of(step) for step in (0, 4, 5, 7)] == [(0, 11), (44, 50), (50, 61), (72, 83)]


def test_a_run_that_is_stopped_early_jumps_to_the_next(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    stage = finetune_stage(task, run_seeds=[42, 43], epochs=5, early_stopping={"patience": 1, "min_improvement": 0.9})
    run(finetune_document(tmp_path / "whole", task, stage))
    assert [it["step"] for it in evaluated(tmp_path / "whole")] == [5, 10, 30, 35]
    assert [it["step"] for it in progress_records(tmp_path / "whole")] == [*range(1, 11), *range(26, 36)]
    # The end of the first run is the beginning of the second.
    with pytest.raises(Stopped, match="stopped on request at step 28"):
        run(finetune_document(tmp_path / "out", task, stage), stop_after=13)
    run(finetune_document(tmp_path / "out", task, stage), attempt=2)
    assert_same_run(tmp_path / "whole", tmp_path / "out")
    assert [it["step"] for it in evaluated(tmp_path / "out")] == [5, 10, 30, 35]
