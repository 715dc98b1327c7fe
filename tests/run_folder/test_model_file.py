"""A model that a file describes is read when a run begins, and the run keeps it, whatever becomes of the file.

Inputs: ``bert_config.json`` as Google, NVIDIA and MLPerf publish it, ``config.json`` of Hugging Face. Observed: the
sizes of the claimed run and of its resumption; the refusals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_job.model import ATTENTION_FIELDS
from bert_job.run_config import RunConfig
from bert_trainer.config.checks import parse_run_config, resolve_model
from bert_trainer.errors import InputError
from bert_trainer.output.run_folder import RunFolder
from tensorflow_cases import OURS
from tiny_run import pretrain_stage
from whole_configs import whole_document

GOOGLE: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 4096,
    "max_position_embeddings": 512,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
DISTILBERT: dict[str, Any] = {
    "model_type": "distilbert",
    "activation": "gelu_new",
    "attention_dropout": 0.2,
    "dim": 768,
    "dropout": 0,
    "hidden_dim": 3072,
    "initializer_range": 0.02,
    "max_position_embeddings": 512,
    "n_heads": 12,
    "n_layers": 6,
    "vocab_size": 28996,
}

MODERNBERT: dict[str, Any] = {
    "model_type": "modernbert",
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 80000.0,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "intermediate_size": 1152,
    "local_attention": 64,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "norm_eps": 1e-6,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "vocab_size": 50368,
}
PERIODS = ["sliding_attention" if number % 3 else "full_attention" for number in range(22)]


def described(folder: Path, content: dict[str, Any] | str, **changes: Any) -> RunConfig:
    """Write a model's file and return the run that names it."""
    file = folder / "bert_config.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    model = {
        "config_file": str(file),
        "layer_norm_epsilon": 1e-12,
        "vocabulary_pad_multiple": 8,
        "objective": None,
        **changes,
    }
    document = whole_document(
        {
            "job": {"name": "tiny", "uid": "uid-1"},
            "output_folder": str(folder / "out"),
            "dataset": {"folder": "data"},
            "stages": [pretrain_stage()],
        }
    )
    return parse_run_config({**document, "model": model})


def test_google_s_file_is_bert_large(tmp_path: Path) -> None:
    model = resolve_model(described(tmp_path, GOOGLE)).sizes
    assert model.model_dump() == {
        **{OURS.get(key, key): value for key, value in GOOGLE.items()},
        "architecture": "bert",
        "layer_norm_epsilon": 1e-12,
        "vocabulary_pad_multiple": 8,
        "objective": "mlm+nsp",
        "config_file": str(tmp_path / "bert_config.json"),
        **dict.fromkeys(ATTENTION_FIELDS),
    }


def test_hugging_face_s_files_say_more(tmp_path: Path) -> None:
    file = {
        **GOOGLE,
        "model_type": "bert",
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-5,
        "use_cache": True,
    }
    bert = resolve_model(described(tmp_path, file, objective="mlm")).sizes
    assert (bert.hidden_activation, bert.layer_norm_epsilon, bert.objective) == ("gelu_new", 1e-5, "mlm")
    distilbert = resolve_model(described(tmp_path, DISTILBERT)).sizes
    assert (distilbert.architecture, distilbert.objective, distilbert.hidden_activation) == (
        "distilbert",
        "mlm",
        "gelu_new",
    )
    assert (distilbert.hidden_size, distilbert.num_hidden_layers, distilbert.vocabulary_size) == (768, 6, 28996)
    assert (distilbert.hidden_dropout, distilbert.attention_dropout) == (0, 0.2)


def thetas(of_full: float | None, of_sliding: float, **more: Any) -> dict[str, Any]:
    return {
        "full_attention": {"rope_type": "default", "rope_theta": of_full, **more},
        "sliding_attention": {"rope_type": "default", "rope_theta": of_sliding},
    }


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, (64, 3, 80_000.0, 10_000.0)),
        ({"local_rope_theta": None}, (64, 3, 80_000.0, 80_000.0)),
        ({"layer_types": PERIODS, "global_attn_every_n_layers": 7}, (64, 3, 80_000.0, 10_000.0)),
        ({"layer_types": ["full_attention"] * 22}, (64, 1, 80_000.0, 10_000.0)),
        ({"rope_parameters": thetas(160_000.0, 90_000.0)}, (64, 3, 160_000.0, 90_000.0)),
        ({"global_rope_theta": 160_000, "rope_scaling": {"rope_type": "default"}}, (64, 3, 160_000.0, 10_000.0)),
    ],
    ids=["old names", "one theta", "layer types count", "all global", "rope parameters count", "integers"],
)
def test_modernbert_s_files_are_read_in_old_and_in_new_words(
    tmp_path: Path, said: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    model = resolve_model(described(tmp_path, {**MODERNBERT, **said}, layer_norm_epsilon=None)).sizes
    assert (model.architecture, model.objective, model.layer_norm_epsilon) == ("modernbert", "mlm", 1e-6)
    assert (model.hidden_dropout, model.attention_dropout, model.max_position_embeddings) == (0, 0, 8192)
    found = (model.attention_window, model.global_attention_every, model.global_rope_theta, model.local_rope_theta)
    assert found == expected


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"layer_types": PERIODS[1:] + PERIODS[:1]}, "layer_types: got"),
        ({"layer_types": PERIODS[:3]}, "one for each of num_hidden_layers"),
        ({"layer_types": 5}, "layer_types"),
        ({"rope_scaling": {"type": "yarn"}}, "positions that are not scaled"),
        ({"rope_parameters": thetas(1e5, 1e4, rope_type="yarn")}, "positions that are not scaled"),
        ({"rope_parameters": {"full_attention": {"type": "linear"}}}, "positions that are not scaled"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "positions that are not scaled"),
        ({"rope_parameters": thetas(1e5, 1e4, partial_rotary_factor=0.5)}, "positions that are not scaled"),
        ({"global_rope_theta": None}, "global_rope_theta: got None; allowed: a number"),
        ({"rope_parameters": thetas(None, 1e4)}, "rope_parameters.full_attention.rope_theta: got None"),
        ({"global_attn_every_n_layers": None}, "global_attn_every_n_layers: got None; allowed: an integer"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers: got 0"),
        ({"is_causal": True}, "is_causal: got True; allowed: False"),
        ({"norm_bias": True}, "norm_bias: got True; allowed: False"),
        ({"hidden_activation": "silu"}, "hidden_activation: got 'silu'"),
        ({"local_attention": "wide"}, "local_attention: got 'wide'"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: got False"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_a_modernbert_that_is_not_computed_here_is_refused(tmp_path: Path, said: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=re.escape(problem)):
        resolve_model(described(tmp_path, {**MODERNBERT, **said}))


def changed(**keys: Any) -> dict[str, Any]:
    return {**GOOGLE, **keys}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in GOOGLE.items() if name != key}


REFUSED: dict[str, tuple[dict[str, Any] | str, str]] = {
    "a missing key": (without("hidden_size"), "hidden_size is required"),
    "no activation": (without("hidden_act"), "hidden_act is required: gelu, gelu_python"),
    "another activation": (changed(hidden_act="relu"), "hidden_act: got 'relu'; allowed: gelu, gelu_python"),
    "a list of activations": (changed(hidden_act=["gelu"]), r"hidden_act: got \['gelu'\]; allowed"),
    "text for a number": (changed(hidden_size="1024"), "hidden_size: got '1024'; Input should be a valid integer"),
    "half a layer": (changed(num_hidden_layers=1.5), "num_hidden_layers: got 1.5; Input should be a valid integer"),
    "true for a number": (
        changed(num_hidden_layers=True),
        "num_hidden_layers: got True; Input should be a valid integer",
    ),
    "a model of terabytes": (
        changed(hidden_size=1 << 40),
        "hidden_size: got 1099511627776; Input should be less than or equal to 16384",
    ),
    "certain dropout": (changed(hidden_dropout_prob=1), "hidden_dropout_prob: got 1; Input should be less than 1"),
    "no number": (changed(layer_norm_eps=float("nan")), "layer_norm_eps: got nan; Input should be a finite number"),
    "null for a number": (changed(vocab_size=None), "vocab_size is required"),
    "null for an epsilon": (changed(layer_norm_eps=None), "layer_norm_eps: got None; Input should be a valid number"),
    "other positions": (changed(position_embedding_type="relative_key"), "got 'relative_key'; allowed: 'absolute'"),
    "another model": (
        changed(model_type="roberta"),
        "model_type: got 'roberta'; allowed: bert, distilbert, modernbert",
    ),
    "a list for a model": (changed(model_type=["bert"]), "model_type: got"),
    "no document": ("{", "not a JSON document"),
    "no object": ("[1]", "got a list; allowed: a JSON object"),
    "unequal heads": (changed(num_attention_heads=15), "model.num_attention_heads: got 15; allowed: a divisor"),
    "too few positions": (changed(max_position_embeddings=16), r"stages.0.sequence_length: got 32; allowed: at most"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_describes_no_model_is_refused_by_field(tmp_path: Path, case: str) -> None:
    content, words = REFUSED[case]
    with pytest.raises(InputError, match=words) as error:
        RunFolder.claim(described(tmp_path, content), attempt=1)
    assert str(tmp_path / "bert_config.json") in str(error.value)
    assert not (tmp_path / "out" / "run.json").exists()


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="model.config_file: .*bert_config.json: 11 problem"):
        resolve_model(described(tmp_path, {}))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    config = described(tmp_path, GOOGLE)
    (tmp_path / "bert_config.json").unlink()
    with pytest.raises(InputError, match=r"model.config_file: .*bert_config.json: cannot be read \(No such file"):
        RunFolder.claim(config, attempt=1)


LATER: dict[str, Callable[[Path], object]] = {
    "edited": lambda file: file.write_text(json.dumps(changed(num_hidden_layers=12))),
    "broken": lambda file: file.write_text("{"),
    "deleted": lambda file: file.unlink(),
    "as it was": lambda file: None,
}


@pytest.mark.parametrize("later", LATER)
def test_a_run_keeps_the_model_that_it_began_with(tmp_path: Path, caplog: pytest.LogCaptureFixture, later: str) -> None:
    config = described(tmp_path, GOOGLE)
    begun = RunFolder.claim(config, attempt=1).config
    LATER[later](tmp_path / "bert_config.json")
    again = RunFolder.claim(config, attempt=2)
    assert again.config.sizes == begun.sizes
    assert again.config.sizes.num_hidden_layers == 24
    frozen = json.loads((tmp_path / "out" / "run-config.json").read_text())["model"]
    assert (frozen["num_hidden_layers"], frozen["config_file"]) == (24, str(tmp_path / "bert_config.json"))
    assert bool(caplog.records) == (later != "as it was")


def test_another_file_is_compared_by_what_it_says(tmp_path: Path) -> None:
    config = described(tmp_path, GOOGLE)
    RunFolder.claim(config, attempt=1)
    for name, layers in (("same.json", 24), ("smaller.json", 12)):
        (tmp_path / name).write_text(json.dumps(changed(num_hidden_layers=layers)))
    moved = config.model.model_copy(update={"config_file": str(tmp_path / "same.json")})
    assert RunFolder.claim(config.model_copy(update={"model": moved}), attempt=2).config.sizes.num_hidden_layers == 24
    smaller = config.model.model_copy(update={"config_file": str(tmp_path / "smaller.json")})
    with pytest.raises(InputError, match="model.num_hidden_layers: was 24, is 12"):
        RunFolder.claim(config.model_copy(update={"model": smaller}), attempt=3)
    padded = config.model.model_copy(update={"config_file": str(tmp_path / "same.json"), "vocabulary_pad_multiple": 64})
    with pytest.raises(InputError, match="model.vocabulary_pad_multiple: was 8, is 64"):
        RunFolder.claim(config.model_copy(update={"model": padded}), attempt=3)


def test_mistakes_in_either_kind_of_model_are_named_as_they_stand_in_the_document(tmp_path: Path) -> None:
    config = described(tmp_path, GOOGLE).model_dump(mode="json")
    with pytest.raises(InputError, match=r"\n  model.vocabulary_pad_multiple: got 0"):
        parse_run_config({**config, "model": {**config["model"], "vocabulary_pad_multiple": 0}})
    with pytest.raises(InputError, match=r"\n  model.hidden_size: got 0"):
        parse_run_config({**config, "model": {**GOOGLE, "hidden_size": 0}})
