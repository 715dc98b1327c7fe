"""Parts of a finetune stage: the columns of its tables, and when a run ends early."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_job.optimization import MomentsSpec, OptimizerName, WarmupSpec
from bert_job.section import FilePath, PositiveFloat, Rows, Section, Share, Tokens
from bert_job.tasks import SPAN_TASKS, MetricName, TaskName

TableFormat = Literal["auto", "tsv", "csv", "jsonLines"]
ColumnName = Annotated[str, Field(min_length=1, max_length=256)]


class TableColumnsSpec(Section):
    """Columns of your own tables, by their names in the header line, or keys of JSON Lines."""

    text: ColumnName | None = None
    """The text, or the first one of a pair. Required for classification and regression."""
    text_pair: ColumnName | None = None
    """The second text of a pair. Empty: single texts."""
    label: ColumnName | None = None
    """The class; for regression the number. Required for both."""
    question: ColumnName | None = None
    """The question. Required for spans."""
    context: ColumnName | None = None
    """The text that holds the answer. Required for spans."""
    answer: ColumnName | None = None
    """The answer as it stands in the context; in JSON Lines a list of several as well. Required for spans."""
    answer_start: ColumnName | None = None
    """Offset of the answer's first character in the context, from 0. Empty: where the answer occurs first."""
    id: ColumnName | None = None
    """Identifier of a row in the predictions. Empty: the number of the row, from 0."""


class EarlyStoppingSpec(Section):
    """End a run before its epochs once its evaluations no longer improve."""

    patience: Annotated[int, Field(ge=1, le=1000)]
    """Evaluations in a row without improvement after which the run ends."""
    min_improvement: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Minimum gain of the metric, as a fraction, for an evaluation to count as an improvement. Default: 0, any gain."""


DEFAULT_LENGTH = 128
DEFAULT_SPAN_LENGTH = 384
"""Defaults of sequenceLength: GLUE's texts are sentences, SQuAD's are paragraphs."""

Label = Annotated[str, Field(min_length=1, max_length=256)]


class TaskDataSpec(Section):
    """The files of a task; relative paths are relative to the same folder as dataset.path.

    Files may be compressed with gzip, bzip2, xz or zstd.
    """

    folder: FilePath | None = None
    """For the tasks of GLUE and for squad: the folder with the official files under their official names, such as
    train.tsv and dev.tsv, or train-v1.1.json and dev-v1.1.json; or the folder above it, glue for glue/MRPC."""
    train: FilePath | None = None
    """For classification, regression and spans: the file to train on. Required there."""
    validation: FilePath | None = None
    """The file to evaluate on. Empty: a tenth of the rows of train, of every class, which are not trained on; chosen by
    their content, so always the same, and no text or context is on both sides."""
    test: FilePath | None = None
    """A file without labels, whose predictions are written to the output. Empty: none."""
    format: TableFormat | None = None
    """Format of train, validation and test. ``tsv``: separated by tabs, quotes are literal; ``csv``: separated by
    commas, quoted as in RFC 4180; ``jsonLines``: one object per line. Empty: ``auto``, by the suffix of each file."""
    columns: TableColumnsSpec | None = None
    """Columns of texts and labels in train, validation and test. Required with them."""
    labels: Annotated[tuple[Label, ...], Field(min_length=2, max_length=256)] | None = None
    """For classification: the classes in the order of their numbers. Empty: those of train in alphabetical order; whole
    numbers in the order of their values."""


class FinetuneOptimizerSpec(MomentsSpec):
    """The optimizer of one finetune stage.

    Not spec.optimizer, whose defaults are for the large batches of pretraining.
    """

    name: OptimizerName = "adamw"
    """``adamw`` (Loshchilov and Hutter 2019) or ``lamb`` (You et al. 2020). Default: adamw, since LAMB's gain is in
    batches of thousands."""
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Added to the square root of the second moment. Default: 1e-8, as in PyTorch and transformers."""


class FinetuneSpec(Section):
    """Fine-tuning on one task: one run per seed, of which the best evaluation's weights are kept.

    They and the predictions are in ``finetune/<stage>`` in the output folder; an export stage behind this one exports
    them with their labels.
    """

    task: TaskName
    """The task. Of GLUE: ``cola``, ``sst-2``, ``mrpc``, ``sts-b``, ``qqp``, ``mnli`` (with both validation sets),
    ``qnli``, ``rte``, ``wnli``; ``squad``: SQuAD 1.1; for your own files ``classification`` of one text or a pair,
    ``regression``, and ``spans``: extractive question answering."""
    data: TaskDataSpec
    """Files of the task."""
    start_from: Literal["pretrained", "random"] = "pretrained"
    """``pretrained``: the weights that the pretrain stages before this one end with, or without such stages those of
    initialCheckpoint; ``random``: weights drawn from each run's seed, for comparison. The task head is drawn from it
    either way."""
    lower_case: bool | None = None
    """Lower-case texts and strip accents, as the vocabulary wants it. Empty: as the prepare stage, the dataset or the
    tokenizer of the initial checkpoint says."""
    max_unknown_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Maximum fraction of the tokens to train on that are [UNK], because the vocabulary lacks their characters; with
    more, as with a model of another language, the stage fails before its first step. 1: any. Empty: 0.1."""
    sequence_length: Tokens | None = None
    """Maximum number of tokens of a row, [CLS] and [SEP] included. Shorter rows cost less: nothing is padded. The
    longer text of a pair is cut first; a context of spans is split into windows. Empty: 128, or 384 for squad and
    spans, as published; all that the model has positions for, if those are fewer, but those of model.configFile."""
    doc_stride: Annotated[int, Field(ge=1, le=4096)] = 128
    """For squad and spans: tokens from the start of one window of a context to that of the next, at most a whole
    window, so that none is left out. Default: 128, as published."""
    max_query_length: Annotated[int, Field(ge=1, le=4096)] = 64
    """For squad and spans: tokens of a question, whose rest is cut off. Default: 64, as published."""
    max_answer_length: Annotated[int, Field(ge=1, le=4096)] = 30
    """For squad and spans: maximum number of tokens of a predicted answer. Default: 30, as published."""
    global_batch_size: Rows = 32
    """Rows per optimizer step over all ranks; with synchronizeGradients: false on each rank. Default: 32, the larger of
    the published 16 and 32."""
    micro_batch_size: Rows | None = None
    """Maximum number of rows in one forward and backward pass on one rank, and in one pass of an evaluation. Empty: as
    many as 4096 tokens hold (32 of 128, 10 of 384), at most globalBatchSize. It affects memory and speed; the result
    only by rounding."""
    epochs: PositiveFloat = 3.0
    """Passes over the rows to train on; fractions are allowed. Default: 3, of the published 2 to 4."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 2e-5
    """Peak learning rate, reached at the end of the warm-up. Default: 2e-5, the lowest that is published."""
    warmup: WarmupSpec = WarmupSpec(proportion=0.1)
    """Learning rate warm-up. Default: the first tenth of a run's steps, as published."""
    decay: Literal["poly", "linear", "constant"] = "linear"
    """``linear``: proportional to the remaining steps, as published; ``poly``: to the square root of the remaining
    steps; ``constant``: no decay."""
    after_warmup: Literal["published", "continuous"] = "continuous"
    """``continuous``: decay counts from the end of the warm-up, as in transformers, whose rates come a step later: its
    first step has rate 0, here the last one has; ``published``: from step 0, so that the rate drops at the end of the
    warm-up, as in Google's scripts. Default: continuous."""
    learning_rate_scaling: Literal["none", "sqrtRanks"] = "none"
    """``sqrtRanks``: learningRate is multiplied by the square root of the number of ranks, as Intel's TensorFlow
    scripts do by default: 1.41 times with two. Default: none, so that a job on other ranks trains the same."""
    optimizer: FinetuneOptimizerSpec = FinetuneOptimizerSpec()
    """The optimizer of this stage, whatever spec.optimizer says. Its state is partitioned over ranks as
    spec.optimizer.partitioning says, unless every rank trains a model of its own. Default: AdamW with betas 0.9 and
    0.999, epsilon 1e-8, weight decay 0.01, clipping to 1.0."""
    head_dropout: Share | None = None
    """Dropout probability before the task head. Empty: as in transformers, hiddenDropout of the model and 0 for spans,
    or of DistilBERT 0.2 and 0.1 for spans."""
    seeds: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of runs, one after the other: with spec.seed, spec.seed + 1 and so on, which decide the task head, the
    order of rows and dropout. The best one is kept; mean and standard deviation are reported. Default: 1. Published
    results on small tasks are the best of five."""
    synchronize_gradients: bool = True
    """false: every rank trains a model of its own on all rows, with seeds of its own, and the best one is kept, as
    Intel's TensorFlow scripts do by default. globalBatchSize is then that of each rank. Default: true, one model on all
    ranks."""
    evaluate_every_epochs: PositiveFloat = 1.0
    """Passes over the rows to train on between evaluations; fractions are allowed. The last step of a run is always
    evaluated. Default: 1."""
    metric: MetricName | None = None
    """The metric that decides which evaluation is the best. Empty: the first of the task's: cola
    ``matthews_correlation``, accuracy; mrpc ``f1``, accuracy; qqp ``accuracy``, f1; sts-b and regression ``spearman``,
    pearson; squad and spans ``f1``, exact_match; classification ``accuracy``, f1; the others ``accuracy``."""
    early_stopping: EarlyStoppingSpec | None = None
    """End a run that no longer improves. Empty: every run takes all its epochs."""


def resolve_length(stage: FinetuneSpec, positions: int) -> int:
    """Return the maximum tokens of a row, given or by the task's default, for a model with so many positions."""
    default = DEFAULT_SPAN_LENGTH if stage.task in SPAN_TASKS else DEFAULT_LENGTH
    return stage.sequence_length or min(default, positions)
