"""How weights are updated: the optimizer, and its learning rate over the steps of a stage."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_trainer.config.section import Count, PositiveFloat, Probability, Section


class OptimizerConfig(Section):
    """The update rule (LAMB: You et al. 2020, algorithm 2; AdamW: Loshchilov and Hutter 2019)."""

    name: Literal["lamb", "adamw"]
    beta1: Probability
    beta2: Probability
    epsilon: PositiveFloat
    """Added outside the root."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Not applied to biases and LayerNorm parameters, whose trust ratio is 1."""
    bias_correction: bool
    max_gradient_norm: PositiveFloat | None
    """Global L2 norm above which gradients are scaled down, after the reduction; empty: never."""
    partitioning: Literal["none", "zero1"]
    """``zero1``: every rank holds the moments of a share of the parameters and updates those alone (Rajbhandari et
    al. 2020, stage 1)."""


class Warmup(Section):
    """Linear rise of the learning rate; exactly one of the two is set."""

    # The operator renders the one that is set.
    steps: Count | None = None
    proportion: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of the stage's steps."""


class Schedule(Section):
    """Learning rate over the steps of one stage."""

    learning_rate: PositiveFloat
    """Peak that the warm-up aims at."""
    warmup: Warmup
    decay: Literal["poly", "linear", "constant"]
    """``poly``: (1 - progress) ** 0.5, NVIDIA's; ``linear``: 1 - progress, Google's and MLPerf's."""
    after_warmup: Literal["published", "continuous"]
    """``published``: decay counts from step 0, so the rate drops where the warm-up ends, as in the original
    scripts; ``continuous``: decay counts from the end of the warm-up."""
