"""Which checkpoint of a folder is read: the only one, or the one that TensorFlow's state file names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bert_trainer.checkpoints.tensorflow_import import read_tensorflow_checkpoint
from bert_trainer.checkpoints.tensorflow_names import find_training_state, tensorflow_name
from bert_trainer.checkpoints.tensorflow_prefix import find_prefix
from bert_trainer.errors import InputError
from tensorflow_cases import GOOGLE, SMALL, model_of


def folder_of(path: Path, *names: str, state: str | None = None) -> Path:
    for name in names:
        (path / f"{name}.index").touch()
    if state is not None:
        (path / "checkpoint").write_text(state)
    return path


@pytest.mark.parametrize(
    "named",
    ["model.ckpt-9", "./model.ckpt-9", "/data/run/model.ckpt-9", "/etc/../model.ckpt-9"],
)
def test_the_state_file_decides_among_several(tmp_path: Path, named: str) -> None:
    state = f'model_checkpoint_path: "{named}"\nall_model_checkpoint_paths: "model.ckpt-10"\n'
    folder = folder_of(tmp_path, "model.ckpt-10", "model.ckpt-9", state=state)
    assert find_prefix(folder) == folder / "model.ckpt-9"


def test_the_only_one_is_taken_whatever_the_state_file_names(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "bert_model.ckpt", state='model_checkpoint_path: "../../etc/x"\n')
    assert find_prefix(folder) == folder / "bert_model.ckpt"


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        (None, r"got 2 checkpoints \(a, b\), and checkpoint there names none; allowed: one that it names"),
        ('model_checkpoint_path: "c"', r"got 2 checkpoints \(a, b\), and checkpoint there names c;"),
        ('model_checkpoint_path: "../../etc/x"', r'checkpoint: model_checkpoint_path: got "../../etc/x"; allowed: the'),
        ('model_checkpoint_path: "../a"', r'got "../a"; allowed: the name of a checkpoint beside it'),
        ('model_checkpoint_path: ".."', r'got ".."; allowed'),
        ('model_checkpoint_path: "/"', r'got "/"; allowed'),
        ('model_checkpoint_path: ""', r'got ""; allowed'),
        ("\0\0\0", r'got ""; allowed'),
    ],
)
def test_where_it_cannot_be_told_which_the_message_says_so(tmp_path: Path, state: str | None, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        find_prefix(folder_of(tmp_path, "a", "b", state=state))
    assert "hint: name one of them: its path without .index" in str(caught.value)


def test_a_pipe_instead_of_the_state_file_is_not_waited_for(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "a", "b")
    os.mkfifo(folder / "checkpoint")
    with pytest.raises(InputError, match="checkpoint there names none"):
        find_prefix(folder)


def test_a_state_file_of_empty_lines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='got ""; allowed'):
        find_prefix(folder_of(tmp_path, "a", "b", state="\n" * (1 << 20)))


def test_white_space_around_the_name_of_the_field_is_allowed(tmp_path: Path) -> None:
    assert find_prefix(folder_of(tmp_path, "a", "b", state='\n\n \tmodel_checkpoint_path \t: "b"')) == tmp_path / "b"


def test_a_folder_without_any_is_named(tmp_path: Path) -> None:
    (tmp_path / "bert_model.ckpt").touch()
    with pytest.raises(InputError, match=r"got no file whose name ends in \.index"):
        find_prefix(tmp_path)


def test_a_prefix_without_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.ckpt: got no x\.ckpt\.index there"):
        find_prefix(tmp_path / "x.ckpt")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_attention_heads": 4}, "num_attention_heads: got 4; allowed: 2, this run's"),
        ({"hidden_act": "relu"}, "hidden_act: got 'relu'; allowed: 'gelu', this run's"),
    ],
)
def test_settings_that_the_tensors_do_not_show_are_compared(
    tmp_path: Path, changes: dict[str, object], complaint: str
) -> None:
    for path in GOOGLE.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "bert_config.json").write_text(json.dumps({**SMALL, **changes}))
    with pytest.raises(InputError, match=complaint):
        read_tensorflow_checkpoint(tmp_path, model_of(SMALL))


def test_without_its_settings_a_checkpoint_is_not_taken(tmp_path: Path) -> None:
    for path in GOOGLE.glob("*.ckpt.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(InputError, match=r"bert_config\.json: cannot be read"):
        read_tensorflow_checkpoint(tmp_path, model_of(SMALL))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("embeddings.tokens.weight", "bert/embeddings/word_embeddings"),
        ("embeddings.segments.weight", "bert/embeddings/token_type_embeddings"),
        ("embeddings.norm.weight", "bert/embeddings/LayerNorm/gamma"),
        ("layers.11.query.weight", "bert/encoder/layer_11/attention/self/query/kernel"),
        ("layers.3.attention_norm.bias", "bert/encoder/layer_3/attention/output/LayerNorm/beta"),
        ("layers.0.ffn_out.bias", "bert/encoder/layer_0/output/dense/bias"),
        ("pooler.weight", "bert/pooler/dense/kernel"),
        ("mlm_transform.weight", "cls/predictions/transform/dense/kernel"),
        ("mlm_bias", "cls/predictions/output_bias"),
        ("nsp.weight", "cls/seq_relationship/output_weights"),
        ("nsp.bias", "cls/seq_relationship/output_bias"),
    ],
)
def test_names_are_googles(ours: str, theirs: str) -> None:
    assert tensorflow_name(ours) == theirs


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("global_step", True),
        ("beta1_power", True),
        ("bert/pooler/dense/kernel/adam_m", True),
        ("bert/pooler/dense/kernel/LAMB_1", True),
        ("bert/pooler/dense/kernel", False),
        ("bert/pooler/adam_melody/kernel", False),
    ],
)
def test_training_state_is_told_by_its_names(name: str, expected: bool) -> None:
    shape = [] if "/" not in name else [8, 8]
    assert find_training_state({name: shape}, {"bert/pooler/dense/kernel"}) == ({name} if expected else set())
