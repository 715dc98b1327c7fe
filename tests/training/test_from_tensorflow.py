"""A run starts from a TensorFlow checkpoint as it does from any other, whole and strictly.

Inputs: the toy data set, a run of a few steps, the TensorFlow checkpoint that its model is written as. Observed: the
second run's weights, the line that says what was loaded, refusals.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.checkpoints.tensorflow_bundle import open_bundle, write_bundle
from bert_trainer.dataset.tokens.wordpiece import read_vocabulary
from bert_trainer.errors import InputError
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.session import Session
from in_process import train
from tiny_run import pretrain_stage, run_config, write_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Session:
    return train(run_config(tmp_path_factory.mktemp("first"), dataset, stages=[pretrain_stage()]))


@pytest.fixture
def checkpoint(tmp_path: Path, dataset: Path, first_run: Session) -> Path:
    export_model(
        "tensorflow",
        first_run.learner.model,
        read_vocabulary(dataset / "vocab.txt"),
        tmp_path / "written",
        lower_case=True,
    )
    return tmp_path / "written"


def open_session(folder: Path, dataset: Path, path: Path) -> Session:
    """Set a run up that starts from a checkpoint, without training it."""
    options = {"initial_checkpoint": {"path": str(path), "format": "tensorflow"}}
    session = Session.open(run_config(folder, dataset, **options), SingleRank(), attempt=1)
    session.close()
    return session


@pytest.mark.parametrize("place", [".", "bert_model.ckpt"])
def test_its_weights_are_bit_by_bit_those_that_were_written(
    tmp_path: Path, dataset: Path, first_run: Session, checkpoint: Path, place: str
) -> None:
    second = open_session(tmp_path / "second", dataset, checkpoint / place)
    assert torch.equal(second.learner.parameters.values, first_run.learner.parameters.values)
    assert not second.learner.optimizer.first_moment.any()
    (told,) = [record["message"] for record in read_metrics(tmp_path / "second") if record["event"] == "initialized"]
    assert told == f"Started from the weights of {checkpoint / place}"


def rewrite(checkpoint: Path, changes: dict[str, tuple[str, ...]]) -> None:
    """Write the checkpoint again; every variable of ``changes`` under the names given, so none for leaving it out."""
    bundle = open_bundle(checkpoint / "bert_model.ckpt")
    tensors = {new: bundle.read(name) for name in bundle.entries for new in changes.get(name, (name,))}
    shapes = {name: tensors[name].shape for name in sorted(tensors)}
    write_bundle(checkpoint / "bert_model.ckpt", shapes, (tensors[name] for name in shapes))


def test_every_tensor_is_accounted_for(tmp_path: Path, dataset: Path, checkpoint: Path) -> None:
    kernel, table = "bert/encoder/layer_0/output/dense/kernel", "bert/embeddings/position_embeddings"
    rewrite(checkpoint, {kernel: (), "bert/pooler/dense/bias": ("bert/pooler/dense/bias", "a/b", table), table: ()})
    with pytest.raises(InputError) as caught:
        open_session(tmp_path / "second", dataset, checkpoint)
    message = str(caught.value)
    assert "1 missing, 1 of another shape, 1 left over" in message
    assert kernel in message
    assert f"{table}: got [" in message
    assert "a/b" in message


def test_a_vocabulary_beside_it_must_be_the_run_s(tmp_path: Path, dataset: Path, checkpoint: Path) -> None:
    text = (checkpoint / "vocab.txt").read_text()
    (checkpoint / "vocab.txt").write_text(text.replace("w7\n", "another\n"))
    with pytest.raises(InputError, match=r"vocab\.txt: entry 12: got 'another'; allowed: 'w7'"):
        open_session(tmp_path / "second", dataset, checkpoint)


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("content", ["[" * 100_000, "[]", "{", json.dumps({"num_attention_heads": 3})])
def test_settings_that_are_none_or_others_are_refused_by_name(
    tmp_path: Path, dataset: Path, checkpoint: Path, content: str
) -> None:
    (checkpoint / "bert_config.json").write_text(content)
    with pytest.raises(InputError, match=r"initial_checkpoint.path: .*/bert_config\.json: "):
        open_session(tmp_path / "second", dataset, checkpoint)
