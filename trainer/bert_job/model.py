"""BERT's dimensions: what a job says of them, sizes by name, and what a section means once its preset is filled in.

Sources: base and large Devlin et al. 2019 section 3; distilbert Sanh et al. 2019; tiny Turc et al. 2019
(L2_H128).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from bert_job.section import FilePath, Section, Share, Tokens


class ModelSpec(Section):
    """BERT's dimensions: a preset, all four sizes, or a file; any further field overrides the preset."""

    preset: Literal["tiny", "base", "large", "distilbert"] | None = None
    """Sizes by name: tiny 2 layers x 128, base 12 x 768, large 24 x 1024, distilbert 6 x 768 with masked LM
    only. Empty: the four sizes below are all required, or configFile."""
    config_file: FilePath | None = None
    """A bert_config.json (Google, NVIDIA, MLPerf) or config.json (Hugging Face) that describes the model, in place of
    preset, architecture, sizes, activation, dropout and initializerRange. A relative path is relative to the same
    folder as dataset.path. Read once when the run starts: later changes to the file do not affect it. Empty: this
    section defines the model."""
    architecture: Literal["bert", "distilbert"] | None = None
    """``distilbert`` has no segment embeddings and no pooler. Empty: the preset's, else ``bert``."""
    hidden_size: Annotated[int, Field(ge=8, le=16384)] | None = None
    """Size of the hidden states, a multiple of numAttentionHeads. Empty: the preset's."""
    num_hidden_layers: Annotated[int, Field(ge=1, le=256)] | None = None
    """Transformer layers. Empty: the preset's."""
    num_attention_heads: Annotated[int, Field(ge=1, le=256)] | None = None
    """Attention heads per layer. Empty: the preset's."""
    intermediate_size: Annotated[int, Field(ge=8, le=65536)] | None = None
    """Size of the feed-forward layer, usually 4 x hiddenSize. Empty: the preset's."""
    max_position_embeddings: Tokens = 512
    """Longest sequence that the position embeddings allow, in tokens. Default: 512, as published."""
    hidden_activation: Literal["gelu", "gelu_new"] = "gelu"
    """``gelu``: with the error function, as published; ``gelu_new``: its tanh approximation."""
    hidden_dropout: Share = 0.1
    """Dropout probability of the hidden states. Default: 0.1, as published."""
    attention_dropout: Share = 0.1
    """Dropout probability of the attention probabilities. Default: 0.1, as published."""
    initializer_range: Annotated[float, Field(gt=0, le=1)] = 0.02
    """Standard deviation of the initial weights. Default: 0.02, as published."""
    layer_norm_epsilon: Annotated[float, Field(gt=0, le=1e-2)] = 1e-12
    """Added to the variance in LayerNorm. Default: 1e-12, as published."""
    objective: Literal["mlm+nsp", "mlm"] | None = None
    """Masked LM with or without next-sentence prediction. Empty: ``mlm`` for distilbert, which has no pooler
    for the NSP head, ``mlm+nsp`` otherwise, as published."""
    vocabulary_pad_multiple: Annotated[int, Field(ge=1, le=1024)] = 8
    """The vocabulary is padded to a multiple of this for faster matrix products; padding entries are never predicted.
    Default: 8, as tensor cores ask for."""


Architecture = Literal["bert", "distilbert"]
Objective = Literal["mlm+nsp", "mlm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The four sizes of an encoder, and which encoder."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    architecture: Architecture = "bert"


PRESETS: Mapping[str, ModelSize] = MappingProxyType(
    {
        "tiny": ModelSize(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512),
        "base": ModelSize(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072),
        "large": ModelSize(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
        "distilbert": ModelSize(
            hidden_size=768,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=3072,
            architecture="distilbert",
        ),
    }
)

SIZE_FIELDS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def missing_sizes(model: ModelSpec) -> list[str]:
    """Return the sizes (snake_case) that neither the model section, its preset nor a file gives."""
    if model.preset is not None or model.config_file is not None:
        return []
    return [name for name in SIZE_FIELDS if getattr(model, name) is None]


def resolve_size(model: ModelSpec) -> ModelSize:
    """Return the sizes of a model: its own fields over its preset's. Those of a file only the trainer knows.

    Raises ValueError if a size is given by neither; a validated job never gets there.
    """
    assert model.config_file is None, "only the trainer reads the model's file"
    if missing := missing_sizes(model):
        raise ValueError(f"the model has neither a preset nor {', '.join(missing)}")
    preset = PRESETS.get(model.preset or "")

    def size(name: str) -> int:
        own = getattr(model, name)
        value: int = getattr(preset, name) if own is None else own
        return value

    return ModelSize(
        hidden_size=size("hidden_size"),
        num_hidden_layers=size("num_hidden_layers"),
        num_attention_heads=size("num_attention_heads"),
        intermediate_size=size("intermediate_size"),
        architecture=resolve_architecture(model),
    )


def resolve_architecture(model: ModelSpec) -> Architecture:
    """Return the model's own architecture, else its preset's, else ``bert``."""
    preset = PRESETS.get(model.preset or "")
    return model.architecture or (preset.architecture if preset else "bert")


def resolve_objective(model: ModelSpec) -> Objective:
    """Return the model's own objective, else its architecture's: distilbert has no pooler for NSP."""
    return model.objective or ("mlm" if resolve_architecture(model) == "distilbert" else "mlm+nsp")


TENSORFLOW_LAYER_NORM_EPSILON = 1e-12
"""No setting of Google's TensorFlow code."""


def fits_tensorflow(model: ModelSpec) -> bool:
    """Return whether TensorFlow 1 BERT code computes this model; of one in a file, as far as is known."""
    return resolve_architecture(model) == "bert" and model.layer_norm_epsilon == TENSORFLOW_LAYER_NORM_EPSILON
