"""Tasks of fine-tuning: what each predicts, how it is measured, and which columns a table of one's own has."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

TaskName = Literal[
    "cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "wnli", "squad",
    "classification", "regression", "spans",
]  # fmt: skip
"""Nine of GLUE (Wang et al. 2019), SQuAD 1.1 (Rajpurkar et al. 2016), and three kinds of tables of one's own."""

Kind = Literal["classification", "regression", "spans"]
"""What a task predicts; a table of one's own has its kind for a name."""
MetricName = Literal["accuracy", "f1", "matthews_correlation", "pearson", "spearman", "exact_match"]
CORRELATIONS: tuple[MetricName, ...] = ("matthews_correlation", "pearson", "spearman")
"""Metrics from -1 to 1; the others are shares."""

OWN_TABLES: tuple[Kind, ...] = get_args(Kind)
"""Tasks whose files are the user's own; the others read a folder with official names."""
SPAN_TASKS: tuple[TaskName, ...] = ("squad", "spans")
# As GLUE's papers and leaderboard report them. A published MRPC of 68.4 is the majority class: f1 comes first, and the
# majority's is printed beside it.
TASK_METRICS: Mapping[TaskName, tuple[MetricName, ...]] = MappingProxyType(
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
"""Of ``TableColumnsSpec``, those that a table of one's own has to name."""
ANSWER_COLUMNS = ("label", "answer", "answer_start")
"""Those that a table to predict does not have."""
OPTIONAL_COLUMNS: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {
        "classification": ("text_pair", "id"),
        "regression": ("text_pair", "id"),
        "spans": ("answer_start", "id"),
    }
)
"""Those that it may name as well."""
