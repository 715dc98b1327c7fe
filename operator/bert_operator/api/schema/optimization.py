"""The part of the job that says how gradients become updates."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_operator.api.schema.section import PositiveFloat, Section, Share


class OptimizerSpec(Section):
    """The update rule; the defaults are those of NVIDIA's BERT trainer."""

    name: Literal["lamb", "adamw"] = "lamb"
    """``lamb`` (You et al. 2020) for batches of thousands, ``adamw`` (Loshchilov and Hutter 2019) for small
    ones."""
    beta1: Share = 0.9
    """Decay of the first moment per step."""
    beta2: Share = 0.999
    """Decay of the second moment per step."""
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-6
    """Added to the root of the second moment. Default: 1e-6, as in BERT's own AdamW."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Per step and learning rate; never applied to biases and LayerNorm parameters."""
    partitioning: Literal["none", "zero1"] = "none"
    """How the optimizer's state is split over ranks. ``none``: every rank holds all of it; ``zero1``: a share each
    (ZeRO stage 1), which saves nearly half of what weights, gradients and state take together. Checkpoints are the
    same, and a job may go on with the other."""
    bias_correction: bool = True
    """Correct the moments for their start at zero."""
    max_gradient_norm: PositiveFloat | None = 1.0
    """Global L2 norm above which gradients are scaled down. null: never. Default: 1.0, as published."""


class ReductionSpec(Section):
    """How gradients are summed over ranks, once in each optimizer step."""

    compression: Literal["none", "fp16"] = "none"
    """``fp16`` sends half the bytes, scaled so that nothing overflows, and rounds to 11 bits on the way. Default:
    none, which sums in fp32."""
    overlap: bool = True
    """Start while the last backward pass still runs. The sums are the same without; false shows what it hides."""
