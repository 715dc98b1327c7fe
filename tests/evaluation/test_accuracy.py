"""Accuracies are counts over all held-out tokens and pairs, whatever the micro-batches, shards and ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from bert_job.evaluation import DataRangeSpec
from bert_trainer.dataset.shards import ShardFolder, write_shard
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.errors import InputError
from bert_trainer.model.batch import make_batch
from bert_trainer.model.bert import Bert
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.data_loader import SampleOrder
from bert_trainer.training.evaluation import Accuracy, EvaluationSet, evaluate, unigram_baseline
from random_rows import model_config, random_model, random_samples
from threaded_world import run_threads

VOCABULARY_SIZE, SEQUENCE_LENGTH, PREDICTIONS = 61, 20, 6
ROWS_OF_SHARDS = (9, 4, 14)
CPU = torch.device("cpu")


def write_folder(folder: Path, split: str, shards: list[Samples]) -> ShardFolder:
    for number, samples in enumerate(shards):
        path = folder / f"{split}_{number:04d}.hdf5"
        write_shard(path, samples, vocabulary_sha256="", generator_version=1)
    return open_folder(folder, split)


def open_folder(folder: Path, split: Any) -> ShardFolder:
    return ShardFolder.open(
        folder,
        split=split,
        sequence_length=SEQUENCE_LENGTH,
        max_predictions=PREDICTIONS,
        vocabulary=None,
    )


@pytest.fixture(scope="module")
def shards() -> list[Samples]:
    """Rows of 4 to 20 tokens, with 1 to 6 predictions: means of means would differ from the mean."""
    rng = np.random.default_rng(5)
    return [
        random_samples(
            rng.integers(4, SEQUENCE_LENGTH + 1, rows).tolist(),
            sequence_length=SEQUENCE_LENGTH,
            predictions=PREDICTIONS,
            vocabulary_size=VOCABULARY_SIZE,
            seed=rows,
        )
        for rows in ROWS_OF_SHARDS
    ]


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory, shards: list[Samples]) -> ShardFolder:
    return write_folder(tmp_path_factory.mktemp("held_out"), "held_out", shards)


@pytest.fixture(scope="module")
def model() -> Bert:
    """Dropout is configured, and must not be used; weights that predict some tokens more than others."""
    config = model_config(32, hidden_dropout=0.5, attention_dropout=0.5)
    model = random_model(config, VOCABULARY_SIZE, seed=1, dtype=torch.float64)
    with torch.no_grad():
        model.mlm_bias[5] += 4.0
    return model


def measured(folder: ShardFolder, micro_batch_size: int = 4, max_samples: int | None = None) -> EvaluationSet:
    return EvaluationSet.of(folder, micro_batch_size=micro_batch_size, max_samples=max_samples)


def count_by_hand(model: Bert, shards: list[Samples], num_samples: int) -> tuple[int, int, int, float]:
    """Return tokens, tokens right, pairs right and summed loss, one row and one prediction after another."""
    tokens = tokens_right = pairs_right = 0
    loss = 0.0
    rows = Samples.concatenate(shards)
    for row in range(num_samples):
        length = int(rows.input_mask[row].sum())
        one = make_batch(rows.take(slice(row, row + 1)), np.array([row]))
        with torch.no_grad():
            hidden_ND = model.encode(one)
            pair_logits = model.next_sentence_logits(hidden_ND, one)[0]
        assert hidden_ND.shape[0] == length
        pairs_right += int(pair_logits[1] > pair_logits[0]) == rows.next_sentence_labels[row]
        for position, label in zip(rows.masked_lm_positions[row], rows.masked_lm_ids[row], strict=True):
            if position == 0:
                continue
            with torch.no_grad():
                logits = model.masked_lm_logits(hidden_ND[position : position + 1])[0]
            tokens += 1
            tokens_right += int(logits.argmax()) == label
            loss -= float(functional.log_softmax(logits, dim=0)[int(label)])
    return tokens, tokens_right, pairs_right, loss


@pytest.mark.parametrize("max_samples", [None, 1, 9, 11, 1000])
def test_it_is_what_counting_by_hand_gives(
    model: Bert, held_out: ShardFolder, shards: list[Samples], max_samples: int | None
) -> None:
    num_samples = min(27, max_samples or 27)
    tokens, tokens_right, pairs_right, loss = count_by_hand(model, shards, num_samples)
    found = evaluate(model, measured(held_out, max_samples=max_samples), SingleRank(), CPU)
    assert (found.samples, found.masked_tokens) == (num_samples, tokens)
    assert found.masked_lm == tokens_right / tokens
    assert found.next_sentence == pairs_right / num_samples
    answers = np.concatenate([samples.next_sentence_labels for samples in shards])[:num_samples]
    assert found.next_sentence_baseline == max((answers == 0).sum(), (answers == 1).sum()) / num_samples
    assert found.masked_lm_loss == pytest.approx(loss / tokens, rel=1e-12)
    if max_samples is None:
        assert 0 < tokens_right < tokens, "the model is neither always wrong nor always right"


@pytest.mark.parametrize(("start", "end", "rows"), [(0.9, 1.0, (24, 27)), (0.25, 0.5, (7, 14)), (0.3, 0.35, (8, 9))])
def test_a_range_is_what_counting_its_rows_by_hand_gives(
    model: Bert, held_out: ShardFolder, shards: list[Samples], start: float, end: float, rows: tuple[int, int]
) -> None:
    """27 rows in three shards; a stage that trains up to 0.9 takes rows 0 to 23."""
    first, last = rows
    data = EvaluationSet.of(held_out, micro_batch_size=4, data_range=DataRangeSpec(start=start, end=end))
    tokens, tokens_right, pairs_right, _ = count_by_hand(
        model, [Samples.concatenate(shards).take(slice(*rows))], last - first
    )
    found = evaluate(model, data, SingleRank(), CPU)
    assert (found.samples, found.masked_tokens) == (last - first, tokens)
    assert (found.masked_lm, found.next_sentence) == (tokens_right / tokens, pairs_right / found.samples)
    assert SampleOrder(held_out.rows, 1, DataRangeSpec(start=0.0, end=0.9)).num_samples == 24


def test_a_range_without_samples_is_refused(held_out: ShardFolder) -> None:
    with pytest.raises(InputError, match=r"0\.5 to 0\.51 of 27 samples to evaluate on holds none"):
        EvaluationSet.of(held_out, micro_batch_size=4, data_range=DataRangeSpec(start=0.5, end=0.51))


@pytest.mark.parametrize("micro_batch_size", [1, 3, 5, 27, 1000])
def test_micro_batches_make_no_difference(model: Bert, held_out: ShardFolder, micro_batch_size: int) -> None:
    expected = evaluate(model, measured(held_out), SingleRank(), CPU)
    found = evaluate(model, measured(held_out, micro_batch_size), SingleRank(), CPU)
    assert (found.masked_lm, found.next_sentence) == (expected.masked_lm, expected.next_sentence)
    assert found.masked_lm_loss == pytest.approx(expected.masked_lm_loss, rel=1e-12)


@pytest.mark.parametrize("ranks", [2, 3, 7, 27])
def test_the_counts_of_ranks_add_up(model: Bert, held_out: ShardFolder, ranks: int) -> None:
    expected = evaluate(model, measured(held_out), SingleRank(), CPU)
    parts = [evaluate(model, measured(held_out), SingleRank(rank=rank, size=ranks), CPU) for rank in range(ranks)]
    assert sum(part.samples for part in parts) == expected.samples
    assert sum(part.masked_tokens for part in parts) == expected.masked_tokens
    right = sum(round(part.masked_lm * part.masked_tokens) for part in parts)
    assert right == round(expected.masked_lm * expected.masked_tokens)


@pytest.mark.parametrize("ranks", [2, 3, 30])  # more ranks than samples, too
def test_every_rank_is_told_the_same_accuracy(held_out: ShardFolder, model: Bert, ranks: int) -> None:
    expected = evaluate(model, measured(held_out), SingleRank(), CPU)
    weights = model.state_dict()

    def rank(world: SingleRank) -> Accuracy:
        own = Bert(model.config, VOCABULARY_SIZE).double()
        own.load_state_dict(weights)
        return evaluate(own, measured(held_out), world, CPU)

    for found in run_threads(ranks, rank):
        assert (found.samples, found.masked_tokens) == (expected.samples, expected.masked_tokens)
        assert (found.masked_lm, found.next_sentence) == (expected.masked_lm, expected.next_sentence)


def test_evaluation_leaves_the_model_as_it_was(model: Bert, held_out: ShardFolder) -> None:
    model.train()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    first, second = (evaluate(model, measured(held_out), SingleRank(), CPU) for _ in range(2))
    assert first == second
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_without_the_objective_there_is_no_next_sentence_accuracy(held_out: ShardFolder) -> None:
    model = random_model(model_config(32, objective="mlm"), VOCABULARY_SIZE, seed=1, dtype=torch.float32)
    found = evaluate(model, measured(held_out), SingleRank(), CPU)
    assert found.next_sentence is found.next_sentence_baseline is None


def rows_with_labels(labels: list[list[int]]) -> Samples:
    """Return rows of equal tokens whose labels are the given ones."""
    rows = len(labels)
    samples = random_samples(
        [SEQUENCE_LENGTH] * rows,
        sequence_length=SEQUENCE_LENGTH,
        predictions=PREDICTIONS,
        vocabulary_size=VOCABULARY_SIZE,
        seed=1,
    )
    samples.masked_lm_positions[:], samples.masked_lm_ids[:] = 0, 0
    for row, found in enumerate(labels):
        samples.masked_lm_positions[row, : len(found)] = np.arange(1, len(found) + 1)
        samples.masked_lm_ids[row, : len(found)] = found
    return samples


def test_the_baseline_always_names_the_training_sets_commonest_masked_token(tmp_path: Path) -> None:
    """In training, 9 is masked four times, 8 and 60 three times each; 8 is the commonest one held out."""
    training = write_folder(
        tmp_path, "training", [rows_with_labels([[9, 9, 8], [8]]), rows_with_labels([[9, 60, 60, 60, 8], [9]])]
    )
    held_out = write_folder(
        tmp_path, "held_out", [rows_with_labels([[8, 8, 9], [9, 8]]), rows_with_labels([[8, 7, 8], [9, 60]])]
    )
    assert unigram_baseline(training, measured(held_out, max_samples=None)) == 3 / 10
    assert unigram_baseline(training, measured(held_out, max_samples=1)) == 1 / 3
    assert unigram_baseline(training, measured(held_out, max_samples=2)) == 2 / 5
    assert unigram_baseline(training, measured(held_out, max_samples=3)) == 2 / 8
    assert unigram_baseline(training, measured(held_out, max_samples=1000)) == 3 / 10


def test_padding_predictions_are_no_baseline(tmp_path: Path) -> None:
    """Unused predictions are 0, which would be the commonest token if they counted."""
    training = write_folder(tmp_path, "training", [rows_with_labels([[7], [7], [9]])])
    held_out = write_folder(tmp_path, "held_out", [rows_with_labels([[7], [5, 5, 5]])])
    assert unigram_baseline(training, measured(held_out, max_samples=None)) == 1 / 4
