"""Evaluation: when it runs while a stage trains, on what, and stages of their own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bert_job.section import Count, FilePath, PositiveFloat, Rows, Section, Share, Tokens

Samples = Annotated[int, Field(ge=1, le=2**53)]


class DataRangeSpec(Section):
    """The part of the training samples that a stage uses, as fractions of their number."""

    start: Share = 0.0
    """Where the range begins, inclusive. Default: 0, the first sample."""
    end: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Where the range ends, exclusive. Default: 1, all samples from start on."""


class EvaluationSpec(Section):
    """Masked LM and next-sentence accuracy while a stage trains, without dropout and without effect on the training.

    Exactly one of everySteps, everySamples and everyEpochs is set.
    """

    every_steps: Count | None = None
    """Optimizer steps of the stage between evaluations."""
    every_samples: Samples | None = None
    """Sequences of the stage between evaluations, over all ranks: the model is evaluated after each step in which the
    count reaches or passes the next evaluation point, as MLPerf counts."""
    every_epochs: PositiveFloat | None = None
    """Passes over the stage's samples between evaluations; fractions are allowed."""
    start_steps: Count | None = None
    """Optimizer steps before the first evaluation; the next ones are counted from there. Only with everySteps. Empty:
    everySteps."""
    start_samples: Samples | None = None
    """Sequences before the first evaluation; the next ones are counted from there. Only with everySamples. Empty:
    everySamples."""
    start_epochs: PositiveFloat | None = None
    """Passes before the first evaluation; the next ones are counted from there. Only with everyEpochs. Empty:
    everyEpochs."""
    max_samples: Count | None = None
    """Maximum number of sequences to measure on. Empty: all of them."""
    micro_batch_size: Rows | None = None
    """Sequences in one forward pass on one rank. Empty: as many as 4096 tokens hold."""
    max_predictions_per_sequence: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Maximum number of masked tokens per sequence. Empty: that of the stage."""
    shards: FilePath | None = None
    """Folder with the shards to measure on: its held-out files, or with dataRange its training files. Empty: the
    held-out documents of the stage's sequence length; with dataRange the shards that the stage trains on."""
    data_range: DataRangeSpec | None = None
    """Measure on this part of training shards, such as the last tenth; the stage's own dataRange must then exclude it.
    The files must hold masks. Empty: measure on held-out documents."""


class TargetSpec(Section):
    """The result that ends a pretrain stage before its length."""

    masked_lm_accuracy: Annotated[float, Field(gt=0, le=1)]
    """Masked LM accuracy to reach, as a fraction; MLPerf's is 0.72. The stage ends with the first evaluation that
    reaches it. If none does, the stage ends at its length with an evaluation of the last step, and the job
    continues."""


class EvaluateSpec(Section):
    """Masked LM and next-sentence accuracy on held-out documents, before and after training."""

    sequence_length: Tokens | None = None
    """Tokens per sequence. Empty: that of the last pretrain stage before this one."""
    max_predictions_per_sequence: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Maximum number of masked tokens per sequence. Empty: that of the last pretrain stage before this one if the
    lengths are equal, else as in a pretrain stage."""
    micro_batch_size: Rows | None = None
    """Sequences in one forward pass on one rank. Empty: as many as 4096 tokens hold."""
    max_samples: Count | None = None
    """Maximum number of sequences. Empty: all held-out sequences."""
    shards: FilePath | None = None
    """Folder with existing held-out shards, or with dataRange training shards. Empty: the folder of this sequence
    length in the dataset."""
    data_range: DataRangeSpec | None = None
    """Measure on this part of training shards, such as the last tenth after training on the first nine. The files must
    hold masks. Empty: measure on held-out documents."""
