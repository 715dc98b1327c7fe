"""A model is exported as a TensorFlow 1 checkpoint and comes back bit by bit."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from bert_job.run_config import ModelFile
from bert_trainer.checkpoints import tensorflow_export
from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.checkpoints.tensorflow_bundle import open_bundle, write_bundle
from bert_trainer.checkpoints.tensorflow_import import read_tensorflow_checkpoint
from bert_trainer.config.model_file import read_activation, read_model_file
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, read_vocabulary
from bert_trainer.errors import InputError, TrainerError
from bert_trainer.model.bert import Bert
from bert_trainer.model.layers import gelu_approximation
from random_rows import model_config, random_model
from tensorflow_cases import GOOGLE, SMALL, model_of

FILES = [
    "bert_config.json",
    "bert_model.ckpt.data-00000-of-00001",
    "bert_model.ckpt.index",
    "checkpoint",
    "vocab.txt",
]


@pytest.fixture
def vocabulary() -> Vocabulary:
    return read_vocabulary(GOOGLE / "vocab.txt")


def imported(folder: Path, config: object) -> Bert:
    model = Bert(config, 27)  # type: ignore[arg-type]
    tensors, _ = read_tensorflow_checkpoint(folder, model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            tensor = tensors.pop(name)
            parameter.zero_()
            parameter[: len(tensor)].copy_(tensor)
    assert not tensors
    return model


def test_what_tensorflow_wrote_is_written_again_byte_by_byte(tmp_path: Path, vocabulary: Vocabulary) -> None:
    model = imported(GOOGLE, model_of(SMALL, hidden_dropout=0.1, attention_dropout=0.1).config)
    export_model("tensorflow", model, vocabulary, tmp_path / "export", lower_case=True)
    assert sorted(path.name for path in (tmp_path / "export").iterdir()) == FILES
    for name in FILES:
        if name != "checkpoint":
            assert (tmp_path / "export" / name).read_bytes() == (GOOGLE / name).read_bytes(), name
    assert (tmp_path / "export" / "checkpoint").read_text() == (
        'model_checkpoint_path: "bert_model.ckpt"\nall_model_checkpoint_paths: "bert_model.ckpt"\n'
    )


@pytest.mark.parametrize(
    "changes", [{}, {"objective": "mlm"}, {"hidden_activation": "gelu_new"}], ids=["bert", "mlm only", "gelu_new"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
def test_names_back_in_are_bit_by_bit_equal(
    tmp_path: Path, vocabulary: Vocabulary, changes: dict[str, str], dtype: torch.dtype
) -> None:
    config = model_config(32, **changes)
    model = random_model(config, 27, seed=1, dtype=torch.float32).to(dtype)
    assert len(model.embeddings.tokens.weight) == 32, "the token table has rows of padding"
    export_model("tensorflow", model, vocabulary, tmp_path / "export", lower_case=True)
    back = imported(tmp_path / "export", config).to(dtype)
    for (name, parameter), (_, other) in zip(model.named_parameters(), back.named_parameters(), strict=True):
        rows = 27 if name in ("embeddings.tokens.weight", "mlm_bias") else len(parameter)
        assert torch.equal(parameter[:rows], other[:rows]), name


def test_a_checkpoint_of_a_program_with_bert_in_a_scope_is_the_same_model(tmp_path: Path) -> None:
    shutil.copytree(GOOGLE, tmp_path / "scoped")
    prefix = tmp_path / "scoped" / "bert_model.ckpt"
    bundle = open_bundle(prefix)
    # The heads stand outside: only the encoder is shared between tasks.
    scoped = sorted((name if name.startswith("cls/") else f"tower/{name}", name) for name in bundle.entries)
    tensors = [bundle.read(name) for _, name in scoped]
    write_bundle(prefix, {name: tensor.shape for (name, _), tensor in zip(scoped, tensors, strict=True)}, tensors)
    config = model_of(SMALL).config
    ours, expected = imported(tmp_path / "scoped", config), imported(GOOGLE, config)
    for (name, parameter), other in zip(ours.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(parameter, other), name
    _, spell = read_tensorflow_checkpoint(tmp_path / "scoped", ours)
    assert spell("embeddings.tokens.weight") == "tower/bert/embeddings/word_embeddings"
    assert spell("mlm_bias") == "cls/predictions/output_bias"


def test_an_index_of_several_blocks_comes_back(tmp_path: Path, vocabulary: Vocabulary) -> None:
    """BERT-large's index fits one block; only a model of hundreds of layers does not."""
    config = model_config(8, num_hidden_layers=256, intermediate_size=8)
    model = random_model(config, 27, seed=1, dtype=torch.float32)
    export_model("tensorflow", model, vocabulary, tmp_path / "export", lower_case=True)
    assert (tmp_path / "export" / "bert_model.ckpt.index").stat().st_size > 1 << 17
    back = imported(tmp_path / "export", config)
    assert torch.equal(back.layers[255].ffn_out.bias, model.layers[255].ffn_out.bias)  # type: ignore[union-attr,arg-type]


def test_the_config_has_the_eleven_keys_of_googles(tmp_path: Path, vocabulary: Vocabulary) -> None:
    config = model_config(32, hidden_dropout=0.2, attention_dropout=0.3)
    export_model(
        "tensorflow",
        random_model(config, 27, seed=1, dtype=torch.float32),
        vocabulary,
        tmp_path / "export",
        lower_case=True,
    )
    assert json.loads((tmp_path / "export" / "bert_config.json").read_text()) == {
        "attention_probs_dropout_prob": 0.3,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.2,
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "max_position_embeddings": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "type_vocab_size": 2,
        "vocab_size": 27,
    }


def test_the_form_of_gelu_by_tanh_has_the_one_name_that_googles_code_knows(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    config = model_config(32, hidden_activation="gelu_new")
    model = random_model(config, 27, seed=1, dtype=torch.float32)
    export_model("tensorflow", model, vocabulary, tmp_path / "export", lower_case=True)
    file = tmp_path / "export" / "bert_config.json"
    said = json.loads(file.read_text())
    assert (said["hidden_act"], said["gelu_approximation"]) == ("gelu", "tanh")
    # What Google's code computes under that name: modeling.py of google-research/bert.
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)
    googles = x * 0.5 * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    torch.testing.assert_close(torch.nn.functional.gelu(x, approximate=gelu_approximation(model.config)), googles)
    read = read_model_file(
        ModelFile(config_file=str(file), layer_norm_epsilon=1e-12, vocabulary_pad_multiple=8, objective=None)
    )
    assert read.hidden_activation == "gelu_new"
    with pytest.raises(InputError, match="hidden_act: got 'gelu_new'; allowed: 'gelu', this run's"):
        imported(tmp_path / "export", model_config(32))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"hidden_act": "gelu"}, "gelu"),
        ({"hidden_act": "gelu", "gelu_approximation": "none"}, "gelu"),
        ({"hidden_act": "gelu", "gelu_approximation": "tanh"}, "gelu_new"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "gelu_new"),
    ],
)
def test_a_model_s_file_says_which_form_it_means(said: dict[str, str], expected: str) -> None:
    assert read_activation(said, "hidden_act") == expected


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"architecture": "distilbert", "objective": "mlm"}, "model.architecture: got 'distilbert'; allowed: 'bert'"),
        ({"layer_norm_epsilon": 1e-5}, "model.layer_norm_epsilon: got 1e-05; allowed: 1e-12"),
    ],
)
def test_a_model_that_tensorflows_code_cannot_compute_is_refused(
    tmp_path: Path, vocabulary: Vocabulary, changes: dict[str, object], complaint: str
) -> None:
    model = Bert(model_config(32, **changes), 27)
    with pytest.raises(InputError, match=complaint):
        export_model("tensorflow", model, vocabulary, tmp_path / "export", lower_case=True)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_named_and_the_earlier_export_stays(
    tmp_path: Path, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = model_config(32)
    export_model(
        "tensorflow",
        random_model(config, 27, seed=1, dtype=torch.float32),
        vocabulary,
        tmp_path / "export",
        lower_case=True,
    )
    before = {path.name: path.read_bytes() for path in (tmp_path / "export").iterdir()}

    def fail(folder: Path, _name: str) -> None:
        assert (folder / "bert_model.ckpt.index").exists(), "half of it is written"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tensorflow_export, "write_state", fail)
    with pytest.raises(TrainerError, match="export: cannot be written, the disk is full"):
        export_model(
            "tensorflow",
            random_model(config, 27, seed=2, dtype=torch.float32),
            vocabulary,
            tmp_path / "export",
            lower_case=True,
        )
    assert {path.name: path.read_bytes() for path in (tmp_path / "export").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    assert len(open_bundle(tmp_path / "export" / "bert_model.ckpt").entries) == 46
