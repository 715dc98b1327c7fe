"""Models described by a file: ``bert_config.json`` of Google, NVIDIA and MLPerf, ``config.json`` of Hugging Face.

Google's eleven keys, all of them, and what Hugging Face adds where it changes what a model computes. Keys that are not
known here are other programs' notes and are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from bert_job.foreign_text import printable
from bert_job.model import SETTINGS, Architecture, default_objective
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
_MODERNBERT_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "attention_window": "local_attention",
        "hidden_size": "hidden_size",
        "intermediate_size": "intermediate_size",
        "max_position_embeddings": "max_position_embeddings",
        "num_attention_heads": "num_attention_heads",
        "num_hidden_layers": "num_hidden_layers",
        "vocabulary_size": "vocab_size",
    }
)


@dataclass(frozen=True, slots=True)
class _Dialect:
    """What the keys of one kind of model are called."""

    keys: Mapping[str, str]
    """By our fields; a file has all of them."""
    activation: str
    optional: Mapping[str, str]
    """The same of what a file may leave to its architecture."""
    fixed: Mapping[str, object]


_OF_BERTS = MappingProxyType({"layer_norm_epsilon": "layer_norm_eps"})
_FIXED_OF_BERTS: Mapping[str, object] = MappingProxyType(
    {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
)
_DIALECTS: Mapping[Architecture, _Dialect] = MappingProxyType(
    {
        "bert": _Dialect(_BERT_KEYS, "hidden_act", _OF_BERTS, _FIXED_OF_BERTS),
        "distilbert": _Dialect(_DISTILBERT_KEYS, "activation", _OF_BERTS, _FIXED_OF_BERTS),
        "modernbert": _Dialect(
            _MODERNBERT_KEYS,
            "hidden_activation",
            MappingProxyType(
                {
                    "attention_dropout": "attention_dropout",
                    "hidden_dropout": "mlp_dropout",
                    "initializer_range": "initializer_range",
                    "layer_norm_epsilon": "norm_eps",
                }
            ),
            MappingProxyType(
                {
                    **dict.fromkeys(("attention_bias", "classifier_bias", "mlp_bias", "norm_bias"), False),
                    **dict.fromkeys(("causal_mask", "is_causal", "is_decoder"), False),
                    "decoder_bias": True,
                    "tie_word_embeddings": True,
                }
            ),
        ),
    }
)


def fixed_settings(architecture: Architecture) -> Mapping[str, object]:
    """Return settings of Hugging Face under which the same tensors compute what this trainer does, and their value."""
    return _DIALECTS[architecture].fixed


_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_modern_attention(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return which layers of a ModernBERT have windows, and the bases of its rotary positions, by our names.

    In the words of transformers 5, ``layer_types`` and ``rope_parameters``, or of the releases before; where a file has
    both, the new ones count, as they do there.

    Raises:
        ValueError: another pattern of layers, or positions that are scaled; names the key, what it says, what is read.
    """
    every = content.get("global_attn_every_n_layers", 3)
    if (kinds := content.get("layer_types")) is not None:
        layers = kinds if isinstance(kinds, list) else []
        every = next((at for at, kind in enumerate(layers) if at and kind == _FULL), max(len(layers), 1))
        wanted = [_SLIDING if at % every else _FULL for at in range(len(layers))]
        if layers != wanted or len(layers) != content.get("num_hidden_layers"):
            raise ValueError(
                f"layer_types: got {kinds!r:.100}; allowed: {_FULL} at the first layer and at every n-th from there, "
                f"{_SLIDING} between, one for each of num_hidden_layers"
            )
    if type(every) is not int or every < 1:
        raise ValueError(f"global_attn_every_n_layers: got {every!r:.100}; allowed: an integer from 1 on")
    of_full, local = content.get("global_rope_theta", 160_000.0), content.get("local_rope_theta", 10_000.0)
    # ``null`` stands for the other's, as in transformers 4.
    thetas = {
        _FULL: ("global_rope_theta", of_full),
        _SLIDING: ("local_rope_theta", of_full if local is None else local),
    }
    scaled = {"rope_scaling": content.get("rope_scaling")}
    for kind, said in _entries(content.get("rope_parameters")):
        scaled[f"rope_parameters.{kind}"] = said
        if kind in thetas and "rope_theta" in said:
            thetas[kind] = f"rope_parameters.{kind}.rope_theta", said["rope_theta"]
    for key, said in scaled.items():
        if said is not None and not _is_plain(said):
            raise ValueError(f"{key}: got {said!r:.100}; allowed: rope_type default, positions that are not scaled")
    for key, theta in thetas.values():
        if isinstance(theta, bool) or not isinstance(theta, int | float) or not 1 <= theta <= 1e9:
            raise ValueError(f"{key}: got {theta!r:.100}; allowed: a number from 1 to 1e9")
    return {
        "global_attention_every": every,
        "global_rope_theta": float(thetas[_FULL][1]),
        "local_rope_theta": float(thetas[_SLIDING][1]),
    }


def _entries(said: Any) -> list[tuple[str, Any]]:
    """Return the rotary settings of each kind of layers; one for all, as other models have it, stands alone."""
    if not isinstance(said, Mapping):
        return [] if said is None else [("", said)]
    return [*said.items()] if said.keys() <= {_FULL, _SLIDING} else [("", said)]


def _is_plain(said: Any) -> bool:
    """Return whether rotary settings say nothing but the base."""
    if not isinstance(said, Mapping):
        return False
    kind = said.get("rope_type", said.get("type", "default"))
    return kind == "default" and said.keys() <= {"rope_type", "type", "rope_theta"}


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
    architecture = next((known for known in _DIALECTS if known == named), None)
    if architecture is None:
        raise InputError(
            f"{path}: model_type: got {named!r:.100}; allowed: {', '.join(_DIALECTS)}",
            hint="name the file of a BERT",
        )
    dialect = _DIALECTS[architecture]
    keys = {**dialect.keys, **dialect.optional}
    given = {name: content[key] for name, key in keys.items() if key in content}
    absent = [name for name in dialect.keys if given.get(name) is None]
    problems = [f"{dialect.keys[name]} is required" for name in absent]
    problems += _find_words_not_known(content, dialect)
    if architecture == "modernbert":
        try:
            given |= read_modern_attention(content)
        except ValueError as error:
            problems.append(printable(str(error)))
    of_job = described.model_dump(
        include={"vocabulary_pad_multiple", "layer_norm_epsilon", "config_file"}, exclude_none=True
    )
    try:
        model = ModelConfig(
            **{**SETTINGS[architecture], **of_job, **given},
            architecture=architecture,
            hidden_activation=read_activation(content, dialect.activation),
            objective=described.objective or default_objective(architecture),
        )
    except ValidationError as error:
        problems += [
            f"{keys.get(name, name)}: got {item['input']!r:.100}; {printable(item['msg'])}"
            for item in error.errors()
            if (name := str(item["loc"][0])) in given and name not in absent
        ]
    if problems:
        raise InputError(
            f"{path}: {len(problems)} problem(s)\n" + "\n".join(f"  {problem}" for problem in problems),
            hint="correct the file, or describe the model by a preset or by sizes",
        )
    return model


def _find_words_not_known(content: Mapping[str, Any], dialect: _Dialect) -> list[str]:
    problems = []
    activation = dialect.activation
    if content.get(activation) not in [*ACTIVATIONS]:
        is_given = activation in content
        found = f"{activation}: got {content[activation]!r:.100}; allowed" if is_given else f"{activation} is required"
        problems.append(f"{found}: {', '.join(ACTIVATIONS)}")
    if content.get(GELU_FORM, "none") not in [*_FORMS]:
        problems.append(f"{GELU_FORM}: got {content[GELU_FORM]!r:.100}; allowed: {', '.join(_FORMS)}")
    problems += [
        f"{key}: got {content[key]!r:.100}; allowed: {wanted!r}"
        for key, wanted in dialect.fixed.items()
        if content.get(key, wanted) != wanted
    ]
    return problems
