"""How gradients are reduced over ranks, and how the learning rate begins."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_job.section import Norm, Section, Share

Partitioning = Literal["none", "zero1"]


class WarmupSpec(Section):
    """Linear warm-up of the learning rate from 0; exactly one field is set."""

    steps: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Optimizer steps. 0: no warm-up."""
    proportion: Share | None = None
    """Fraction of the stage's steps; in a finetune stage, of the steps of each run."""


class ReductionSpec(Section):
    """How gradients are all-reduced over ranks, once per optimizer step."""

    compression: Literal["none", "fp16"] = "none"
    """``fp16`` sends half the bytes, scaled so that nothing overflows, and rounds to 11 bits of mantissa. Default:
    none, which sums in fp32."""
    overlap: bool = True
    """All-reduce buckets while the last backward pass still runs. Results are the same without; false is for measuring
    how much time overlap hides."""


OptimizerName = Literal["lamb", "adamw"]


class MomentsSpec(Section):
    """What LAMB and AdamW have in common, in pretraining and in fine-tuning."""

    beta1: Share = 0.9
    """Exponential decay rate of the first moment."""
    beta2: Share = 0.999
    """Exponential decay rate of the second moment."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Decoupled weight decay, scaled by the learning rate; not applied to biases and LayerNorm parameters. Default:
    0.01, as published."""
    bias_correction: bool = True
    """Correct the moments' bias from their initialization at zero. Without it fine-tuning on a few thousand examples
    diverges with some seeds (Mosbach et al. 2021)."""
    max_gradient_norm: Norm = 1.0
    """Gradients are clipped to this global L2 norm. 0: no clipping. Default: 1.0, as published."""


class OptimizerSpec(MomentsSpec):
    """Optimizer and its hyperparameters; the defaults are those of NVIDIA's BERT trainer, and of BERT's own AdamW."""

    name: OptimizerName | None = None
    """``adamw`` (Loshchilov and Hutter 2019), or ``lamb`` (You et al. 2020) for batches of many thousands of sequences;
    it trains all pretrain stages. Empty: by the largest globalBatchSize among them, ``adamw`` up to 8192, the largest
    batch with a published AdamW rate for BERT (Liu et al. 2019), ``lamb`` above. The choice is made once, before the
    first attempt; ``--small`` keeps that of the whole job. AdamW takes a sixth to two fifths of LAMB's learning
    rates."""
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-6
    """Added to the square root of the second moment. Default: 1e-6, as in BERT's own AdamW."""
    partitioning: Partitioning = "none"
    """Sharding of the optimizer state over ranks. ``none``: every rank holds all of it; ``zero1``: every rank holds a
    shard (ZeRO stage 1), which saves nearly half of the memory of weights, gradients and state together. Checkpoints
    are the same, so a job may resume with the other."""
