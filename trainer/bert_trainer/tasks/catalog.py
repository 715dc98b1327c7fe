"""The tasks that models are fine-tuned on: kind, classes, metrics. Reads no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from bert_job.tasks import TASK_METRICS, Kind, TaskName

_OFFICIAL_NAMES: Mapping[TaskName, str] = MappingProxyType(
    {
        "cola": "CoLA",
        "sst-2": "SST-2",
        "mrpc": "MRPC",
        "sts-b": "STS-B",
        "qqp": "QQP",
        "mnli": "MNLI",
        "qnli": "QNLI",
        "rte": "RTE",
        "wnli": "WNLI",
        "squad": "SQuAD",
    }
)


@dataclass(frozen=True, slots=True)
class Task:
    """A fine-tuning task: what is predicted and how it is measured."""

    name: TaskName
    kind: Kind
    labels: tuple[str, ...]
    """Classes by number, as they stand in the files; empty for other kinds, and of one's own table until it is read."""
    metrics: tuple[str, ...]
    """All of them, the main one first; higher is better. Fractions and correlations, not percent."""

    @property
    def official_name(self) -> str:
        """Official name, also that of the folder with its files; for own tables the task's name."""
        return _OFFICIAL_NAMES.get(self.name, self.name)

    @property
    def main_metric(self) -> str:
        """Metric that selects the best evaluation by default."""
        return self.metrics[0]

    @property
    def label_names(self) -> tuple[str, ...]:
        """Classes by number as people read them: those of the files, unless these are 0 and 1."""
        return _LABEL_NAMES.get(self.name, self.labels)

    @property
    def num_outputs(self) -> int:
        """Logits per row: one for each class, 1 for regression; for spans 2 per token."""
        return {"classification": len(self.labels), "regression": 1, "spans": 2}[self.kind]

    def with_labels(self, labels: tuple[str, ...]) -> Task:
        """Return the task with its classes."""
        return replace(self, labels=labels)


def _task(name: TaskName, kind: Kind, labels: tuple[str, ...] = ()) -> Task:
    return Task(name, kind, labels, TASK_METRICS[name])


_LABEL_NAMES: Mapping[TaskName, tuple[str, ...]] = MappingProxyType(
    {
        "cola": ("unacceptable", "acceptable"),
        "sst-2": ("negative", "positive"),
        "mrpc": ("not_equivalent", "equivalent"),
        "qqp": ("not_duplicate", "duplicate"),
        "wnli": ("not_entailment", "entailment"),
    }
)
"""Of tasks whose files have 0 and 1; those of the library datasets."""


# Classes in the order of the processors in Google's run_classifier.py and in transformers; the library datasets numbers
# MNLI's otherwise.
TASKS: Mapping[TaskName, Task] = MappingProxyType(
    {
        task.name: task
        for task in (
            _task("cola", "classification", ("0", "1")),
            _task("sst-2", "classification", ("0", "1")),
            _task("mrpc", "classification", ("0", "1")),
            _task("sts-b", "regression"),
            _task("qqp", "classification", ("0", "1")),
            _task("mnli", "classification", ("contradiction", "entailment", "neutral")),
            _task("qnli", "classification", ("entailment", "not_entailment")),
            _task("rte", "classification", ("entailment", "not_entailment")),
            _task("wnli", "classification", ("0", "1")),
            _task("squad", "spans"),
            _task("classification", "classification"),
            _task("regression", "regression"),
            _task("spans", "spans"),
        )
    }
)
"""By name. F1 of one's own classification is the mean over classes (macro)."""
