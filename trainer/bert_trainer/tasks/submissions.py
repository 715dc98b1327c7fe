"""Predictions as files: GLUE's and SQuAD's official submission formats, and CSV for tables of one's own.

GLUE's server takes a zip of ``CoLA.tsv`` and so on, each with the columns ``index`` and ``prediction``; it also asks
for ``AX.tsv``, a diagnostic set that is no task here. SQuAD's ``evaluate-v1.1.py`` reads an object of id to text.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from bert_job.tasks import OWN_TABLES
from bert_trainer.system.atomic_files import disk_errors, write_atomically
from bert_trainer.tasks.catalog import Task
from bert_trainer.tasks.examples import MISMATCHED_SPLIT, Split
from bert_trainer.tasks.scoring import Predictions

_RATINGS = (0.0, 5.0)
"""Of STS-B: the lowest and the highest that people gave, and that are allowed."""
_DIGITS = 6
"""Of ratings and probabilities, significant ones: as many as float32 has."""


def write_predictions(predictions: Predictions, split: Split, task: Task, folder: Path) -> Path:
    """Write the predictions of a split to a file of the folder, which is made if needed, and return the file.

    Of a test split the official name (``MNLI-mm.tsv``; ``predictions.json`` of SQuAD, ``predictions.csv`` of tables);
    of any other with the split's behind it (``MRPC-validation.tsv``). A file of that name is replaced.

    Raises:
        InputError, TrainerError: it cannot be written.
    """
    path = folder / _file_name(task, split)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _content(predictions, split, task).encode(errors="replace"))
    return path


def _file_name(task: Task, split: Split) -> str:
    name = split.name.removesuffix(MISMATCHED_SPLIT)
    suffix = "" if name == "test" else f"-{name}"
    if _is_glue(task):
        half = ("-mm" if split.name.endswith(MISMATCHED_SPLIT) else "-m") if task.name == "mnli" else ""
        return f"{task.official_name}{half}{suffix}.tsv"
    return f"predictions{suffix}.{'json' if task.name == 'squad' else 'csv'}"


def _content(predictions: Predictions, split: Split, task: Task) -> str:
    names = [example.id for example in split.examples]
    if task.name == "squad":
        # ASCII: the official script reads it with whatever encoding the machine has.
        return json.dumps(dict(zip(names, predictions.texts, strict=True)), indent=1) + "\n"
    if _is_glue(task):
        rows = zip(names, _glue_values(predictions, task), strict=True)
        return "".join(f"{name}\t{value}\n" for name, value in (("index", "prediction"), *rows))
    if task.kind == "spans":
        columns = ["prediction", "start", "end"]
        values: Iterable[Sequence[object]] = zip(predictions.texts, *predictions.values.T.tolist(), strict=True)
    elif task.kind == "regression":
        columns, values = ["prediction"], ([_rounded(value)] for value in predictions.values.tolist())
    else:
        columns = ["prediction", *(f"probability_{label}" for label in task.labels)]
        values = (
            [task.labels[number], *map(_rounded, shares)]
            for number, shares in zip(predictions.values.tolist(), predictions.probabilities.tolist(), strict=True)
        )
    file = io.StringIO()
    # Texts in quotes: a carriage return in one of them ends no line.
    writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(["id", *columns])
    writer.writerows([name, *row] for name, row in zip(names, values, strict=True))
    return file.getvalue()


def _is_glue(task: Task) -> bool:
    return task.name != "squad" and task.name not in OWN_TABLES


def _glue_values(predictions: Predictions, task: Task) -> list[str]:
    if task.kind == "regression":
        lowest, highest = _RATINGS
        # NaN, which no comparison is true of, becomes the lowest.
        return [f"{min(max(lowest, value), highest):.{_DIGITS}g}" for value in predictions.values.tolist()]
    return [task.labels[number] for number in predictions.values.tolist()]


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
