"""Parts of a pretrain stage: how long it is, on which samples, and which result ends it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_job.checkpoints import StageCheckpointSpec
from bert_job.evaluation import DataRangeSpec, EvaluationSpec, TargetSpec
from bert_job.optimization import WarmupSpec
from bert_job.section import Count, FilePath, PositiveFloat, Rows, RowsOrAuto, Section, Tokens

OptimizerState = Literal["keep", "keepWithStepCount", "reset"]


class LengthSpec(Section):
    """How long a stage trains; exactly one field is set."""

    steps: Count | None = None
    """Optimizer steps."""
    epochs: PositiveFloat | None = None
    """Passes over the stage's samples; fractions are allowed."""
    samples: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Sequences over all ranks, rounded up to whole steps."""


class PretrainSpec(Section):
    """One phase of pretraining at one sequence length; the next phase continues from its weights."""

    sequence_length: Tokens
    """Tokens per sequence, [CLS] and both [SEP] included. Published: 128 first, then 512."""
    max_predictions_per_sequence: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Maximum number of masked tokens per sequence. Empty: that of the recipe by which this job prepares the shards, 76
    for mlperf; else 15 % of sequenceLength, rounded up to a multiple of 4, which gives the published 20 at 128 and 80
    at 512."""
    global_batch_size: Rows
    """Sequences per optimizer step over all ranks and gradient accumulation. The ``train_batch_size`` of the
    original scripts is per GPU, before it is divided by the accumulation steps: multiply it by the number of GPUs."""
    micro_batch_size: RowsOrAuto | None = None
    """Maximum number of sequences in one forward and backward pass on one rank; the number of gradient accumulation
    steps follows from it. ``auto``: at the first start rank 0 tries sizes for some seconds and takes a fast one that
    fits. Empty: as many sequences as 4096 tokens hold (32 of 128, 8 of 512), which suits CPUs and small GPUs. It
    affects memory and speed; the result, up to rounding, only with lossNormalization: microBatchMean, which excludes
    auto."""
    learning_rate: Annotated[float, Field(gt=0, le=1)]
    """Peak learning rate, reached at the end of the warm-up."""
    warmup: WarmupSpec = WarmupSpec(proportion=0.1)
    """Learning rate warm-up. Default: the first tenth of the steps, since BERT diverges without warm-up."""
    decay: Literal["poly", "linear", "constant"] = "poly"
    """``poly``: proportional to the square root of the remaining steps (NVIDIA); ``linear``: proportional to the
    remaining steps (Google, MLPerf); ``constant``: no decay."""
    after_warmup: Literal["published", "continuous"] = "published"
    """``published``: decay counts from step 0, so the rate drops at the end of the warm-up, as in the original
    scripts; ``continuous``: decay counts from the end of the warm-up."""
    length: LengthSpec
    """How long this stage trains."""
    optimizer_state: OptimizerState | None = None
    """What to do with the previous stage's optimizer state. ``keep``: keep the moments, while bias correction counts
    steps from 0, as in NVIDIA's trainer; ``keepWithStepCount``: keep the moments and the step count; ``reset``:
    neither. The schedule starts at 0 either way. Empty: ``keepWithStepCount`` with AdamW, whose updates would otherwise
    be 0.15 of their size at step 10, a second warm-up; ``keep`` with LAMB, whose trust ratio makes up for most of
    that."""
    loss_normalization: Literal["global", "microBatchMean"] = "global"
    """``global``: over the step's masked tokens on all ranks, so that the result does not depend on the number of ranks
    or the micro-batch size; ``microBatchMean``: the mean of the micro-batches' means, as in the original scripts."""
    masking: Literal["static", "dynamic"] = "static"
    """``static``: the masks in the files, the same in every epoch; ``dynamic``: drawn anew in every epoch when samples
    are read (Liu et al. 2019), identical for any number of ranks and after a restart."""
    masked_lm_probability: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Fraction of the tokens that are predicted; for dynamic masking only. Empty: 0.15, as published."""
    whole_word_masking: bool | None = None
    """Mask all pieces of a word or none; for dynamic masking only. Empty: false."""
    cross_document_attention: bool | None = None
    """Whether a token attends to the other documents of its row, whose positions then count from the start of the row;
    for shards of documents only. Empty: false: attention and positions stay inside each document."""
    shards: FilePath | None = None
    """Folder with existing shards. Empty: the folder of this sequence length in the dataset."""
    data_range: DataRangeSpec = DataRangeSpec()
    """The part of the samples to train on. Default: all."""
    evaluation: EvaluationSpec | None = None
    """Evaluate the model while this stage trains. Empty: only evaluate stages evaluate it."""
    target: TargetSpec | None = None
    """End the stage when an evaluation reaches this accuracy; only with evaluation. Empty: train for the stage's
    length."""
    checkpoint: StageCheckpointSpec | None = None
    """When checkpoints are written in this stage. Empty: spec.checkpoint applies."""
