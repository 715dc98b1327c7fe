"""Every kind of task goes through the whole stage, and every setting of training reaches it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.errors import InputError, TrainerError
from bert_trainer.model.backends.gpu.bucket_padding import MicroBatchShape, pad_to_bucket
from bert_trainer.output.metrics import read_metrics
from bert_trainer.training.finetuning.data import make_task_batch
from finetune_runs import Document, best, evaluated, run
from in_process import progress_records
from tiny_finetune import finetune_document, finetune_stage, write_task


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"))


def write_rows(path: Path, header: str, rows: list[str]) -> str:
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


def test_a_regression(tmp_path: Path, task: Path) -> None:
    """The rating is a number's tens: not to be learnt in ten steps, but to be scored."""
    rows = [f"w{number} w{number % 7}\tw{number % 5}\t{number / 10}" for number in range(30)]
    data = {
        "train": write_rows(tmp_path / "train.tsv", "a\tb\trating", rows),
        "validation": write_rows(tmp_path / "validation.tsv", "a\tb\trating", rows[:9]),
        "columns": {"text": "a", "text_pair": "b", "label": "rating"},
    }
    run(finetune_document(tmp_path / "out", task, finetune_stage(task, task="regression", data=data)))
    (result,) = evaluated(tmp_path / "out", "after")
    assert result["metric"] == "spearman"
    assert {"spearman", "pearson"} <= result.keys()
    assert -1 <= result["spearman"] <= 1
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["stages"][0]["result"]["metrics"].keys() == {"spearman", "pearson"}
    assert report["stages"][0]["kind"] == "finetune"


def test_predictions_without_a_correlation_are_told(tmp_path: Path, task: Path) -> None:
    """Two labels of one sentence."""
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("x\t1\t\tw1 w2\nx\t0\t*\tw1 w2\n")
    stage = finetune_stage(task, task="cola", data={"folder": str(tmp_path)}, epochs=1)
    run(finetune_document(tmp_path / "out", task, stage))
    notes = [str(it["message"]) for it in read_metrics(tmp_path / "out") if it["event"] == "task_note"]
    assert notes[-1].startswith("by the best weights, all predictions of validation are ")
    assert notes[-1].endswith(": matthews_correlation does not exist and is given as 0")


def test_spans(tmp_path: Path, task: Path) -> None:
    contexts = [" ".join(f"w{(row + place) % 30}" for place in range(20)) for row in range(12)]
    rows = [f"w3 w4\t{context}\t{context.split()[row % 20]}" for row, context in enumerate(contexts)]
    data = {
        "train": write_rows(tmp_path / "train.tsv", "question\tcontext\tanswer", rows),
        "validation": write_rows(tmp_path / "validation.tsv", "question\tcontext\tanswer", rows[:5]),
        "columns": {"question": "question", "context": "context", "answer": "answer"},
    }
    windows = {"doc_stride": 5, "max_query_length": 4, "max_answer_length": 3}
    run(finetune_document(tmp_path / "out", task, finetune_stage(task, task="spans", data=data, **windows)), ranks=2)
    (result,) = evaluated(tmp_path / "out", "after")
    assert 0 <= result["exact_match"] <= result["f1"] <= 1
    # Contexts of 20 tokens in windows of 11, a stride of 5 apart.
    (read,) = [it for it in read_metrics(tmp_path / "out") if it["event"] == "task_read"]
    assert read["message"] == "12 examples to train on (36 rows), 5 in validation"
    predicted = (tmp_path / "out/finetune/rule/predictions/predictions-validation.csv").read_text()
    assert len(predicted.splitlines()) == 6


def test_texts_that_the_vocabulary_does_not_know_are_refused_and_trained_on_only_if_asked_for(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    table = task / "train.tsv"
    # Of some 200 words a third is of another language.
    table.write_text(table.read_text().replace(" w1", " \u4e00"))
    with pytest.raises(InputError, match=r"stages\.0\.data: the split 'train', .*\[UNK\]; allowed: at most 0\.1"):
        run(finetune_document(tmp_path / "refused", task, finetune_stage(task, epochs=1)))
    run(finetune_document(tmp_path / "out", task, finetune_stage(task, epochs=1, max_unknown_share=1)))
    notes = [str(it["message"]) for it in read_metrics(tmp_path / "out") if it["event"] == "task_note"]
    assert any("of the tokens are [UNK], usual is less than 0.5%" in note for note in notes)


def test_the_optimizer_state_may_be_shared_out_over_ranks(tmp_path: Path, task: Path) -> None:
    stage = finetune_stage(task, epochs=1)
    run(finetune_document(tmp_path / "one", task, stage), ranks=2)
    split = {**stage, "optimizer": {**stage["optimizer"], "partitioning": "zero1"}}
    run(finetune_document(tmp_path / "two", task, split), ranks=2)
    assert all(torch.equal(tensor, best(tmp_path / "two")[name]) for name, tensor in best(tmp_path / "one").items())


@pytest.mark.parametrize("synchronized", [True, False])
def test_the_learning_rate_grows_with_the_root_of_the_ranks(tmp_path: Path, task: Path, synchronized: bool) -> None:
    schedule = {"learning_rate": 1e-3, "warmup": {"steps": 0}, "decay": "constant", "after_warmup": "continuous"}
    stage = finetune_stage(
        task, epochs=0.4, **schedule, learning_rate_scaling="sqrtRanks", synchronize_gradients=synchronized
    )
    run(finetune_document(tmp_path / "out", task, stage), ranks=2)
    assert {it["learning_rate"] for it in progress_records(tmp_path / "out")} == {1e-3 * math.sqrt(2)}
    told = [it["message"] for it in read_metrics(tmp_path / "out") if it["event"] == "learning_rate"]
    assert told == ["Learning rate 0.00141421: 0.001 times the square root of 2 rank(s)"]


def test_a_rate_of_0_is_reported(tmp_path: Path, task: Path) -> None:
    schedule = {"learning_rate": 1e-3, "warmup": {"steps": 1}, "decay": "linear", "after_warmup": "continuous"}
    stage = finetune_stage(task, epochs=1, **schedule)
    run(finetune_document(tmp_path / "out", task, stage, logging={"every_steps": 5, "tensorboard": False}))
    rates = [it["learning_rate"] for it in progress_records(tmp_path / "out")]
    assert rates == [0.0]


def test_a_warm_up_longer_than_a_run_is_told_and_never_ends(tmp_path: Path, task: Path) -> None:
    schedule = {"learning_rate": 1e-3, "warmup": {"steps": 5}, "decay": "linear", "after_warmup": "continuous"}
    run(finetune_document(tmp_path / "out", task, finetune_stage(task, epochs=1, **schedule)))
    rates = [it["learning_rate"] for it in progress_records(tmp_path / "out")]
    assert rates == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4, 1e-3])
    notes = [it["message"] for it in read_metrics(tmp_path / "out") if it["event"] == "task_note"]
    assert notes == ["the warm-up of 5 steps is no shorter than a run, of 5 steps"]


def test_a_validation_set_that_cannot_tell_models_apart_is_told(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    (task / "validation.tsv").write_text("sentence\tanswer\nw1 w2\tyes\nw3\tyes\n")
    run(finetune_document(tmp_path / "out", task, finetune_stage(task, epochs=0.2)))
    notes = [it["message"] for it in read_metrics(tmp_path / "out") if it["event"] == "task_note"]
    assert notes == ["all examples of validation have one label: no metric of it tells a model from a constant"]


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp64"])
def test_a_stop_in_any_precision_is_exact(tmp_path: Path, task: Path, precision: str) -> None:
    def document(folder: Path) -> Document:
        return finetune_document(folder, task, finetune_stage(task, epochs=1), precision=precision)

    run(document(tmp_path / "whole"))
    with pytest.raises(TrainerError, match="stopped on request at step 3"):
        run(document(tmp_path / "out"), stop_after=3)
    run(document(tmp_path / "out"), attempt=2)
    whole, again = best(tmp_path / "whole"), best(tmp_path / "out")
    assert all(torch.equal(tensor, again[name]) for name, tensor in whole.items())
    scales = [it.get("loss_scale") for it in progress_records(tmp_path / "out")]
    assert set(scales) == ({65536.0} if precision == "fp16" else {None})


@pytest.mark.parametrize("synchronized", [True, False])
def test_gradients_that_are_not_finite_end_the_run_on_all_ranks(tmp_path: Path, task: Path, synchronized: bool) -> None:
    stage = finetune_stage(task, synchronize_gradients=synchronized)
    # More than any stage may ask for.
    rate = mock.patch("bert_trainer.training.finetuning.objective.learning_rate", return_value=1e30)
    with rate, pytest.raises(TrainerError, match=r"the gradients of step \d are not finite"):
        run(finetune_document(tmp_path / "out", task, stage), ranks=2)


@pytest.mark.parametrize(
    ("targets", "ignored"),
    [
        (np.array([1, 0]), [1, 0, -100]),
        (np.array([0.5, 2.0], np.float32), [0.5, 2.0, math.nan]),
        (np.array([[1, 2], [0, 0]]), [[1, 2], [0, 0], [-100, -100]]),
    ],
)
def test_padding_of_micro_batches_has_targets_that_count_for_nothing(targets: np.ndarray, ignored: list) -> None:
    counts, none = np.array([4, 3]), np.zeros(0, np.uint16)
    samples = RaggedSamples(
        tokens=np.arange(7, dtype=np.uint16),
        token_counts=counts,
        first_segment_counts=counts,
        next_sentence_labels=np.zeros(2, np.int8),
        prediction_counts=np.zeros(2, np.int64),
        masked_lm_positions=none,
        masked_lm_ids=none,
    )
    shape = MicroBatchShape(sequence_length=8, rows=2)
    padded = make_task_batch(samples, np.arange(2), targets, lambda batch: pad_to_bucket(batch, shape))
    assert padded.targets is not None
    assert len(padded.targets) == len(padded.row_starts_B) == len(padded.sample_numbers_B) > padded.num_rows == 2
    torch.testing.assert_close(padded.targets[:3], torch.tensor(ignored), equal_nan=True, check_dtype=False)
