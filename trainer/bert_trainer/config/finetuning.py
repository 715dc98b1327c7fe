"""The fine-tuning stage: a task, its files, and how the pretrained model is trained on it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, get_args

from pydantic import Field

from bert_trainer.config.optimization import OptimizerConfig, Schedule
from bert_trainer.config.section import MAX_UNKNOWN_SHARE, Positive, Probability, Section, Seed, StageName, UnknownShare

TaskName = Literal[
    "cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "wnli", "squad",
    "classification", "regression", "spans",
]  # fmt: skip
"""Nine of GLUE (Wang et al. 2019), SQuAD 1.1 (Rajpurkar et al. 2016), and three kinds of tables of one's own."""

Kind = Literal["classification", "regression", "spans"]
"""What a task predicts; a table of one's own has its kind for a name."""

OWN_TABLES: tuple[Kind, ...] = get_args(Kind)
SPAN_TASKS: tuple[TaskName, ...] = ("squad", "spans")
# As GLUE's papers and leaderboard report them. A published MRPC of 68.4 is the majority class: f1 comes first, and the
# majority's is printed beside it.
TASK_METRICS: Mapping[TaskName, tuple[str, ...]] = MappingProxyType(
    {
        "cola": ("matthews_correlation", "accuracy"),
        "sst-2": ("accuracy",),
        "mrpc": ("f1", "accuracy"),
        "sts-b": ("spearman", "pearson"),
        "qqp": ("accuracy", "f1"),
        "mnli": ("accuracy",),
        "qnli": ("accuracy",),
        "rte": ("accuracy",),
        "wnli": ("accuracy",),
        "squad": ("f1", "exact_match"),
        "classification": ("accuracy", "f1"),
        "regression": ("spearman", "pearson"),
        "spans": ("f1", "exact_match"),
    }
)
"""Of every task, the main one first; higher is better."""
MISMATCHED = "_mismatched"
"""Ends the names of the metrics of a second validation split; only MNLI has one."""
NEEDED_COLUMNS: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {
        "classification": ("text", "label"),
        "regression": ("text", "label"),
        "spans": ("question", "context", "answer"),
    }
)
"""Of ``TableColumns``, those that a table of one's own has to name."""
OPTIONAL_COLUMNS: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {
        "classification": ("text_pair", "id"),
        "regression": ("text_pair", "id"),
        "spans": ("answer_start", "id"),
    }
)
"""Those that it may name as well."""

Epochs = Annotated[float, Field(gt=0, le=1e6)]
"""The limit is that of a job; beyond some, numbers of steps overflow a float."""


class TableColumns(Section):
    """Columns of your own tables by name in the header line, or keys of JSON Lines."""

    text: str | None = None
    """For ``classification`` and ``regression``: the text, or the first of a pair."""
    text_pair: str | None = None
    """The second text of a pair; empty: single texts."""
    label: str | None = None
    """The class, or for ``regression`` the number."""
    question: str | None = None
    """The question; for ``spans``."""
    context: str | None = None
    """The text that holds the answer; for ``spans``."""
    answer: str | None = None
    """Of ``spans``: the answer as it stands in the context; JSON Lines may have a list of them, or an object with
    ``text`` and ``answer_start``. The first is trained on, any is right."""
    answer_start: str | None = None
    """Of ``spans``: offset of the answer's first character in the context; empty: its first occurrence."""
    id: str | None = None
    """What predictions are labelled with; empty: the row's number, from 0."""


class TaskData(Section):
    """Files of a task: a folder of official files, or your own files."""

    folder: str | None = None
    """Of GLUE and SQuAD: the folder with the official files under their official names, or the one that holds it under
    the task's name."""
    train: str | None = None
    """For own tables: the file to train on."""
    validation: str | None = None
    """The file to evaluate on."""
    test: str | None = None
    """A file without labels, of which predictions are written; empty: none."""
    format: Literal["auto", "tsv", "csv", "jsonLines"] = "auto"
    """``auto``: by the file's suffix, before that of a compressed one. In TSV quotation marks are part of the text."""
    columns: TableColumns = TableColumns()
    labels: tuple[str, ...] = ()
    """Classes of ``classification`` in the order of their numbers; empty: those of the file to train on, whole
    numbers by value, others by character."""


class EarlyStopping(Section):
    """Early stopping of a run."""

    patience: Positive
    """Evaluations in a row without improvement."""
    min_improvement: Annotated[float, Field(ge=0)] = 0.0
    """Minimum gain of the metric for an evaluation to count as an improvement."""


class FinetuneStage(Section):
    """Fine-tuning on one task: a run per seed, of which the best evaluation's weights are kept."""

    kind: Literal["finetune"] = "finetune"
    name: StageName
    task: TaskName
    data: TaskData
    start_from: Literal["pretrained", "random"] = "pretrained"
    """``pretrained``: the weights of the pretrain stages before, or else the initial checkpoint; ``random``: drawn from
    the run's seed. The task's head is drawn in either case."""
    lower_case: bool | None = None
    """Empty: as the prepare stage, the data set or the initial checkpoint's tokenizer says."""
    # The operator renders it only where a job asks for it.
    max_unknown_share: UnknownShare = MAX_UNKNOWN_SHARE
    """Of the tokens of the texts to train on, those that may be [UNK]; with more the run ends before its first step."""
    sequence_length: Annotated[int, Field(ge=8)]
    """Tokens at most, [CLS] and [SEP] included; longer pairs lose tokens of their longer text, contexts of spans are
    split into windows."""
    doc_stride: Positive = 128
    """Of spans: tokens between the starts of two windows of one context."""
    max_query_length: Positive = 64
    """For spans: maximum tokens of a question; the rest is cut."""
    max_answer_length: Positive = 30
    """For spans: maximum tokens of a predicted answer."""
    global_batch_size: Positive
    """Rows per optimizer step, over all ranks that train one model together; without ``synchronize_gradients`` of each
    rank."""
    micro_batch_size: Positive
    """Rows of one forward and backward pass on one rank, at most; of evaluations as well."""
    epochs: Epochs
    """Passes over the training rows. The last step of an epoch has what is left of its rows."""
    schedule: Schedule
    """Over the steps of one run."""
    learning_rate_scaling: Literal["none", "sqrtRanks"] = "none"
    """``sqrtRanks``: the learning rate times the square root of the number of ranks."""
    optimizer: OptimizerConfig
    head_dropout: Probability | None = None
    """Before the last layer of the task head; empty: as in transformers, the model's ``hidden_dropout_prob`` and 0 for
    spans, or of DistilBERT 0.2 and 0.1 for spans."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=100)]
    """Of the head's weights, order and dropout: one run for each, one after the other."""
    synchronize_gradients: bool = True
    """False: every rank trains a model of its own on all rows, with ``seed + rank * len(seeds)``, and the best one is
    kept."""
    evaluate_every_epochs: Epochs = 1.0
    """The last step of a run is evaluated as well."""
    metric: str | None = None
    """What decides which evaluation is the best; empty: the task's main metric (``tasks.catalog``)."""
    early_stopping: EarlyStopping | None = None
