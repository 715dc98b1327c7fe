"""Models described by a file: ``bert_config.json`` of Google, NVIDIA and MLPerf, ``config.json`` of Hugging Face.

Google's eleven keys, all of them, and what Hugging Face adds where it changes what a model computes. Keys that are not
known here are other programs' notes and are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bert_job.model import Architecture
from bert_job.run_config import ModelConfig, ModelFile
from bert_trainer.config.json_files import read_json_file
from bert_trainer.errors import InputError

ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {
        "gelu": "gelu",
        "gelu_python": "gelu",
        "gelu_new": "gelu_new",
        "gelu_pytorch_tanh": "gelu_new",
        "gelu_fast": "gelu_new",
    }
)
"""Names of activations in such files, and ours."""
GELU_FORM = "gelu_approximation"
"""What a file may say beside ``gelu``, with the words of PyTorch's GELU: ``tanh`` or ``none``. Code for TensorFlow that
knows no other name than ``gelu`` has computed the tanh form under it since 2019; readers of Google's kind pass the key
over."""
_FORMS: Mapping[str, str] = MappingProxyType({"none": "gelu", "tanh": "gelu_new"})


@dataclass(frozen=True, slots=True)
class _Number:
    """What a key may hold."""

    low: float
    high: float
    whole: bool = True

    @property
    def allowed(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.low:g} to {self.high:g}"

    def holds(self, value: object) -> bool:
        fits_type = type(value) is int or (not self.whole and type(value) is float and math.isfinite(value))
        return fits_type and self.low <= value <= self.high  # type: ignore[operator]


_SHARE = _Number(0, 0.999999, whole=False)
_HIDDEN, _LAYERS, _HEADS, _FEED_FORWARD = _Number(8, 16384), _Number(1, 256), _Number(1, 256), _Number(8, 65536)
_SAME: Mapping[str, _Number] = MappingProxyType(
    {
        "initializer_range": _Number(1e-9, 1, whole=False),
        "max_position_embeddings": _Number(8, 65536),
        "vocab_size": _Number(5, 1 << 24),
    }
)
_OURS = {"vocab_size": "vocabulary_size"}
# The key, our field, and what it may hold; the activation's key, of which each kind of model has one, is apart.
_BERT_KEYS: Mapping[str, tuple[str, _Number]] = MappingProxyType(
    {
        "attention_probs_dropout_prob": ("attention_dropout", _SHARE),
        "hidden_dropout_prob": ("hidden_dropout", _SHARE),
        "hidden_size": ("hidden_size", _HIDDEN),
        "intermediate_size": ("intermediate_size", _FEED_FORWARD),
        "num_attention_heads": ("num_attention_heads", _HEADS),
        "num_hidden_layers": ("num_hidden_layers", _LAYERS),
        "type_vocab_size": ("segment_types", _Number(2, 1024)),
        **{key: (_OURS.get(key, key), number) for key, number in _SAME.items()},
    }
)
_DISTILBERT_KEYS: Mapping[str, tuple[str, _Number]] = MappingProxyType(
    {
        "attention_dropout": ("attention_dropout", _SHARE),
        "dim": ("hidden_size", _HIDDEN),
        "dropout": ("hidden_dropout", _SHARE),
        "hidden_dim": ("intermediate_size", _FEED_FORWARD),
        "n_heads": ("num_attention_heads", _HEADS),
        "n_layers": ("num_hidden_layers", _LAYERS),
        **{key: (_OURS.get(key, key), number) for key, number in _SAME.items()},
    }
)
_KEYS: Mapping[Architecture, tuple[Mapping[str, tuple[str, _Number]], str]] = MappingProxyType(
    {"bert": (_BERT_KEYS, "hidden_act"), "distilbert": (_DISTILBERT_KEYS, "activation")}
)
FIXED: Mapping[str, object] = MappingProxyType(
    {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
)
"""Settings of Hugging Face under which the same tensors would compute something that this trainer does not."""
_EPSILON = _Number(1e-20, 1e-2, whole=False)


def read_activation(content: Mapping[str, Any], key: str) -> Any:
    """Return our name of a file's activation, or its own where we have none. key: of the activation."""
    name = content.get(key)
    ours = ACTIVATIONS.get(name, name) if isinstance(name, str) else name
    return _FORMS.get(str(content.get(GELU_FORM, "none")), ours) if ours == "gelu" else ours


def read_model_file(described: ModelFile) -> ModelConfig:
    """Return the model that a file describes, with what the file does not say from the job.

    Raises:
        InputError: it cannot be read, lacks keys, or describes a model that is not computed here; the message lists
            everything that is wrong with it.
    """
    path = Path(described.config_file)
    content = read_json_file(path)
    named = content.get("model_type", "bert")
    architecture = next((known for known in _KEYS if known == named), None)
    if architecture is None:
        raise InputError(
            f"{path}: model_type: got {named!r:.100}; allowed: {', '.join(_KEYS)}",
            hint="name the file of a BERT",
        )
    keys, activation = _KEYS[architecture]
    problems = [*_find_problems(content, {key: number for key, (_, number) in keys.items()}, activation)]
    if problems:
        raise InputError(
            f"{path}: {len(problems)} problem(s)\n" + "\n".join(f"  {problem}" for problem in problems),
            hint="correct the file, or describe the model by a preset or by sizes",
        )
    return ModelConfig(
        architecture=architecture,
        **{field: content[key] for key, (field, _) in keys.items()},
        hidden_activation=read_activation(content, activation),
        layer_norm_epsilon=content.get("layer_norm_eps", described.layer_norm_epsilon),
        vocabulary_pad_multiple=described.vocabulary_pad_multiple,
        objective=described.objective or ("mlm" if architecture == "distilbert" else "mlm+nsp"),
        config_file=described.config_file,
    )


def _find_problems(content: Mapping[str, Any], numbers: Mapping[str, _Number], activation: str) -> list[str]:
    problems = []
    for key, number in sorted(numbers.items()):
        if key not in content:
            problems.append(f"{key} is required: {number.allowed}")
        elif not number.holds(content[key]):
            problems.append(f"{key}: got {content[key]!r:.100}; allowed: {number.allowed}")
    if content.get(activation) not in [*ACTIVATIONS]:
        is_given = activation in content
        found = f"{activation}: got {content[activation]!r:.100}; allowed" if is_given else f"{activation} is required"
        problems.append(f"{found}: {', '.join(ACTIVATIONS)}")
    if content.get(GELU_FORM, "none") not in [*_FORMS]:
        problems.append(f"{GELU_FORM}: got {content[GELU_FORM]!r:.100}; allowed: {', '.join(_FORMS)}")
    if "layer_norm_eps" in content and not _EPSILON.holds(content["layer_norm_eps"]):
        problems.append(f"layer_norm_eps: got {content['layer_norm_eps']!r:.100}; allowed: {_EPSILON.allowed}")
    problems += [
        f"{key}: got {content[key]!r:.100}; allowed: {wanted!r}"
        for key, wanted in FIXED.items()
        if content.get(key, wanted) != wanted
    ]
    return problems
