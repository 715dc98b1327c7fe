"""TFRecord files that tests write are TensorFlow's, with every field: what reads them reads TensorFlow's."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from any_layout import write_shard
from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.shards import read_shard
from bert_trainer.dataset.shards.samples import Samples
from random_rows import random_samples

CHILD = Path(__file__).with_name("tensorflow_records_child.py")
KEPT = Path(__file__).parents[1] / "fixtures" / "tensorflow-records"

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif("BERT_TEST_TENSORFLOW" not in os.environ, reason="requires BERT_TEST_TENSORFLOW"),
    pytest.mark.timeout(300),
]


def read_by_tensorflow(tokens: int, predictions: int, *paths: Path) -> list[dict[str, object]]:
    python = Path(os.environ["BERT_TEST_TENSORFLOW"]) / "bin" / "python"
    command = [str(python), str(CHILD), str(tokens), str(predictions), *map(str, paths)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def rows_of(samples: Samples) -> list[dict[str, object]]:
    names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids")
    return [
        {
            **{name: getattr(samples, name)[row].tolist() for name in names},
            "masked_lm_weights": (samples.masked_lm_positions[row] > 0).astype(float).tolist(),
            "next_sentence_labels": [int(samples.next_sentence_labels[row])],
        }
        for row in range(len(samples))
    ]


def test_tensorflow_reads_our_records_with_all_fields(tmp_path: Path) -> None:
    lengths = [512, 5, 77, *np.random.default_rng(1).integers(8, 513, 300).tolist()]
    # Ids of up to four bytes, and every length that a record's parts may take two or three bytes for.
    samples = random_samples(lengths, sequence_length=512, predictions=76, vocabulary_size=3_000_000, seed=3)
    path = tmp_path / "training_0.tfrecord"
    write_shard(path, samples, vocabulary_sha256=None, generator_version=None, layout="tfrecord")
    (found,) = read_by_tensorflow(512, 76, path)
    assert found["rows"] == rows_of(samples)
    assert found["same_bytes"]


def test_their_records_come_back_to_tensorflow_through_hdf5(tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back.tfrecord"
    source = KEPT / "part-00000-of-00001"
    assert main(["convert", str(source), str(there), "--layout", "mlperf", "--processes", "1"]) == 0
    converted = read_shard(there / "part-00000-of-00001.hdf5")
    write_shard(back, converted, vocabulary_sha256=None, generator_version=None, layout="tfrecord")
    theirs, ours = read_by_tensorflow(64, 10, source, back)
    assert ours["rows"] == theirs["rows"] == json.loads((KEPT / "rows.json").read_text())
