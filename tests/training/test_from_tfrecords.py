"""A TFRecord file that TensorFlow has written is trained on as its HDF5 conversion is, bit by bit.

Inputs: the kept file of 40 rows, its conversion to the compact layout, a tiny model with dropout. Observed: the losses
of every step, the weights after the last, the samples on the ledger.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import torch

from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.shards import list_shards
from bert_trainer.training.session import Session
from in_process import progress_records, train
from tiny_run import pretrain_stage, run_config

THEIRS = Path(__file__).parents[1] / "fixtures" / "tensorflow-records" / "part-00000-of-00001"
ENTRIES, SEQUENCE_LENGTH, PREDICTIONS = 30522, 64, 10
STEPS = 4  # of 16 samples: 64 are more than the file has, so an epoch ends among them


def write_vocabulary(path: Path) -> None:
    """Write one whose special tokens have the ids that they have in BERT's."""
    words = ["[PAD]", *(f"[unused{n}]" for n in range(99)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    path.write_text("\n".join([*words, *(f"w{n}" for n in range(len(words), ENTRIES))]) + "\n")


def train_on(shards: Path, folder: Path) -> Session:
    stage = pretrain_stage(
        shards=str(shards),
        sequence_length=SEQUENCE_LENGTH,
        max_predictions_per_sequence=PREDICTIONS,
        length={"steps": STEPS},
    )
    logging = {"every_steps": 1, "tensorboard": False, "sample_ledger": True}
    return train(run_config(folder, shards.parent, stages=[stage], checkpoint={"keep": 1}, logging=logging))


def test_records_train_the_bits_that_their_conversion_trains(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "vocab.txt")
    records, converted = tmp_path / "records", tmp_path / "converted"
    records.mkdir()
    shutil.copy(THEIRS, records)
    assert main(["convert", str(records), str(converted), "--layout", "compact", "--processes", "1"]) == 0
    assert [path.name for path in list_shards(converted)] == ["part-00000-of-00001.hdf5"]

    one, other = train_on(records, tmp_path / "one"), train_on(converted, tmp_path / "other")

    found = progress_records(tmp_path / "one")
    assert [record["step"] for record in found] == [1, 2, 3, 4]
    # Nothing is known before the first step: any token, either label.
    assert abs(found[0]["loss"] - math.log(ENTRIES) - math.log(2)) < 0.3
    names = ("mlm_loss", "nsp_loss", "gradient_norm")
    figures = [[record[name] for name in names] for record in found]
    assert figures == [[record[name] for name in names] for record in progress_records(tmp_path / "other")]
    assert torch.equal(one.learner.parameters.values, other.learner.parameters.values)
    assert (tmp_path / "one" / "ledger.jsonl").read_text() == (tmp_path / "other" / "ledger.jsonl").read_text()
