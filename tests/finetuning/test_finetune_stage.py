"""A finetune stage trains, evaluates, keeps the best and goes on after a stop as if nothing had happened.

Inputs: a toy vocabulary and a table with a planted rule, a model of two layers, dropout 0.1. Observed: records, files
and weights. Nothing is mocked; stops are asked for where a signal would ask.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch

from bert_job.run_stages import FinetuneStage
from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import InputError, Stopped
from bert_trainer.model.bert import Bert
from bert_trainer.training.finetuning.best import load_finetuned
from finetune_runs import assert_same_run, best, evaluated, run, without_times
from in_process import progress_records, train
from tiny_finetune import finetune_document, finetune_stage, write_task

STEPS = 10  # of a run: two epochs of 50 rows, 11 in a step


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def two_seeds(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an uninterrupted stage of two seeds."""
    folder = tmp_path_factory.mktemp("two-seeds") / "out"
    train(parse_run_config(finetune_document(folder, task, finetune_stage(task, run_seeds=[42, 43]))))
    return folder


def test_a_planted_rule_is_learnt(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", train=200, validation=60)
    stage = finetune_stage(task, epochs=4, global_batch_size=16, micro_batch_size=16)
    train(parse_run_config(finetune_document(tmp_path / "out", task, stage, checkpoint={})))
    (result,) = evaluated(tmp_path / "out", "after")
    assert result["accuracy"] == 1.0
    assert result["majority_accuracy"] == 0.5
    with (tmp_path / "out/finetune/rule/predictions/predictions.csv").open(newline="") as file:
        predicted = [(row["id"], row["prediction"]) for row in csv.DictReader(file)]
    assert predicted == [("0", "no"), ("1", "yes"), ("2", "no"), ("3", "yes"), ("4", "no"), ("5", "yes")]


def test_every_epoch_of_every_seed_is_evaluated_once_with_its_baseline(two_seeds: Path) -> None:
    found = evaluated(two_seeds)
    assert [(it["seed"], it["epoch"], it["step"], it["steps"]) for it in found] == [
        (42, 1.0, 5, 20),
        (42, 2.0, 10, 20),
        (43, 1.0, 15, 20),
        (43, 2.0, 20, 20),
    ]
    assert "rank" not in found[0]
    assert found[1]["message"].startswith("Evaluation in rule (seed 42, epoch 2 of 2): accuracy ")
    assert found[1]["message"].endswith("; majority 0.5")


def test_the_last_step_of_an_epoch_has_what_is_left_of_its_rows(two_seeds: Path) -> None:
    rows = [record["interval_sequences"] for record in progress_records(two_seeds)]
    assert rows == [11, 11, 11, 11, 6] * 4


def test_the_time_that_training_stands_still_is_added_up_over_seeds(two_seeds: Path) -> None:
    records = progress_records(two_seeds)
    evaluating_s, saving_s = ([it[name] for it in records] for name in ("evaluation_s", "checkpoint_s"))
    # Two evaluations of the first seed are behind the reports of the second.
    assert evaluating_s[0] == 0.0 < evaluating_s[5] < evaluating_s[10] < evaluating_s[15]
    assert evaluating_s == sorted(evaluating_s)
    assert saving_s == sorted(saving_s)
    assert all(it["evaluation_s"] + it["checkpoint_s"] < it["elapsed_s"] for it in records)


def test_results_have_mean_spread_and_best_over_the_seeds(two_seeds: Path) -> None:
    found, (result,) = evaluated(two_seeds), evaluated(two_seeds, "after")
    values = [max(it["accuracy"] for it in found if it["seed"] == seed) for seed in (42, 43)]
    assert result["runs"] == 2
    assert result["mean"] == pytest.approx(sum(values) / 2)
    assert result["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert result["accuracy"] == max(values)
    assert result["best_seed"] == 42 + values.index(max(values))
    results = json.loads((two_seeds / "finetune/rule/results.json").read_text())
    assert [it["seed"] for it in results["runs"]] == [42, 43]
    assert [it["epoch"] for it in results["runs"][1]["evaluations"]] == [1.0, 2.0]
    report = json.loads((two_seeds / "report.json").read_text())
    assert report["attempts"] == 1


@pytest.mark.parametrize("steps", [3, 10, 13])
def test_stopped_at_any_step_it_goes_on_bit_identically(
    two_seeds: Path, task: Path, tmp_path: Path, steps: int
) -> None:
    document = finetune_document(tmp_path / "out", task, finetune_stage(task, run_seeds=[42, 43]))
    with pytest.raises(Stopped, match=f"rule: stopped on request at step {steps}"):
        run(document, stop_after=steps)
    run(document, attempt=2)
    assert_same_run(two_seeds, tmp_path / "out")
    whole, again = ([without_times(it) for it in evaluated(folder)] for folder in (two_seeds, tmp_path / "out"))
    assert whole == again


def test_a_run_that_ended_between_best_and_record_writes_the_same_again(
    two_seeds: Path, task: Path, tmp_path: Path
) -> None:
    """As a kill leaves it after the second evaluation: its weights are kept, its record is not written."""
    shutil.copytree(two_seeds, tmp_path / "out")
    for checkpoint in (tmp_path / "out/checkpoints").iterdir():
        if checkpoint.name > "rule-00000008":
            shutil.rmtree(checkpoint)
    (tmp_path / "out/run.json").unlink()
    records = (tmp_path / "out/metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in records if json.loads(line)["event"] != "evaluated" or json.loads(line).get("step") == 5]
    (tmp_path / "out/metrics.jsonl").write_text("".join(kept))
    run(finetune_document(tmp_path / "out", task, finetune_stage(task, run_seeds=[42, 43])), attempt=2)
    assert_same_run(two_seeds, tmp_path / "out")
    assert [it["step"] for it in evaluated(tmp_path / "out")] == [5, 10, 15, 20]


def test_a_finished_stage_is_not_trained_again(two_seeds: Path, task: Path, tmp_path: Path) -> None:
    shutil.copytree(two_seeds, tmp_path / "out")
    (tmp_path / "out/run.json").unlink()
    before = len(progress_records(tmp_path / "out"))
    run(finetune_document(tmp_path / "out", task, finetune_stage(task, run_seeds=[42, 43])), attempt=2)
    assert len(progress_records(tmp_path / "out")) == before
    assert len(evaluated(tmp_path / "out", "after")) == 1


def test_killed_behind_its_last_step_it_only_writes_its_results(two_seeds: Path, task: Path, tmp_path: Path) -> None:
    shutil.copytree(two_seeds, tmp_path / "out")
    leftovers = [
        tmp_path / "out" / name for name in (".report.json.7.partial", "finetune/rule/.results.json.7.partial")
    ]
    for path in leftovers:
        path.write_text("{")
    (tmp_path / "out/.mine.partial").touch()
    (tmp_path / "out/run.json").unlink()
    records = (tmp_path / "out/metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "out/metrics.jsonl").write_text("".join(it for it in records if json.loads(it).get("when") != "after"))
    # As a kill leaves it while one version takes the place of another.
    stage = tmp_path / "out/finetune/rule"
    stage.joinpath("predictions").rename(stage / ".predictions.before")
    stage.joinpath("best").rename(stage / ".best.before")
    shutil.copytree(stage / ".best.before", stage / ".best.aside")
    run(finetune_document(tmp_path / "out", task, finetune_stage(task, run_seeds=[42, 43])), attempt=2)
    assert_same_run(two_seeds, tmp_path / "out")
    assert len(evaluated(tmp_path / "out", "after")) == 1
    assert sorted(path.name for path in stage.iterdir()) == ["begun.json", "best", "predictions", "results.json"]
    assert len(progress_records(tmp_path / "out")) == len(progress_records(two_seeds))
    assert not any(path.exists() for path in leftovers)
    assert (tmp_path / "out/.mine.partial").exists(), "no name of ours"


def test_a_rank_without_a_row_in_the_last_step_of_an_epoch(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", train=12, validation=4)
    stage = finetune_stage(task, epochs=1)
    run(finetune_document(tmp_path / "one", task, stage))
    run(finetune_document(tmp_path / "two", task, stage), ranks=2)
    assert [it["interval_sequences"] for it in progress_records(tmp_path / "two")] == [11, 1]
    one, two = ([it["loss"] for it in progress_records(tmp_path / name)] for name in ("one", "two"))
    assert two == pytest.approx(one, rel=1e-5)


def test_two_ranks_train_what_one_does(two_seeds: Path, task: Path, tmp_path: Path) -> None:
    document = finetune_document(tmp_path / "out", task, finetune_stage(task, run_seeds=[42, 43]))
    run(document, ranks=2)
    one, two = ([it["loss"] for it in progress_records(folder)] for folder in (two_seeds, tmp_path / "out"))
    assert two == pytest.approx(one, rel=1e-4)
    assert [it["step"] for it in evaluated(tmp_path / "out")] == [5, 10, 15, 20]
    for name, tensor in best(two_seeds).items():
        torch.testing.assert_close(best(tmp_path / "out")[name], tensor, rtol=1e-3, atol=1e-4)


def test_the_best_weights_are_loaded_for_what_comes_after(two_seeds: Path, task: Path) -> None:
    config = parse_run_config(finetune_document(two_seeds, task, finetune_stage(task, run_seeds=[42, 43])))
    [stage] = config.stages
    assert isinstance(stage, FinetuneStage)
    pretrained = Bert(config.sizes, len((task / "vocab.txt").read_text().splitlines()))
    model, _ = load_finetuned(two_seeds, stage, pretrained)
    assert {name: tensor.shape for name, tensor in model.named_parameters()} == {
        name: tensor.shape for name, tensor in best(two_seeds).items()
    }
    assert all(torch.equal(parameter, best(two_seeds)[name]) for name, parameter in model.named_parameters())
    assert json.loads((two_seeds / "finetune/rule/best/result.json").read_text())["labels"] == ["no", "yes"]


def test_damaged_best_weights_are_refused(two_seeds: Path, task: Path, tmp_path: Path) -> None:
    shutil.copytree(two_seeds, tmp_path / "out")
    path = tmp_path / "out/finetune/rule/best/model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    config = parse_run_config(finetune_document(tmp_path / "out", task, finetune_stage(task)))
    [stage] = config.stages
    assert isinstance(stage, FinetuneStage)
    pretrained = Bert(config.sizes, len((task / "vocab.txt").read_text().splitlines()))
    with pytest.raises(InputError, match="its SHA-256 is not the one in result.json"):
        load_finetuned(tmp_path / "out", stage, pretrained)
