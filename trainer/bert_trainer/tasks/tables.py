"""Tables of one's own: TSV, CSV or JSON Lines with named columns, for classification, regression or spans."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_job.finetuning import TableColumnsSpec
from bert_job.foreign_text import printable
from bert_job.run_stages import TaskData
from bert_job.tasks import NEEDED_COLUMNS
from bert_trainer.errors import InputError
from bert_trainer.tasks.answers import AnswerCheck
from bert_trainer.tasks.catalog import Task
from bert_trainer.tasks.delimited import (
    at,
    excerpt,
    listed,
    read_text_lines,
    require_file,
    require_short,
    whole_characters,
)
from bert_trainer.tasks.examples import Example, SpanExample, Split, TaskExamples, TextExample, text_examples
from bert_trainer.tasks.held_out import hold_out
from bert_trainer.tasks.ratings import parse_rating
from bert_trainer.tasks.records import Record, read_records

MAX_CLASSES = 10_000
"""More are a column of texts or numbers, named by mistake."""
MAX_LABEL_CHARACTERS = 256
"""As a job's data.labels; the model's configuration, its card and the head of predictions hold all of them."""
MAX_ID_CHARACTERS = 1024
_LABEL_HINT = (
    "results and the exported model name their classes so: write it differently, or name the column of classes"
)
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def read_tables(task: Task, data: TaskData) -> TaskExamples:
    """Read the files that the stage names.

    Raises:
        InputError: a file or a column is missing, or a row is not of its form; names the file and the line.
    """
    _require_columns(task, data.columns)
    train = _named(data.train, "train")
    tables = {"train": _Table(train, data)}
    if data.validation is not None:
        tables["validation"] = _Table(_named(data.validation, "validation"), data)
    if data.test is not None:
        tables["test"] = _Table(_named(data.test, "test"), data)
    notes = []
    if data.validation is not None and _is_same(train, Path(data.validation)):
        notes.append(f"{printable(train)}: is trained on and evaluated on: its metrics say nothing about other texts")
    if task.kind == "classification":
        found = _labels_in(tables["train"], task)
        task = task.with_labels(_given_labels(data.labels) if data.labels else _in_order(found, tables["train"]))
    splits = {name: Split(name, tuple(table.examples(task, name != "test"))) for name, table in tables.items()}
    for name, split in splits.items():
        if not split.examples:
            raise _empty(tables[name])
        if name != "train" or data.validation is None:
            tables[name].refuse_equal_ids()
    notes += [note for table in tables.values() for note in table.notes]
    if data.validation is None:
        splits["train"], splits["validation"] = hold_out(splits["train"].examples, train)
        held, count = len(splits["validation"].examples), len(splits["train"].examples)
        notes.append(
            f"{printable(train)}: no validation file is named: {held:,} of {held + count:,} rows are held out to "
            "evaluate on, the same in every run"
        )
    if task.kind == "classification":
        learnt = {example.label for example in text_examples(splits["train"])}
        if unused := [label for number, label in enumerate(task.labels) if number not in learnt]:
            notes.append(f"{printable(train)}: labels without a row to learn from: {listed(sorted(unused))}")
    tests = (splits["test"],) if "test" in splits else ()
    return TaskExamples(task, splits["train"], (splits["validation"],), tests, tuple(notes))


def read_unlabelled(path: Path, task: Task, data: TaskData, notes: list[str]) -> Iterator[Example]:
    """Yield what a file holds to predict, row by row: it may be of any length.

    Args:
        path: The file.
        task: Of the model.
        data: Format and columns, of which those are named that the task needs.
        notes: Warnings for the log are added at the end.

    Raises:
        InputError: as ``read_tables``.
    """
    table = _Table(path, data, notes, is_kept=False)
    yield from table.examples(task, labelled=False)


def read_lines_as_texts(path: Path) -> Iterator[TextExample]:
    """Yield each line of a file as a text, empty ones too; raises as ``read_text_lines``, and for one too long."""
    for number, line in read_text_lines(path, is_kept=False):
        require_short(line, path, str(number))
        yield TextExample(str(number - 1), line, None, None)


def _require_columns(task: Task, columns: TableColumnsSpec) -> None:
    needed = NEEDED_COLUMNS[task.kind]
    missing = [name for name in needed if not getattr(columns, name)]
    if missing:
        raise InputError(
            f"columns: {listed(missing)} not named; allowed for the task {task.name}: names of columns for "
            f"{listed(list(needed))}",
            hint="name them as the first line of the file does, or as the keys of its JSON objects",
        )


def _named(path: str | None, what: str) -> Path:
    if not path:
        raise InputError(f"{what}: not named; allowed: a file", hint="name the file to train on")
    require_file(Path(path))
    return Path(path)


def _is_same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:
        return False


def _given_labels(labels: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(labels)) < len(labels) or len(labels) < 2 or any(label != label.strip() for label in labels):
        raise InputError(
            f"labels: got {listed(list(labels))}; allowed: two or more, none twice, without spaces around them",
            hint="leave it empty to take the labels of the file to train on",
        )
    for label in labels:
        if problem := _problem_of_name(label, MAX_LABEL_CHARACTERS):
            raise InputError(f"labels: got {problem}", hint=_LABEL_HINT)
    return labels


def _problem_of_name(name: str, most_characters: int) -> str | None:
    """Return why a table of predictions, a terminal or a model's card could not show a name."""
    if len(name) > most_characters:
        return f"a text of {len(name):,} characters; allowed: {most_characters:,} at most"
    if _CONTROL_CHARACTERS.search(name):
        return f"{excerpt(name)}, with control characters; allowed: none"
    return None


def _labels_in(table: _Table, task: Task) -> set[str]:
    found: set[str] = set()
    for line, record in table.records(task, labelled=True):
        found.add(table.label(record, line))
        if len(found) > MAX_CLASSES:
            raise InputError(
                f"{at(table.path, line)}: got more than {MAX_CLASSES} labels in the column {table.columns.label!r}; "
                "allowed: classes, of which each has examples",
                hint="name the column of the classes, or the task `regression` for numbers",
            )
    if not found:
        raise _empty(table)
    return found


def _in_order(found: set[str], table: _Table) -> tuple[str, ...]:
    """Return labels by number if all are whole numbers, else by character."""
    if len(found) == 1:
        raise InputError(
            f"{printable(table.path)}: got the label {excerpt(min(found))} in every row; allowed: two classes or more",
            hint=f"name the column of the classes; {table.columns.label!r} is named now",
        )
    if all(label.removeprefix("-").isdecimal() and len(label) < 20 for label in found):
        return tuple(sorted(found, key=lambda label: (int(label), label)))
    return tuple(sorted(found))


def _empty(table: _Table) -> InputError:
    return InputError(f"{printable(table.path)}: got no row; allowed: at least one", hint="write the file again")


@dataclass(slots=True)
class _Table:
    """One file, read row by row; may be read several times."""

    path: Path
    data: TaskData
    notes: list[str] = field(default_factory=list)
    is_kept: bool = True
    """Whether all rows are in memory together."""
    _lines: dict[str, int] = field(default_factory=dict)
    """Of identifiers: where they stand first."""
    _equal: tuple[str, int, int] | None = None

    @property
    def columns(self) -> TableColumnsSpec:
        return self.data.columns

    def examples(self, task: Task, labelled: bool) -> Iterator[TextExample] | Iterator[SpanExample]:
        """Yield what the rows say."""
        return self._spans(task, labelled) if task.kind == "spans" else self._texts(task, labelled)

    def _texts(self, task: Task, labelled: bool) -> Iterator[TextExample]:
        """Yield the examples of a classification or a regression."""
        columns = self.columns
        numbers = {label: number for number, label in enumerate(task.labels)}
        for count, (line, record) in enumerate(self.records(task, labelled)):
            label: int | float | None = None
            if labelled:
                rated = task.kind == "regression"
                label = self._rating(record, line) if rated else self._class(record, line, numbers)
            second = self._text(record, columns.text_pair, line) if columns.text_pair else None
            yield TextExample(self._id(record, line, count), self._text(record, columns.text, line), second, label)

    def _spans(self, task: Task, labelled: bool) -> Iterator[SpanExample]:
        """Yield questions; raises InputError at the end if answers are not in their contexts."""
        columns = self.columns
        check = AnswerCheck(self.path)
        for count, (line, record) in enumerate(self.records(task, labelled)):
            name = self._id(record, line, count)
            context = self._text(record, columns.context, line)
            answers = []
            for answer, start in self._answers(record, line) if labelled else ():
                place = check.locate(f"line {line} ({excerpt(name)})", context, answer, start)
                if place is not None:
                    answers.append(place)
            yield SpanExample(name, self._text(record, columns.question, line), context, tuple(answers))
        self.notes += check.notes()

    def records(self, task: Task, labelled: bool) -> Iterator[Record]:
        """Yield the rows, which have the columns that the stage names."""
        columns = self.columns
        names = [columns.id]
        if task.kind == "spans":
            names += [columns.question, columns.context, *([columns.answer, columns.answer_start] * labelled)]
        else:
            names += [columns.text, columns.text_pair, *([columns.label] * labelled)]
        return read_records(
            self.path, self.data.format, {name for name in names if name}, self.notes, is_kept=self.is_kept
        )

    def label(self, record: dict[str, Any], line: int) -> str:
        """Return a class as text: of JSON also a whole number, or true or false."""
        value = record[str(self.columns.label)]
        text = json.dumps(value) if isinstance(value, int) else value
        if not isinstance(text, str) or not text.strip():
            got = "empty" if isinstance(text, str) else _described(value)
            raise InputError(
                f"{at(self.path, line)}: {self.columns.label!r} is {got}; allowed: a label, as text or whole number",
                hint="take rows without a label out of the file; those to predict belong into the test file",
            )
        label = whole_characters(text.strip())
        if problem := _problem_of_name(label, MAX_LABEL_CHARACTERS):
            raise InputError(f"{at(self.path, line)}: {self.columns.label!r} is {problem}", hint=_LABEL_HINT)
        return label

    def _class(self, record: dict[str, Any], line: int, numbers: dict[str, int]) -> int:
        label = self.label(record, line)
        if label not in numbers:
            whose = "labels" if self.data.labels else "the file to train on"
            raise InputError(
                f"{at(self.path, line)}: got the label {excerpt(label)}; allowed, by {whose}: {listed(list(numbers))}",
                hint="correct it, take the row out, or name all classes as labels",
            )
        return numbers[label]

    def _rating(self, record: dict[str, Any], line: int) -> float:
        value = record[str(self.columns.label)]
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return parse_rating(str(value), self.path, line)
        raise InputError(f"{at(self.path, line)}: got {_described(value)} to predict; allowed: a finite number of fp32")

    def _text(self, record: dict[str, Any], column: str | None, line: int) -> str:
        value = record[str(column)]
        if not isinstance(value, str):
            raise InputError(f"{at(self.path, line)}: {column!r} is {_described(value)}; allowed: a text")
        require_short(value, self.path, str(line))
        return whole_characters(value)

    def _id(self, record: dict[str, Any], line: int, count: int) -> str:
        column = self.columns.id
        if not column:
            return str(count)
        value = record[column]
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise InputError(
                f"{at(self.path, line)}: {column!r} is {_described(value)}; allowed: a text or a whole number"
            )
        name = whole_characters(str(value))
        if problem := _problem_of_name(name, MAX_ID_CHARACTERS):
            raise InputError(
                f"{at(self.path, line)}: {column!r} is {problem}",
                hint="predictions are labelled with it: name another column as id, or none, for the "
                "numbers of the rows",
            )
        before = self._lines.setdefault(name, line) if self.is_kept else line
        if before != line and self._equal is None:
            self._equal = (name, before, line)
        return name

    def refuse_equal_ids(self) -> None:
        """Raise InputError if two rows have one identifier: predictions could not be told apart."""
        if self._equal is not None:
            name, before, line = self._equal
            raise InputError(
                f"{at(self.path, line)}: got the identifier {excerpt(name)}, which line {before} has; allowed: one "
                "of its own for every row, since predictions are labelled with it",
                hint="name another column as id, or none, for the numbers of the rows",
            )

    def _answers(self, record: dict[str, Any], line: int) -> list[tuple[str, int | None]]:
        """Return the answers of a row, and their offsets if a column has them."""
        value: Any = record[str(self.columns.answer)]
        start: Any = record[self.columns.answer_start] if self.columns.answer_start else None
        if isinstance(value, dict) and self.columns.answer_start is None:
            # As converted SQuAD has it: {"text": [...], "answer_start": [...]}.
            value, start = value.get("text"), value.get("answer_start")
        texts = value if isinstance(value, list) else [value]
        starts = start if isinstance(start, list) else [start] * len(texts)
        if not texts or not all(isinstance(text, str) for text in texts):
            raise InputError(
                f"{at(self.path, line)}: {self.columns.answer!r} is {_described(value)}; "
                "allowed: a text, or a list of texts",
                hint="questions without an answer cannot be trained on",
            )
        if len(starts) != len(texts):
            raise InputError(
                f"{at(self.path, line)}: got {len(texts)} answers and {len(starts)} starts; allowed: as many"
            )
        return [(whole_characters(text), self._start(value, line)) for text, value in zip(texts, starts, strict=True)]

    def _start(self, value: object, line: int) -> int | None:
        if value is None and self.columns.answer_start is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
            return int(value)
        raise InputError(
            f"{at(self.path, line)}: got {_described(value)} for an answer's start; allowed: a whole number",
            hint="name no column for answer_start, to take each answer's first occurrence",
        )


def _described(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return excerpt(value)
    return f"a {type(value).__name__}" if isinstance(value, list | dict) else json.dumps(value)
