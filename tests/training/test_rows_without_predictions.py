"""Rows that hold no prediction, as other programs' shards may, train their next-sentence label and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_trainer.config.checks import parse_run_config
from bert_trainer.dataset.shards import read_shard, write_shard
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.tokens.wordpiece import read_vocabulary
from bert_trainer.output.metrics import read_metrics
from bert_trainer.training.run import train
from tiny_run import pretrain_stage, run_document, write_dataset


@pytest.mark.parametrize("loss_normalization", ["global", "microBatchMean"])
def test_a_step_without_any_prediction_is_a_finite_step(tmp_path: Path, loss_normalization: str) -> None:
    dataset = write_dataset(tmp_path / "data", rows=(16,))
    (path,) = dataset.glob("*/training_0000.hdf5")
    samples = read_shard(path)
    positions, labels = samples.masked_lm_positions * 0, samples.masked_lm_ids * 0
    bare = Samples(
        samples.input_ids,
        samples.input_mask,
        samples.segment_ids,
        positions,
        labels,
        samples.next_sentence_labels,
    )
    vocabulary = read_vocabulary(dataset / "vocab.txt")
    write_shard(path, bare, vocabulary_sha256=vocabulary.sha256, generator_version=1)
    stage = pretrain_stage(length={"steps": 2}, warmup={"steps": 1}, loss_normalization=loss_normalization)
    stage |= {"learning_rate": 1e-3}
    train(parse_run_config(run_document(tmp_path / "out", dataset, stages=[stage])), attempt=1)
    losses = [record["mlm_loss"] for record in read_metrics(tmp_path / "out") if record["event"] == "progress"]
    assert losses == [0.0, 0.0]
