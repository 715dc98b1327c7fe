"""An encoder's dimensions: what a job says of them, sizes by name, and what a section means once these are filled in.

Sources: base and large Devlin et al. 2019 section 3; distilbert Sanh et al. 2019; tiny Turc et al. 2019 (L2_H128);
modernbert-base and -large Warner et al. 2024, table 4 and section 2; ettin Weller et al. 2025 and its configurations
(jhu-clsp/ettin-encoder).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from bert_job.section import FilePath, Section, Share, Tokens


class ModelSpec(Section):
    """The encoder's dimensions: a preset, all four sizes, or a file; any further field overrides the preset."""

    preset: (
        Literal[
            "tiny",
            "base",
            "large",
            "distilbert",
            "modernbert-base",
            "modernbert-large",
            "ettin-17m",
            "ettin-32m",
            "ettin-68m",
        ]
        | None
    ) = None
    """Sizes by name: tiny 2 layers x 128, base 12 x 768, large 24 x 1024, distilbert 6 x 768; of ModernBERT:
    modernbert-base 22 x 768 (Ettin's 150M), modernbert-large 28 x 1024 (Ettin's 400M), ettin-17m 7 x 256, ettin-32m
    10 x 384, ettin-68m 19 x 512. Empty: the four sizes below are all required, or configFile."""
    config_file: FilePath | None = None
    """A bert_config.json (Google, NVIDIA, MLPerf) or config.json (Hugging Face) that describes the model, in place of
    preset, architecture, sizes, activation, dropout, attention and initializerRange. A relative path is relative to the
    same folder as dataset.path. Read once when the run starts: later changes to the file do not affect it. Empty: this
    section defines the model."""
    architecture: Literal["bert", "distilbert", "modernbert"] | None = None
    """``distilbert`` has no segment embeddings and no pooler; ``modernbert`` normalises before each layer's parts, has
    rotary positions, gated feed-forward layers, attention inside a window in two layers of three, and no biases. Empty:
    the preset's, else ``bert``."""
    hidden_size: Annotated[int, Field(ge=8, le=16384)] | None = None
    """Size of the hidden states, a multiple of numAttentionHeads. Empty: the preset's."""
    num_hidden_layers: Annotated[int, Field(ge=1, le=256)] | None = None
    """Transformer layers. Empty: the preset's."""
    num_attention_heads: Annotated[int, Field(ge=1, le=256)] | None = None
    """Attention heads per layer. Empty: the preset's."""
    intermediate_size: Annotated[int, Field(ge=8, le=65536)] | None = None
    """Size of the feed-forward layer, usually 4 x hiddenSize; of modernbert behind the gate. Empty: the preset's."""
    max_position_embeddings: Tokens | None = None
    """Longest sequence that the model takes, in tokens. Empty: 512, as published; of modernbert 8192, with ettin
    7999."""
    hidden_activation: Literal["gelu", "gelu_new"] = "gelu"
    """``gelu``: with the error function, as published; ``gelu_new``: its tanh approximation."""
    hidden_dropout: Share | None = None
    """Dropout probability of the hidden states. Empty: 0.1, as published; of modernbert 0."""
    attention_dropout: Share | None = None
    """Dropout probability of the attention probabilities. Empty: 0.1, as published; of modernbert 0."""
    initializer_range: Annotated[float, Field(gt=0, le=1)] = 0.02
    """Standard deviation of the initial weights. Default: 0.02, as published."""
    layer_norm_epsilon: Annotated[float, Field(gt=0, le=1e-2)] | None = None
    """Added to the variance in LayerNorm. Empty: 1e-12, as published; of modernbert 1e-5."""
    attention_window: Annotated[int, Field(ge=2, le=65536)] | None = None
    """Of modernbert: tokens that layers with a window attend to around each token, half of them on either side (Hugging
    Face's local_attention). Empty: 128, as published."""
    global_attention_every: Annotated[int, Field(ge=1, le=256)] | None = None
    """Of modernbert: every so many layers, from the first on, one attends to the whole sequence (Hugging Face's
    global_attn_every_n_layers). Empty: 3, as published."""
    global_rope_theta: Annotated[float, Field(ge=1, le=1e9)] | None = None
    """Of modernbert: base of the rotary positions in layers without a window. Empty: 160000, as published."""
    local_rope_theta: Annotated[float, Field(ge=1, le=1e9)] | None = None
    """Of modernbert: base of the rotary positions in layers with a window. Empty: 10000, as published; with ettin
    160000."""
    objective: Literal["mlm+nsp", "mlm"] | None = None
    """Masked LM with or without next-sentence prediction. Empty: ``mlm+nsp`` for bert, as published, else ``mlm``:
    distilbert and modernbert have no pooler for the NSP head."""
    vocabulary_pad_multiple: Annotated[int, Field(ge=1, le=1024)] = 8
    """The vocabulary is padded to a multiple of this for faster matrix products; padding entries are never predicted.
    Default: 8, as tensor cores ask for."""


Architecture = Literal["bert", "distilbert", "modernbert"]
Objective = Literal["mlm+nsp", "mlm"]
ARCHITECTURES: Mapping[Architecture, str] = MappingProxyType(
    {"bert": "BERT", "distilbert": "DistilBERT", "modernbert": "ModernBERT"}
)
"""As people write them."""
Setting = int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The four sizes of an encoder, and which encoder."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    architecture: Architecture = "bert"


def _modern(layers: int, width: int, inner: int) -> ModelSize:
    return ModelSize(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=inner,
        architecture="modernbert",
    )


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
        "modernbert-base": _modern(22, 768, 1152),
        "modernbert-large": _modern(28, 1024, 2624),
        "ettin-17m": _modern(7, 256, 384),
        "ettin-32m": _modern(10, 384, 576),
        "ettin-68m": _modern(19, 512, 768),
    }
)

SIZE_FIELDS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")

_BERT: Mapping[str, Setting] = MappingProxyType(
    {
        "max_position_embeddings": 512,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "layer_norm_epsilon": 1e-12,
    }
)
SETTINGS: Mapping[Architecture, Mapping[str, Setting]] = MappingProxyType(
    {
        "bert": _BERT,
        "distilbert": _BERT,
        "modernbert": MappingProxyType(
            {
                "max_position_embeddings": 8192,
                "hidden_dropout": 0.0,
                "attention_dropout": 0.0,
                "layer_norm_epsilon": 1e-5,
                "attention_window": 128,
                "global_attention_every": 3,
                "global_rope_theta": 160_000.0,
                "local_rope_theta": 10_000.0,
            }
        ),
    }
)
"""What a model has beside its sizes, and its values where nothing else is said."""
_ETTIN: Mapping[str, Setting] = MappingProxyType({"max_position_embeddings": 7999, "local_rope_theta": 160_000.0})
PRESET_SETTINGS: Mapping[str, Mapping[str, Setting]] = MappingProxyType(
    dict.fromkeys(("ettin-17m", "ettin-32m", "ettin-68m"), _ETTIN)
)
"""Where a preset differs from its architecture."""
ATTENTION_FIELDS = tuple(name for name in SETTINGS["modernbert"] if name not in _BERT)
"""Settings that modernbert alone has."""


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


def resolve_settings(model: ModelSpec) -> dict[str, Setting]:
    """Return what a model has beside its sizes: its own fields over its preset's and its architecture's."""
    of_preset = PRESET_SETTINGS.get(model.preset or "", {})
    resolved = {}
    for name, default in SETTINGS[resolve_architecture(model)].items():
        own = getattr(model, name)
        resolved[name] = of_preset.get(name, default) if own is None else own
    return resolved


def resolve_positions(model: ModelSpec) -> int:
    """Return the longest sequence that a model takes, in tokens; of one in a file the default of its job."""
    return int(resolve_settings(model)["max_position_embeddings"])


def resolve_architecture(model: ModelSpec) -> Architecture:
    """Return the model's own architecture, else its preset's, else ``bert``."""
    preset = PRESETS.get(model.preset or "")
    return model.architecture or (preset.architecture if preset else "bert")


def resolve_objective(model: ModelSpec) -> Objective:
    """Return the model's own objective, else its architecture's."""
    return model.objective or default_objective(resolve_architecture(model))


def default_objective(architecture: Architecture) -> Objective:
    """Return what a model learns where nothing is said: BERT alone has a pooler to predict a next sentence from."""
    return "mlm+nsp" if architecture == "bert" else "mlm"


TENSORFLOW_LAYER_NORM_EPSILON = 1e-12
"""No setting of Google's TensorFlow code."""


def fits_tensorflow(model: ModelSpec) -> bool:
    """Return whether TensorFlow 1 BERT code computes this model; of one in a file, as far as is known."""
    epsilon = resolve_settings(model)["layer_norm_epsilon"]
    return resolve_architecture(model) == "bert" and epsilon == TENSORFLOW_LAYER_NORM_EPSILON
