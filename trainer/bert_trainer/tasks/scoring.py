"""What a model's numbers predict, how good that is, and how good it is to give always the same answer.

Metrics are scikit-learn's and SciPy's; both are imported when something is scored, since that takes a second or more.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_job.run_stages import FinetuneStage
from bert_job.tasks import CORRELATIONS
from bert_trainer.tasks.catalog import Task
from bert_trainer.tasks.examples import Split, TaskExamples, span_examples, text_examples
from bert_trainer.tasks.rows import TaskRows
from bert_trainer.tasks.spans import decode_spans, text_of_span
from bert_trainer.tasks.squad_scores import best_f1, exact_match

_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Predictions:
    """What is predicted for the E examples of a split, in its order."""

    values: NDArray[Any]
    """Numbers of classes, int64 (E,); ratings, float64 (E,); of spans the first character of each answer and the one
    behind it, int64 (E, 2), twice 0 where there is none."""
    probabilities: NDArray[np.float64]
    """Of each class, (E, L); without columns for other kinds. NaN where the model's numbers are."""
    texts: tuple[str, ...] = ()
    """Of spans: the answers as they stand in the contexts."""


def predict(
    rows: TaskRows, split: Split, task: Task, outputs: NDArray[np.float32], stage: FinetuneStage
) -> Predictions:
    """Return the predictions from the head's outputs.

    outputs: (R, L) by row, L 1 for ratings; of spans (N, 2), by token, rows end to end. NaN loses against any number.
    """
    num_rows = len(rows.samples.tokens) if task.kind == "spans" else len(rows)
    assert outputs.shape == (num_rows, task.num_outputs), f"outputs of shape {outputs.shape}"
    if task.kind == "spans":
        assert rows.contexts is not None, "rows of spans know where their tokens stand"
        found = decode_spans(outputs, rows.samples, rows.contexts, rows.example_of_row, stage.max_answer_length)
        return _spans(split, found)
    if task.kind == "regression":
        return Predictions(outputs[:, 0].astype(np.float64), np.zeros((len(outputs), 0)))
    classes = np.nan_to_num(outputs, nan=-np.inf, posinf=np.inf, neginf=-np.inf).argmax(axis=1)
    return Predictions(classes.astype(np.int64), _softmax(outputs.astype(np.float64)))


def score(predictions: Predictions, split: Split, task: Task) -> dict[str, float]:
    """Return the task's metrics, the main one first: shares in [0, 1], correlations in [-1, 1].

    A correlation that does not exist, such as that of constant predictions, is 0. The split has labels, and at least
    one example.
    """
    assert split.examples, f"the split {split.name} has no examples"
    if task.kind == "spans":
        answers = [[text for text, _ in example.answers] for example in span_examples(split)]
        pairs = list(zip(predictions.texts, answers, strict=True))
        return {name: fmean(_OF_ANSWERS[name](text, right) for text, right in pairs) for name in task.metrics}
    labels = _labels(split)
    assert len(labels) == len(predictions.values), f"{len(predictions.values)} predictions of {len(labels)} labels"
    return {name: _METRICS[name](labels, predictions.values, task) for name in task.metrics}


def note_on_predictions(predictions: Predictions, split: Split, task: Task) -> str | None:
    """Return which of the task's metrics are 0 because all predictions are the same; None if they are not."""
    names = [name for name in task.metrics if name in CORRELATIONS]
    if not names or _varies(predictions.values):
        return None
    exist = "do not exist and are" if len(names) > 1 else "does not exist and is"
    return f"all predictions of {split.name} are {predictions.values[0]:g}: {' and '.join(names)} {exist} given as 0"


def majority_scores(examples: TaskExamples, split: Split) -> dict[str, float]:
    """Return the metrics on a split of giving always the same: what a model must surpass to have learnt anything.

    Of classes the training split's most frequent, the first of equals; of ratings its mean; of spans the first words of
    the context, as many as its answers have in the median.
    """
    return score(_constant_predictions(examples, split), split, examples.task)


def _constant_predictions(examples: TaskExamples, split: Split) -> Predictions:
    count = len(split.examples)
    if examples.task.kind == "spans":
        words = [len(example.answers[0][0].split()) for example in span_examples(examples.train)]
        num_words = max(1, int(median(words)))
        ends = [_end_of_words(example.context, num_words) for example in span_examples(split)]
        return _spans(split, np.array(ends, dtype=np.int64).reshape(-1, 2))
    labels = _labels(examples.train)
    if examples.task.kind == "regression":
        return Predictions(np.full(count, labels.mean()), np.zeros((count, 0)))
    counts = np.bincount(labels, minlength=examples.task.num_outputs)
    return Predictions(np.full(count, counts.argmax()), np.tile(counts / counts.sum(), (count, 1)))


def _labels(split: Split) -> NDArray[Any]:
    """Return classes, int64 (E,), or ratings, float64 (E,)."""
    labels = [example.label for example in text_examples(split) if example.label is not None]
    assert len(labels) == len(split.examples), f"examples of the split {split.name} have no label"
    return np.array(labels)


def _spans(split: Split, found: NDArray[np.int64]) -> Predictions:
    contexts = [example.context for example in span_examples(split)]
    texts = [text_of_span(context, *span) for context, span in zip(contexts, found.tolist(), strict=True)]
    ends = found[:, 0] + np.array([len(text) for text in texts], dtype=np.int64)
    return Predictions(np.column_stack([found[:, 0], ends]), np.zeros((len(texts), 0)), tuple(texts))


def _end_of_words(context: str, num_words: int) -> tuple[int, int]:
    """Return where the first words begin and end."""
    words = list(islice(_WORD.finditer(context), num_words))
    return (words[0].start(), words[-1].end()) if words else (0, 0)


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # of infinities
        shares = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    probabilities: NDArray[np.float64] = shares / shares.sum(axis=1, keepdims=True)
    return probabilities


def _accuracy(labels: NDArray[Any], values: NDArray[Any], task: Task) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(labels, values))


def _class_f1(labels: NDArray[Any], values: NDArray[Any], task: Task) -> float:
    """Return GLUE's F1 of the class "1", or of one's own classes the mean over those that occur."""
    from sklearn.metrics import f1_score

    if task.name == "classification":
        return float(f1_score(labels, values, average="macro", zero_division=0))
    return float(f1_score(labels, values, pos_label=task.labels.index(_POSITIVE), zero_division=0))


def _matthews(labels: NDArray[Any], values: NDArray[Any], task: Task) -> float:
    from sklearn.metrics import matthews_corrcoef

    # Asked, scikit-learn warns where all labels and predictions are of one class.
    return float(matthews_corrcoef(labels, values)) if _varies(labels) and _varies(values) else 0.0


def _pearson(labels: NDArray[Any], values: NDArray[Any], task: Task) -> float:
    from scipy.stats import pearsonr

    return _correlation(pearsonr, labels, values)


def _spearman(labels: NDArray[Any], values: NDArray[Any], task: Task) -> float:
    from scipy.stats import spearmanr

    return _correlation(spearmanr, labels, values)


def _correlation(of: Callable[..., Any], labels: NDArray[Any], values: NDArray[Any]) -> float:
    if not (np.isfinite(values).all() and _varies(labels) and _varies(values)):
        return 0.0
    with warnings.catch_warnings():
        # Of values that differ in their last bits alone.
        warnings.simplefilter("ignore")
        correlation = float(of(labels.astype(np.float64), values).statistic)
    return correlation if np.isfinite(correlation) else 0.0


def _varies(values: NDArray[Any]) -> bool:
    return bool((values != values[0]).any())


_POSITIVE = "1"
"""The class that MRPC and QQP count: the sentences mean the same."""
_METRICS = {
    "accuracy": _accuracy,
    "f1": _class_f1,
    "matthews_correlation": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}
_OF_ANSWERS = {"f1": best_f1, "exact_match": exact_match}
