"""What a source holds beside the model is told by where it stands: training's state, wrappers' names, others' heads.

Inputs: weights of a small model with more tensors, or under other names. Observed: the log's sentence, the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.checkpoints.tensorflow_bundle import open_bundle, write_bundle
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import InputError
from weight_sources import load, nvidia_tensors, small_model, write_huggingface, write_vocabulary

TABLE = "bert/embeddings/word_embeddings"


@pytest.fixture
def vocabulary(tmp_path: Path) -> Vocabulary:
    return write_vocabulary(tmp_path)


def assert_loaded(found: Mapping[str, Tensor]) -> None:
    for name, tensor in small_model(seed=1).named_parameters():
        assert torch.equal(found[name], tensor), name


def write_tensorflow(folder: Path, vocabulary: Vocabulary, more: Mapping[str, NDArray[np.float32]]) -> Path:
    export_model("tensorflow", small_model(seed=1), vocabulary, folder, lower_case=True)
    prefix = folder / "bert_model.ckpt"
    bundle = open_bundle(prefix)
    arrays = {**{name: bundle.read(name) for name in bundle.entries}, **more}
    write_bundle(prefix, {n: arrays[n].shape for n in sorted(arrays)}, (arrays[n] for n in sorted(arrays)))
    return folder


def rename(folder: Path, change: dict[str, str], *, rest: str = "") -> Path:
    """Write a folder of Hugging Face whose names begin otherwise: by what they began with, or with ``rest`` before."""
    write_huggingface(folder, small_model(seed=1))
    tensors = load_file(folder / "model.safetensors")
    for name in list(tensors):
        old = next((old for old in change if name.startswith(old)), "")
        tensors[change.get(old, rest) + name.removeprefix(old)] = tensors.pop(name)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_training_s_state_is_left_on_the_disk_whatever_optimizer_wrote_it(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    slots = ("adam_m", "accum", "MyOptimizer", "LAMB_2", "ExponentialMovingAverage/local")
    more = {f"{TABLE}/{slot}": np.ones((13, 8), np.float32) for slot in slots}
    numbers = ("loss_scale", "current_loss_scale", "good_steps", "beta1_power_1", "training/step")
    more |= {name: np.ones((), np.float32) for name in numbers}
    # A variable that the checkpoint itself lacks has slots as well.
    more["bert/encoder/layer_0/output/dense/kernel/accum_2"] = np.ones((16, 8), np.float32)
    message, _, found, _ = load(
        write_tensorflow(tmp_path / "tf", vocabulary, more), "tensorflow", small_model(), vocabulary
    )  # fmt: skip
    assert message == f"Started from the weights of {tmp_path / 'tf'}"
    assert_loaded(found)


def test_of_several_checkpoints_the_log_says_which_was_read(tmp_path: Path, vocabulary: Vocabulary) -> None:
    folder = write_tensorflow(tmp_path / "tf", vocabulary, {})
    (folder / "model.ckpt-7.index").write_bytes((folder / "bert_model.ckpt.index").read_bytes())
    message, *_ = load(folder, "tensorflow", small_model(), vocabulary)
    assert message == (f"Started from the weights of {folder}; bert_model.ckpt, which `checkpoint` there names, of 2")


@pytest.mark.parametrize(
    "name", ["bert/encoder/layer_2/output/dense/kernel", "bert/stray", "cls/predictions/more/kernel"]
)
def test_a_variable_more_of_the_encoder_is_refused(tmp_path: Path, vocabulary: Vocabulary, name: str) -> None:
    folder = write_tensorflow(tmp_path / "tf", vocabulary, {name: np.ones((8, 8), np.float32)})
    with pytest.raises(InputError, match=f"1 left over\n  left over: {name}"):
        load(folder, "tensorflow", small_model(), vocabulary)


def test_a_slot_does_not_stand_in_for_its_variable(tmp_path: Path, vocabulary: Vocabulary) -> None:
    kernel = "bert/encoder/layer_0/output/dense/kernel"
    folder = write_tensorflow(tmp_path / "tf", vocabulary, {f"{kernel}/adam_m": np.ones((16, 8), np.float32)})
    bundle = open_bundle(folder / "bert_model.ckpt")
    arrays = {name: bundle.read(name) for name in bundle.entries if name != kernel}
    write_bundle(folder / "bert_model.ckpt", {n: arrays[n].shape for n in arrays}, iter(arrays.values()))
    with pytest.raises(InputError, match=f"1 missing\n  missing: {kernel}"):
        load(folder, "tensorflow", small_model(), vocabulary)


@pytest.mark.parametrize("head", ["output_weights", "cls/squad/output_weights", "loss/dense/kernel"])
def test_another_task_s_head_of_tensorflow_is_left_out_by_name(
    tmp_path: Path, vocabulary: Vocabulary, head: str
) -> None:
    more = {head: np.ones((2, 8), np.float32), f"{head}/adam_v": np.ones((2, 8), np.float32)}
    folder = write_tensorflow(tmp_path / "tf", vocabulary, more)
    message, _, found, _ = load(folder, "tensorflow", small_model(), vocabulary)
    assert message == f"Started from the weights of {folder}; not used: {head}"
    assert_loaded(found)


WRAPPERS = ["module.", "_orig_mod.", "model.", "module._orig_mod.", "bert_model.module."]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_s_name_before_all_others_is_no_part_of_them(
    tmp_path: Path, vocabulary: Vocabulary, wrapper: str
) -> None:
    folder = rename(tmp_path / "model", {}, rest=wrapper)
    message, _, found, _ = load(folder, "huggingface", small_model(), vocabulary)
    assert message == f"Started from the weights of {folder}"
    assert_loaded(found)


@pytest.mark.parametrize("root", ["", "encoder.", "model.encoder.", "0.auto_model.", "bert.bert."])
def test_an_encoder_may_stand_anywhere_and_heads_beside_it(tmp_path: Path, vocabulary: Vocabulary, root: str) -> None:
    folder = rename(tmp_path / "model", {"bert.": root, "cls.predictions.": "lm.", "cls.seq_relationship.": "pairs."})
    message, _, found, _ = load(folder, "huggingface", small_model(seed=2), vocabulary)
    assert "; left as drawn: mlm_bias" in message
    assert "; not used: lm.bias, " in message
    for name, tensor in small_model(seed=1).named_parameters():
        if name.startswith(("embeddings", "layers", "pooler")):
            assert torch.equal(found[name], tensor), name


def test_what_is_missing_is_named_as_the_file_has_it(tmp_path: Path, vocabulary: Vocabulary) -> None:
    folder = rename(tmp_path / "model", {}, rest="module.")
    tensors = load_file(folder / "model.safetensors")
    del tensors["module.bert.encoder.layer.1.output.dense.bias"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"1 missing\n  missing: module.bert.encoder.layer.1.output.dense.bias \[8\]"):
        load(folder, "huggingface", small_model(), vocabulary)


def test_two_encoders_are_named(tmp_path: Path, vocabulary: Vocabulary) -> None:
    folder = rename(tmp_path / "model", {}, rest="query.")
    tensors = load_file(folder / "model.safetensors")
    tensors |= {name.replace("query.bert", "document.bert"): tensor.clone() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"got 2 token tables \(\w+.bert.embeddings.word_embeddings.weight, "):
        load(folder, "huggingface", small_model(), vocabulary)


HEADS = ["classifier.weight", "qa_outputs.bias", "crf.transitions", "cls.tagger.weight", "score.weight"]


@pytest.mark.parametrize("head", HEADS)
def test_another_task_s_head_is_left_out_by_name(tmp_path: Path, vocabulary: Vocabulary, head: str) -> None:
    folder = write_huggingface(tmp_path / "model", small_model(seed=1))
    tensors = {**load_file(folder / "model.safetensors"), head: torch.ones(3, 8)}
    save_file(tensors, folder / "model.safetensors")
    message, _, found, _ = load(folder, "huggingface", small_model(), vocabulary)
    assert message == f"Started from the weights of {folder}; not used: {head}"
    assert_loaded(found)
    torch.save(
        {"model": {**nvidia_tensors(small_model(seed=1)), f"module.{head}": torch.ones(3, 8)}}, tmp_path / "a.pt"
    )
    message, _, found, _ = load(tmp_path / "a.pt", "nvidia", small_model(), vocabulary)
    assert message == f"Started from the weights of {tmp_path / 'a.pt'}; not used: module.{head}"
    assert_loaded(found)
