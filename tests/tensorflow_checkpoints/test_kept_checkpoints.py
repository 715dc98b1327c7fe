"""Checkpoints that real TensorFlow has written are read without it, and compute what they did there.

Inputs: tests/fixtures/tensorflow. Observed: tensors by our names, hidden states and logits. Checkpoints of real sizes,
written when the test runs, are the business of test_real_tensorflow.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import pipeline

from bert_trainer.checkpoints.conversion import import_weights
from bert_trainer.checkpoints.tensorflow_bundle import open_bundle
from bert_trainer.checkpoints.tensorflow_import import read_tensorflow_checkpoint
from bert_trainer.model.bert import Bert
from tensorflow_cases import GOOGLE, MLPERF, SMALL, TRAINED, errors_of, model_of, outputs_of, read_expected, rows_of

WORST = 1e-5
# What tf.train.load_checkpoint returns of cls/seq_relationship.
SEQUENCE_BIAS = [0.14021234214305878, -0.09514414519071579]
SEQUENCE_WEIGHTS = [-0.014064147137105465, -0.20456628501415253, 0.057770710438489914]
PATHS = {
    "folder": GOOGLE,
    "prefix": GOOGLE / "bert_model.ckpt",
    "index file": GOOGLE / "bert_model.ckpt.index",
    "three data files and optimizer state": MLPERF,
}


def start(path: Path, model: Bert) -> None:
    """Copy a checkpoint's tensors into a model; none may be left."""
    tensors, _ = read_tensorflow_checkpoint(path, model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            tensor = tensors.pop(name)
            parameter[: len(tensor)].copy_(tensor)
    assert not tensors


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_hidden_states_and_logits_are_those_of_the_variables(path: Path) -> None:
    model = model_of(SMALL)
    start(path, model)
    errors = errors_of(outputs_of(model, rows_of(SMALL)), read_expected())
    assert set(errors) == {"hidden", "masked_lm", "next_sentence"}
    assert max(errors.values()) <= WORST, errors


def test_the_measure_would_notice_a_table_of_segments_upside_down() -> None:
    model = model_of(SMALL)
    start(GOOGLE, model)
    assert model.embeddings.segments is not None
    with torch.no_grad():
        model.embeddings.segments.weight.copy_(model.embeddings.segments.weight.flip(0))
    assert min(errors_of(outputs_of(model, rows_of(SMALL)), read_expected()).values()) > 1000 * WORST


def test_single_values_are_those_that_tensorflow_shows() -> None:
    bundle = open_bundle(GOOGLE / "bert_model.ckpt")
    kernel = bundle.read("bert/encoder/layer_1/intermediate/dense/kernel")
    assert kernel.shape == (8, 32)
    tensors, spell = read_tensorflow_checkpoint(GOOGLE, model_of(SMALL))
    assert spell("layers.1.ffn_in.weight") == "bert/encoder/layer_1/intermediate/dense/kernel"
    assert torch.equal(tensors["layers.1.ffn_in.weight"], torch.from_numpy(kernel.T.copy()))
    np.testing.assert_array_equal(
        bundle.read("cls/seq_relationship/output_bias"), np.array(SEQUENCE_BIAS, np.float32), strict=True
    )
    assert tensors["nsp.weight"].shape == (2, 8)
    np.testing.assert_array_equal(tensors["nsp.weight"][0, :3].numpy(), np.array(SEQUENCE_WEIGHTS, np.float32))


def test_optimizer_state_is_not_even_read(tmp_path: Path) -> None:
    folder = shutil.copytree(MLPERF, tmp_path / "mlperf")
    bundle = open_bundle(folder / "model.ckpt-28252")
    states = [name for name in bundle.entries if name.endswith(("/adam_m", "/adam_v", "global_step"))]
    assert (len(bundle.entries), len(states)) == (139, 93)
    for name in states:
        entry = bundle.entries[name]
        with (folder / f"model.ckpt-28252.data-{entry.shard:05d}-of-00003").open("r+b") as file:
            file.seek(entry.offset)
            file.write(b"\xff" * entry.size)
    start(folder, model_of(SMALL))


def test_a_model_without_next_sentence_head_gets_its_tensors_named_but_not_read() -> None:
    model = model_of(SMALL, objective="mlm")
    tensors, _ = read_tensorflow_checkpoint(GOOGLE, model)
    beyond = {name: str(tensor.device) for name, tensor in tensors.items() if name.startswith(("pooler", "nsp"))}
    assert beyond == dict.fromkeys(("pooler.weight", "pooler.bias", "nsp.weight", "nsp.bias"), "meta")


def test_padding_rows_of_the_vocabulary_come_along() -> None:
    config = {**SMALL, "vocab_size": 21}
    tensors, _ = read_tensorflow_checkpoint(GOOGLE, model_of(config))
    assert tensors["embeddings.tokens.weight"].shape == (27, 8)
    assert tensors["mlm_bias"].shape == (27,)


def test_the_trained_one_is_small_and_knows_its_vocabulary(tmp_path: Path) -> None:
    """What jobs on a cluster start from; they measure how well it predicts."""
    assert sum(path.stat().st_size for path in TRAINED.iterdir()) < 300_000
    account = import_weights(TRAINED, "tensorflow", tmp_path / "model")
    assert "vocabulary: 1,024 entries" in account
    assert "not used" not in account
    # Of 1,024 entries the one that is the most frequent there, which weights that nobody has trained do not know.
    (best,) = pipeline("fill-mask", model=str(tmp_path / "model"), top_k=1)("the value of [MASK] function")
    assert best["token_str"] == "the"
