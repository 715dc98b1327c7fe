"""Nothing of a source is dropped or replaced without a word: heads are whole, names are the source's own.

Inputs: weights of a small model with one thing changed. Observed: the refusals, and the sentence for the log.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.checkpoints.tensorflow_bundle import open_bundle, write_bundle
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import InputError
from weight_sources import load, nvidia_tensors, small_model, write_huggingface, write_vocabulary

Change = Callable[[dict[str, Tensor]], object]
TRANSFORM, POOLER = "cls.predictions.transform.", "bert.pooler.dense."


@pytest.fixture
def vocabulary(tmp_path: Path) -> Vocabulary:
    return write_vocabulary(tmp_path)


def write_changed(folder: Path, change: Change) -> Path:
    """Write a folder of Hugging Face whose tensors were changed."""
    write_huggingface(folder, small_model(seed=1))
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def without(*names: str) -> Change:
    return lambda tensors: [tensors.pop(name) for name in names]


@pytest.mark.parametrize(
    ("lost", "missing"),
    [
        ([f"{TRANSFORM}dense.weight"], f"1 missing\n  missing: {TRANSFORM}dense.weight [8, 8]"),
        (
            [f"{TRANSFORM}LayerNorm.bias", "cls.predictions.bias"],
            f"2 missing\n  missing: cls.predictions.bias [16], {TRANSFORM}LayerNorm.bias [8]",
        ),
        (["cls.seq_relationship.bias"], "1 missing\n  missing: cls.seq_relationship.bias [2]"),
        ([f"{POOLER}bias"], f"1 missing\n  missing: {POOLER}bias [8]"),
        ([f"{POOLER}weight", f"{POOLER}bias"], f"2 missing\n  missing: {POOLER}weight [8, 8], {POOLER}bias [8]"),
    ],
    ids=["masked-LM", "masked-LM's other end", "next sentence", "pooler", "next sentence without pooler"],
)
def test_half_a_head_is_refused(tmp_path: Path, vocabulary: Vocabulary, lost: list[str], missing: str) -> None:
    folder = write_changed(tmp_path / "model", without(*lost))
    with pytest.raises(InputError) as error:
        load(folder, "huggingface", small_model(), vocabulary)
    assert missing in str(error.value)


def test_whole_heads_may_be_missing(tmp_path: Path, vocabulary: Vocabulary) -> None:
    heads = [name for name in nvidia_tensors(small_model()) if name.startswith("cls.")]
    lost = {name.replace("dense_act", "dense") for name in heads} - {"cls.predictions.decoder.weight"}
    message = load(write_changed(tmp_path / "model", without(*lost)), "huggingface", small_model(), vocabulary)[0]
    assert message.endswith(
        "; left as drawn: mlm_bias, mlm_transform.weight, mlm_transform.bias, mlm_norm.weight, mlm_norm.bias, "
        "nsp.weight, nsp.bias"
    )


@pytest.mark.parametrize("stray", ["mlm_norm.weight", "layers.0.query.weight", "nsp.bias"])
def test_names_of_this_trainer_are_no_names_of_another(tmp_path: Path, vocabulary: Vocabulary, stray: str) -> None:
    values = torch.full(tuple(dict(small_model().named_parameters()).get(stray, torch.zeros(8)).shape), 7.0)
    left_over = f"1 left over\n  left over: '{stray}'\n"
    folder = write_changed(tmp_path / "model", lambda tensors: tensors.update({stray: values}))
    with pytest.raises(InputError) as error:
        load(folder, "huggingface", small_model(), vocabulary)
    assert left_over in str(error.value)
    path = tmp_path / "ckpt_1.pt"
    torch.save({"model": {stray: values, **nvidia_tensors(small_model())}}, path)
    with pytest.raises(InputError) as error:
        load(path, "nvidia", small_model(), vocabulary)
    assert left_over in str(error.value)
    export_model("tensorflow", small_model(), vocabulary, tmp_path / "google", lower_case=True)
    (index,) = (tmp_path / "google").glob("*.index")
    bundle = open_bundle(index.with_suffix(""))
    arrays = {name: bundle.read(name) for name in bundle.entries} | {stray: values.numpy()}
    write_bundle(
        index.with_suffix(""), {n: arrays[n].shape for n in sorted(arrays)}, (arrays[n] for n in sorted(arrays))
    )
    with pytest.raises(InputError) as error:
        load(tmp_path / "google", "tensorflow", small_model(), vocabulary)
    assert left_over in str(error.value)


@pytest.mark.parametrize(("old", "new"), [("gamma", "weight"), ("beta", "bias")])
def test_two_spellings_of_one_tensor_are_refused(tmp_path: Path, vocabulary: Vocabulary, old: str, new: str) -> None:
    name = "bert.encoder.layer.1.output.LayerNorm."
    words = f"got both {name}{new} and {name}{old}; allowed: one of them"
    tensors = nvidia_tensors(small_model())
    for both in ({f"{name}{old}": torch.ones(8)}, {f"{name}{old}": tensors[f"{name}{new}"].clone()}):
        folder = write_changed(tmp_path / str(len(list(tmp_path.iterdir()))), lambda t: t.update(both))  # noqa: B023
        with pytest.raises(InputError, match=words):
            load(folder, "huggingface", small_model(), vocabulary)
        torch.save({"model": {**both, **tensors}}, tmp_path / "ckpt_1.pt")
        with pytest.raises(InputError, match=words):
            load(tmp_path / "ckpt_1.pt", "nvidia", small_model(), vocabulary)


def with_rows(rows: int, *, bias_rows: int, value: float) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        table, bias = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
        tensors[table] = torch.cat([tensors[table], torch.full((rows, 8), value)])
        tensors[bias] = torch.cat([tensors[bias], torch.full((bias_rows,), value)])

    return change


@pytest.mark.parametrize(("value", "said"), [(1.0, "; 500 rows behind the vocabulary left out"), (0.0, "")])
def test_trained_rows_behind_the_vocabulary_are_said_to_be_left_out(
    tmp_path: Path, vocabulary: Vocabulary, value: float, said: str
) -> None:
    folder = write_changed(tmp_path / "model", with_rows(500, bias_rows=500, value=value))
    message, _, found, _ = load(folder, "huggingface", small_model(), vocabulary)
    assert message == f"Started from the weights of {folder}{said}"
    assert not found["embeddings.tokens.weight"][13:].any()


@pytest.mark.parametrize("bias_rows", [0, 499, 501])
def test_a_bias_of_another_table_is_refused(tmp_path: Path, vocabulary: Vocabulary, bias_rows: int) -> None:
    folder = write_changed(tmp_path / "model", with_rows(500, bias_rows=bias_rows, value=1.0))
    words = rf"cls.predictions.bias: got \[{13 + bias_rows}\]; allowed: \[513\]"
    with pytest.raises(InputError, match=words):
        load(folder, "huggingface", small_model(), vocabulary)


def test_a_double_that_a_float_cannot_hold_is_not_finite(tmp_path: Path, vocabulary: Vocabulary) -> None:
    bias = "cls.predictions.transform.dense.bias"
    folder = write_changed(tmp_path / "model", lambda tensors: tensors.update({bias: tensors[bias].double() + 1e300}))
    with pytest.raises(InputError, match=f"not finite.*\n?.*{bias}"):
        load(folder, "huggingface", small_model(), vocabulary)


def test_transposed_weights_are_refused(tmp_path: Path, vocabulary: Vocabulary) -> None:
    name = "bert.encoder.layer.0.intermediate.dense.weight"
    folder = write_changed(tmp_path / "model", lambda tensors: tensors.update({name: tensors[name].T.contiguous()}))
    rows, columns = load_file(folder / "model.safetensors")[name].shape
    assert rows != columns
    with pytest.raises(InputError, match=rf"{name}: got \[{rows}, {columns}\]; allowed: \[{columns}, {rows}\]"):
        load(folder, "huggingface", small_model(), vocabulary)
