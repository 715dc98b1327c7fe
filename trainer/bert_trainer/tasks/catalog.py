"""The tasks that models are fine-tuned on: kind, classes, metrics. Reads no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from bert_trainer.config.finetuning import TaskName

Kind = Literal["classification", "regression", "spans"]


@dataclass(frozen=True, slots=True)
class Task:
    """What is predicted, and how it is measured."""

    name: TaskName
    kind: Kind
    labels: tuple[str, ...]
    """Classes by number, as they stand in the files; empty for other kinds, and of one's own table until it is read."""
    metrics: tuple[str, ...]
    """All of them, the main one first; higher is better. Shares and correlations, not percent."""

    @property
    def main_metric(self) -> str:
        """The one that decides which evaluation is the best, unless the stage names another."""
        return self.metrics[0]

    @property
    def num_outputs(self) -> int:
        """Numbers that the head gives for a row: one for each class, 1 for a regression; 2 for each token of spans."""
        return {"classification": len(self.labels), "regression": 1, "spans": 2}[self.kind]

    def with_labels(self, labels: tuple[str, ...]) -> Task:
        """Return the same with its classes, once they are known."""
        return replace(self, labels=labels)


def _classes(name: TaskName, labels: tuple[str, ...], *metrics: str) -> Task:
    return Task(name, "classification", labels, metrics or ("accuracy",))


# Classes in the order of GLUE's own number of them; metrics as its papers and leaderboard report them. A published MRPC
# of 68.4 is the majority class: f1 comes first, and the majority's is printed beside it.
TASKS: Mapping[TaskName, Task] = MappingProxyType(
    {
        task.name: task
        for task in (
            _classes("cola", ("0", "1"), "matthews_correlation", "accuracy"),
            _classes("sst-2", ("0", "1")),
            _classes("mrpc", ("0", "1"), "f1", "accuracy"),
            Task("sts-b", "regression", (), ("spearman", "pearson")),
            _classes("qqp", ("0", "1"), "accuracy", "f1"),
            _classes("mnli", ("contradiction", "entailment", "neutral")),
            _classes("qnli", ("entailment", "not_entailment")),
            _classes("rte", ("entailment", "not_entailment")),
            _classes("wnli", ("0", "1")),
            Task("squad", "spans", (), ("f1", "exact_match")),
            _classes("classification", (), "accuracy", "f1"),
            Task("regression", "regression", (), ("spearman", "pearson")),
            Task("spans", "spans", (), ("f1", "exact_match")),
        )
    }
)
"""By name. F1 of one's own classification is the mean over classes (macro)."""
