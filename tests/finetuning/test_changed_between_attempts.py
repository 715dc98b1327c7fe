"""A finetune stage goes on only with what it began with: its task's files, its best weights, its learning rate.

Inputs: the toy task, and a stage of it that was stopped. Observed: messages, records, weights. Nothing is mocked.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from bert_trainer.errors import InputError, Stopped
from finetune_runs import Document, assert_same_run, evaluated, run
from in_process import progress_records
from tiny_finetune import finetune_document, finetune_stage, write_task


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(tmp_path / "task")


def document(task: Path, folder: str = "out", **changes: object) -> Document:
    return finetune_document(task.parent / folder, task, finetune_stage(task, run_seeds=[42, 43], **changes))


def stop(document: Document, steps: int, ranks: int = 1) -> Path:
    """Run some steps, and return the stage's folder."""
    with pytest.raises(Stopped):
        run(document, stop_after=steps, ranks=ranks)
    return Path(document["output_folder"]) / "finetune/rule"


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("steps", [3, 7, 10])  # before the first evaluation, behind it, between two runs
def test_files_that_changed_are_refused(task: Path, steps: int) -> None:
    stop(document(task), steps)
    for changes in (
        {"train.tsv": ("\tno", "\tother"), "validation.tsv": ("\tno", "\tother")},  # classes
        {"train.tsv": ("w7", "w8")},  # texts
        {"validation.tsv": ("w7", "w8")},
    ):
        kept = {name: (task / name).read_text() for name in changes}
        for name, (old, new) in changes.items():
            replace(task / name, old, new)
        with pytest.raises(InputError, match="rule: the task's files have changed since the stage began"):
            run(document(task), attempt=2)
        for name, text in kept.items():
            (task / name).write_text(text)
    run(document(task), attempt=2)
    run(document(task, "whole"))
    assert_same_run(task.parent / "whole", task.parent / "out")


def test_labels_to_train_on_that_changed_are_refused(task: Path) -> None:
    stop(document(task), 3)
    replace(task / "train.tsv", "\tno\n", "\tchanged\n")
    replace(task / "train.tsv", "\tyes\n", "\tno\n")
    replace(task / "train.tsv", "\tchanged\n", "\tyes\n")
    with pytest.raises(InputError, match="the task's files have changed"):
        run(document(task), attempt=2)


def test_a_stage_that_left_nothing_may_begin_with_other_files(task: Path) -> None:
    stage = stop(document(task), 1)
    shutil.rmtree(task.parent / "out/checkpoints")
    before = (stage / "begun.json").read_text()
    replace(task / "train.tsv", "w7", "w8")
    run(document(task), attempt=2)
    assert (stage / "begun.json").read_text() != before
    assert len(evaluated(task.parent / "out", "after")) == 1


def test_a_test_set_may_change(task: Path) -> None:
    stop(document(task), 3)
    replace(task / "test.tsv", "w", "w1")
    run(document(task), attempt=2)
    assert len(evaluated(task.parent / "out", "after")) == 1


def test_best_weights_that_are_gone_are_missed(task: Path) -> None:
    stage = stop(document(task), 7)
    shutil.rmtree(stage / "best")
    with pytest.raises(InputError, match=r"rule/best: is missing, but step 5 was evaluated"):
        run(document(task), attempt=2)


def test_best_weights_of_before_the_best_evaluation_are_refused(task: Path) -> None:
    """As a backup leaves them that is older than the records."""
    stage = stop(document(task), 7)
    record = json.loads((stage / "best/result.json").read_text())
    record["metrics"]["accuracy"] = 0.1
    (stage / "best/result.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"rule/best: its accuracy is 0.1, but step 5 was evaluated at 0\.\d+"):
        run(document(task), attempt=2)


def test_a_stage_whose_folder_is_gone_is_refused(task: Path) -> None:
    stage = stop(document(task), 3)
    shutil.rmtree(stage)
    with pytest.raises(InputError, match=r"rule/begun.json: is missing, but the stage has begun"):
        run(document(task), attempt=2)


def test_a_scaled_learning_rate_is_that_of_the_ranks_which_began(task: Path) -> None:
    schedule = {"learning_rate": 1e-3, "warmup": {"steps": 0}, "decay": "constant", "after_warmup": "continuous"}
    scaled = document(task, epochs=0.8, **schedule, learning_rate_scaling="sqrtRanks")
    stop(scaled, 3, ranks=2)
    run(scaled, attempt=2)
    rates = [it["learning_rate"] for it in progress_records(task.parent / "out")]
    assert rates == [1e-3 * math.sqrt(2)] * 8
