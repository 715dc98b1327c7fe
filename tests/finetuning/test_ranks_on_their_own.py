"""Without synchronised gradients every rank trains a model of its own, and the best one is kept.

Inputs: the toy task, two ranks as threads. Observed: records, checkpoints, the weights that are kept.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bert_trainer.errors import InputError, Stopped
from bert_trainer.training.finetuning.results import Findings
from finetune_runs import Document, assert_same_run, best, evaluated, run, without_times
from in_process import progress_records
from tiny_finetune import finetune_document, finetune_stage, write_task
from tiny_run import TWO_LAYERS

SEEDS = [1, 2]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"))


def document(folder: Path, task: Path, **changes: object) -> Document:
    stage = finetune_stage(task, run_seeds=SEEDS, synchronize_gradients=False, **changes)
    stage["learning_rate"] = 2e-2  # which some of the seeds learn with in two epochs
    return finetune_document(folder, task, stage, model=TWO_LAYERS, checkpoint={"every_steps": 5, "keep": 9})


@pytest.fixture(scope="module")
def whole(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an uninterrupted stage: two seeds on each of two ranks."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    run(document(folder, task), ranks=2)
    return folder


def test_every_rank_trains_on_all_rows_with_a_seed_of_its_own(whole: Path) -> None:
    assert [(it["seed"], it["rank"], it["step"]) for it in evaluated(whole)] == [
        *((1, 0, 5), (3, 1, 5), (1, 0, 10), (3, 1, 10)),
        *((2, 0, 15), (4, 1, 15), (2, 0, 20), (4, 1, 20)),
    ]
    # Of both ranks together, and so of no seed.
    assert {it.get("seed") for it in progress_records(whole)} == {None}
    assert [it["interval_sequences"] for it in progress_records(whole)] == [22, 22, 22, 22, 12] * 4
    assert evaluated(whole)[1]["message"].startswith("Evaluation in rule (seed 3, rank 1, epoch 1 of 2): ")


def test_each_is_the_run_of_its_seed_alone(whole: Path, task: Path, tmp_path: Path) -> None:
    stage = finetune_stage(task, run_seeds=[4])
    stage["learning_rate"] = 2e-2
    run(finetune_document(tmp_path / "out", task, stage, model=TWO_LAYERS))
    alone = evaluated(tmp_path / "out")
    of_rank = [it for it in evaluated(whole) if it["seed"] == 4]
    assert [it["accuracy"] for it in alone] == [it["accuracy"] for it in of_rank]
    last = load_file(tmp_path / "out/checkpoints/rule-00000010/model.safetensors")
    both = load_file(whole / "checkpoints/rule-00000020/model.safetensors")
    assert all(torch.equal(both[f"rank1.{name}"], tensor) for name, tensor in last.items())


def test_the_best_one_is_kept_and_named(whole: Path) -> None:
    found, (result,) = evaluated(whole), evaluated(whole, "after")
    best_one = max(found, key=lambda it: it["accuracy"])
    assert (best_one["seed"], best_one["rank"], best_one["step"]) == (4, 1, 15)
    assert best_one["accuracy"] > 0.9
    assert (result["best_seed"], result["best_rank"], result["best_epoch"]) == (4, 1, 1.0)
    assert (result["accuracy"], result["runs"]) == (best_one["accuracy"], 4)
    assert result["message"].startswith("rule: best accuracy 0.958 (seed 4, rank 1, epoch 1); mean 0.")
    kept = json.loads((whole / "finetune/rule/best/result.json").read_text())
    assert (kept["seed"], kept["rank"], kept["step"]) == (4, 1, 15)
    checkpoint = load_file(whole / "checkpoints/rule-00000015/model.safetensors")
    assert all(torch.equal(checkpoint[f"rank1.{name}"], it) for name, it in best(whole).items())


@pytest.mark.parametrize("steps", [7, 10])
def test_stopped_they_go_on_bit_identically(whole: Path, task: Path, tmp_path: Path, steps: int) -> None:
    with pytest.raises(Stopped):
        run(document(tmp_path / "out", task), ranks=2, stop_after=steps)
    run(document(tmp_path / "out", task), ranks=2, attempt=2)
    assert_same_run(whole, tmp_path / "out")
    one, other = ([without_times(it) for it in evaluated(folder)] for folder in (whole, tmp_path / "out"))
    assert one == other


@pytest.mark.parametrize(("ranks", "steps"), [(1, 3), (3, 3), (1, 10)])  # 10: between two runs
def test_they_do_not_go_on_as_another_number_of_ranks(task: Path, tmp_path: Path, ranks: int, steps: int) -> None:
    with pytest.raises(Stopped):
        run(document(tmp_path / "out", task), ranks=2, stop_after=steps)
    with pytest.raises(InputError, match=rf"rule: got {ranks} rank\(s\); allowed: 2, as many as trained a model each"):
        run(document(tmp_path / "out", task), ranks=ranks, attempt=2)


def test_one_rank_is_over_while_the_other_trains_to_the_end(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1's runs end with their first evaluation: it takes part in nothing but what all ranks agree on."""
    monkeypatch.setattr(Findings, "is_over", lambda _, run, __, up_to: run.rank == 1 and up_to % 10 >= 5)
    run(document(tmp_path / "whole", task), ranks=2)
    found = [(it["seed"], it["rank"], it["step"]) for it in evaluated(tmp_path / "whole")]
    assert found == [(1, 0, 5), (3, 1, 5), (1, 0, 10), (2, 0, 15), (4, 1, 15), (2, 0, 20)]
    read = [it["interval_sequences"] for it in progress_records(tmp_path / "whole")]
    assert read == [22, 22, 22, 22, 12, 11, 11, 11, 11, 6] * 2
    with pytest.raises(Stopped):
        run(document(tmp_path / "out", task), ranks=2, stop_after=7)
    run(document(tmp_path / "out", task), ranks=2, attempt=2)
    assert_same_run(tmp_path / "whole", tmp_path / "out")


def test_a_rank_whose_run_is_over_waits_for_the_others(task: Path, tmp_path: Path) -> None:
    """Patience 1 and an improvement that nobody reaches: rank 0's second evaluation ends its run, as rank 1's."""
    stopping = {"patience": 1, "min_improvement": 0.9}
    run(document(tmp_path / "out", task, epochs=4, early_stopping=stopping), ranks=2)
    assert [(it["rank"], it["epoch"]) for it in evaluated(tmp_path / "out")] == [
        (0, 1.0),
        (1, 1.0),
        (0, 2.0),
        (1, 2.0),
    ] * 2
    assert [it["step"] for it in progress_records(tmp_path / "out")] == [*range(1, 11), *range(21, 31)]
