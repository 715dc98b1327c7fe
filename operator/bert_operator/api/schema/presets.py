"""Model sizes by name, and what a model section means once its preset is filled in.

Sources: base and large Devlin et al. 2019 section 3; distilbert Sanh et al. 2019; tiny Turc et al. 2019
(L2_H128).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from bert_operator.api.schema.bert_pretrain_job import ModelSpec

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
