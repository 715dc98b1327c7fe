"""Models described by a file: ``bert_config.json`` of Google, NVIDIA and MLPerf, ``config.json`` of Hugging Face.

Google's eleven keys, all of them, and what Hugging Face adds where it changes what a model computes. Keys that are not
known here are other programs' notes and are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from bert_job.foreign_text import printable
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


_SAME = ("initializer_range", "max_position_embeddings")
# The keys of each kind of model by our fields; the activation's key is apart, since its values have other names too.
_BERT_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "attention_dropout": "attention_probs_dropout_prob",
        "hidden_dropout": "hidden_dropout_prob",
        "hidden_size": "hidden_size",
        "intermediate_size": "intermediate_size",
        "num_attention_heads": "num_attention_heads",
        "num_hidden_layers": "num_hidden_layers",
        "segment_types": "type_vocab_size",
        "vocabulary_size": "vocab_size",
        **{name: name for name in _SAME},
    }
)
_DISTILBERT_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "attention_dropout": "attention_dropout",
        "hidden_dropout": "dropout",
        "hidden_size": "dim",
        "intermediate_size": "hidden_dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "vocabulary_size": "vocab_size",
        **{name: name for name in _SAME},
    }
)
_KEYS: Mapping[Architecture, tuple[Mapping[str, str], str]] = MappingProxyType(
    {"bert": (_BERT_KEYS, "hidden_act"), "distilbert": (_DISTILBERT_KEYS, "activation")}
)
_EPSILON = "layer_norm_eps"
FIXED: Mapping[str, object] = MappingProxyType(
    {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
)
"""Settings of Hugging Face under which the same tensors would compute something that this trainer does not."""


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
    names, activation = _KEYS[architecture]
    keys = {**names, "layer_norm_epsilon": _EPSILON}
    given = {name: content[key] for name, key in keys.items() if key in content}
    absent = [name for name in names if given.get(name) is None]
    problems = [f"{names[name]} is required" for name in absent]
    problems += _find_words_not_known(content, activation)
    try:
        model = ModelConfig(
            **{
                **described.model_dump(include={"vocabulary_pad_multiple", "layer_norm_epsilon", "config_file"}),
                **given,
            },
            architecture=architecture,
            hidden_activation=read_activation(content, activation),
            objective=described.objective or ("mlm" if architecture == "distilbert" else "mlm+nsp"),
        )
    except ValidationError as error:
        problems += [
            f"{keys[name]}: got {item['input']!r:.100}; {printable(item['msg'])}"
            for item in error.errors()
            if (name := str(item["loc"][0])) in keys and name not in absent
        ]
    if problems:
        raise InputError(
            f"{path}: {len(problems)} problem(s)\n" + "\n".join(f"  {problem}" for problem in problems),
            hint="correct the file, or describe the model by a preset or by sizes",
        )
    return model


def _find_words_not_known(content: Mapping[str, Any], activation: str) -> list[str]:
    problems = []
    if content.get(activation) not in [*ACTIVATIONS]:
        is_given = activation in content
        found = f"{activation}: got {content[activation]!r:.100}; allowed" if is_given else f"{activation} is required"
        problems.append(f"{found}: {', '.join(ACTIVATIONS)}")
    if content.get(GELU_FORM, "none") not in [*_FORMS]:
        problems.append(f"{GELU_FORM}: got {content[GELU_FORM]!r:.100}; allowed: {', '.join(_FORMS)}")
    problems += [
        f"{key}: got {content[key]!r:.100}; allowed: {wanted!r}"
        for key, wanted in FIXED.items()
        if content.get(key, wanted) != wanted
    ]
    return problems
