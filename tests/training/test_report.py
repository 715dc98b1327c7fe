"""The report of a run that was started several times. Inputs: records; observed: its sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from bert_trainer.config.checks import parse_run_config
from bert_trainer.output.report import draw_run, make_report, plot_loss
from tiny_finetune import finetune_document, finetune_stage
from tiny_run import pretrain_stage, run_config
from whole_configs import whole_stage

CONFIG = run_config(Path("out"), Path("data"))


def record(event: str, uid: str, attempt: int, run_s: float) -> dict[str, Any]:
    fields: dict[str, Any] = {"when": "after", "stage": "evaluate"}
    if event == "exported":
        fields = {"path": "export", "stage": "export"}
    if event == "progress":
        fields = {"stage": "phase1", "step": 6, "loss": 1.0, "interval_s": 8.0, "interval_sequences": 96}
        fields["interval_tokens"] = 1000
    return {"event": event, "attempt_uid": uid, "attempt": attempt, "run_s": run_s, "cpu_s": 2 * run_s, **fields}


FIRST = [
    record("stage_started", "uid-1", 2, 1.0),
    record("progress", "uid-1", 2, 9.0),
    record("evaluated", "uid-1", 2, 10.0),
]
DONE = record("succeeded", "uid-1", 2, 10.5)


def report(*records: dict[str, Any]) -> dict[str, Any]:
    return make_report(CONFIG, list(records), {}, ranks=1)


def test_a_stage_s_evaluations_and_its_target_are_reported_once_by_step() -> None:
    evaluation = {
        "every_steps": 2,
        "max_samples": None,
        "micro_batch_size": 8,
        "max_predictions_per_sequence": 5,
        "shards": None,
        "data_range": None,
    }
    stage = pretrain_stage(evaluation=evaluation, target={"masked_lm_accuracy": 0.5})
    config = run_config(Path("out"), Path("data"), stages=[stage, pretrain_stage("phase2")])
    of_all = {"event": "evaluated", "stage": "phase1", "when": "during", "attempt_uid": "uid-1", "attempt": 1}
    records: list[dict[str, Any]] = [
        {**of_all, "step": 2, "mlm_accuracy": 0.25, "samples": 24, "target_met": "false"},
        {**of_all, "step": 4, "mlm_accuracy": 0.5, "samples": 24, "target_met": "true", "message": "target met"},
        {**of_all, "step": 2, "mlm_accuracy": 0.25, "samples": 24, "target_met": "false"},
    ]
    first, second = make_report(config, records, {}, ranks=1)["stages"]
    assert [(found["step"], found["maskedLmAccuracy"]) for found in first["evaluations"]] == [(2, 0.25), (4, 0.5)]
    assert first["target"] == {"maskedLmAccuracy": 0.5, "met": True, "message": "target met"}
    assert "evaluations" not in second


def test_attempts_are_numbered_as_in_the_log_where_the_preparation_was_the_first() -> None:
    assert report(*FIRST)["attempts"] == 2


def test_runs_that_find_nothing_to_do_add_nothing() -> None:
    again = [
        record(event, uid, 1, 7.0)
        for uid in ("uid-2", "uid-3")
        for event in ("resumed", "evaluated", "exported", "succeeded")
    ]
    after = report(*FIRST, DONE, *again)
    assert (after["attempts"], after["seconds"], after["cpuSeconds"]) == (2, 10.5, 21.0)


@pytest.mark.parametrize("event", ["evaluated", "progress"])
def test_an_attempt_before_success_counts_whatever_it_did(event: str) -> None:
    later = [record("resumed", "uid-1", 3, 1.0), record(event, "uid-1", 3, 4.0)]
    assert (report(*FIRST, *later)["attempts"], report(*FIRST, *later)["seconds"]) == (3, 14.0)


def test_a_run_that_trains_again_after_success_counts() -> None:
    later = [record("stage_started", "uid-2", 1, 1.0), record("progress", "uid-2", 1, 4.0)]
    assert report(*FIRST, DONE, *later)["seconds"] == 14.5
    assert report(*FIRST, DONE, *later)["attempts"] == 3


def test_the_curve_goes_over_all_stages_and_past_a_loss_that_was_not_recorded(tmp_path: Path) -> None:
    shape = {"sequence_length": 32, "max_predictions_per_sequence": 5}
    stages = [pretrain_stage("phase1"), pretrain_stage("phase2"), whole_stage({"kind": "evaluate", **shape})]
    config = run_config(tmp_path, Path("data"), stages=stages)
    steps = [
        {
            "event": "progress",
            "stage": stage,
            "step": step,
            "loss": None if step == 3 else 9.0 / step,
            "mlm_accuracy": 0.1,
        }
        for stage in ("phase1", "phase2")
        for step in (1, 2, 3, 4)
    ]
    figures = {"mlm_accuracy": 0.6, "unigram_baseline": 0.06}
    plot_loss(
        config, [*steps, {"event": "evaluated", "stage": "evaluate", "when": "after", **figures}], tmp_path / "a.png"
    )
    assert matplotlib.image.imread(tmp_path / "a.png").shape == (720, 1080, 4)


def fine_tuned(**changes: Any) -> Any:
    """Return the axes of a regression with two runs of four steps, of which intervals of two are reported."""
    stage = finetune_stage(Path("task"), "stars", task="regression", run_seeds=[42, 43])
    records: list[dict[str, Any]] = [
        {"event": "progress", "stage": "stars", "step": step, "steps": 8, "seed": 42 + (step > 4), "loss": 9.0 / step}
        for step in (2, 4, 6, 8)
    ]
    records += [
        {"event": "evaluated", "stage": "stars", "when": "during", "step": step, "seed": seed, "spearman": value}
        for step, seed, value in ((4, 42, -0.3), (8, 43, 0.2))
    ]
    stages = [stage]
    if changes.get("pretrained"):
        stages.insert(0, pretrain_stage("phase1"))
        records.append({"event": "progress", "stage": "phase1", "step": 6, "loss": 5.0, "mlm_accuracy": 0.5})
    return draw_run(parse_run_config(finetune_document(Path("out"), Path("data"), *stages)), records).axes


def points(line: Any) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]


def test_every_fine_tuning_run_has_a_line_of_its_own_in_one_colour() -> None:
    loss, metric = fine_tuned()
    assert [points(line) for line in loss.lines] == [[(2, 4.5), (4, 2.25)], [(6, 1.5), (8, 1.125)]]
    assert loss.lines[0].get_color() == loss.lines[1].get_color()
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["stars"]
    assert [points(line) for line in metric.lines] == [[(4, -0.3)], [(8, 0.2)]]


def test_a_correlation_below_0_is_in_the_picture_and_named_as_in_the_log() -> None:
    loss, metric = fine_tuned()
    assert metric.get_ylim()[0] < -0.3
    assert (loss.get_ylabel(), metric.get_ylabel()) == ("loss", "task's metric")
    assert [text.get_text() for text in metric.get_legend().get_texts()] == ["stars: spearman"]


def test_pretraining_and_a_task_have_axes_of_their_own() -> None:
    loss, accuracy, metric = fine_tuned(pretrained=True)
    assert accuracy.get_ylabel() == "masked-LM accuracy, %"
    assert accuracy.get_ylim()[0] == 0
    assert points(accuracy.lines[0]) == [(6, 50)]
    assert points(metric.lines[-1]) == [(14, 0.2)], "steps go on behind those of pretraining"


def test_a_single_interval_is_a_point_that_can_be_seen() -> None:
    loss, accuracy, _ = fine_tuned(pretrained=True)
    assert (loss.lines[0].get_marker(), accuracy.lines[0].get_marker()) == ("o", "o")
    assert loss.lines[-1].get_marker() in ("None", ""), "two points have a line"
