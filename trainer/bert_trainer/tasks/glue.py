"""The nine tasks of GLUE (Wang et al. 2019), from their official files under their official names.

Columns are found by their names in the first line, since archives differ in their order; CoLA's labelled files have no
first line of names. MRPC is also read from its original text files. Quotation marks are characters like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bert_job.foreign_text import printable
from bert_job.tasks import TaskName
from bert_trainer.errors import InputError
from bert_trainer.tasks.catalog import TASKS, Task
from bert_trainer.tasks.delimited import Fields, at, excerpt, listed, read_tsv, require_short
from bert_trainer.tasks.examples import MISMATCHED_SPLIT, Split, TaskExamples, TextExample
from bert_trainer.tasks.folders import find_files, find_folder
from bert_trainer.tasks.ratings import parse_rating


@dataclass(frozen=True, slots=True)
class _Layout:
    """A task's columns by name."""

    first: str
    second: str | None
    label: str
    id: str = "index"

    @property
    def labelled(self) -> tuple[str, ...]:
        """The columns of a file to train on."""
        return (*self.texts, self.label)

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.first,) if self.second is None else (self.first, self.second)


_LAYOUTS: dict[TaskName, _Layout] = {
    "cola": _Layout("sentence", None, "label"),
    "sst-2": _Layout("sentence", None, "label"),
    "mrpc": _Layout("#1 String", "#2 String", "Quality"),
    "sts-b": _Layout("sentence1", "sentence2", "score"),
    "qqp": _Layout("question1", "question2", "is_duplicate", id="id"),
    "mnli": _Layout("sentence1", "sentence2", "gold_label"),
    "qnli": _Layout("question", "sentence", "label"),
    "rte": _Layout("sentence1", "sentence2", "label"),
    "wnli": _Layout("sentence1", "sentence2", "label"),
}
_COLA_COLUMNS = ["source", "label", "star", "sentence"]
"""Of its labelled files, which do not name them: where a sentence comes from, 0 or 1, its author's mark, itself."""
_MRPC_ORIGINAL = ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt")
_MRPC_DEV_IDS = ("dev_ids.tsv", "mrpc_dev_ids.tsv")
"""As GLUE's script calls it on disk, and as it is published and fetched."""
_MAX_BROKEN_SHARE = 1 / 1000
"""Lines to an example that may have other fields than columns, before a file counts as damaged; skipped and counted."""
_NO_GOLD_LABEL = "-"
"""Of MNLI, where the annotators disagree."""


def read_glue(task: Task, folder: Path) -> TaskExamples:
    """Read a task from its folder, or from the folder that holds all tasks'.

    Raises:
        InputError: a file is missing, another task's, or has lines that are not of its form.
    """
    needed = ["train.tsv", "dev_matched.tsv" if task.name == "mnli" else "dev.tsv"]
    choices = [needed, [*_MRPC_ORIGINAL]] if task.name == "mrpc" else [needed]
    found = find_folder(folder, task.official_name, choices)
    if task.name == "mrpc" and not find_files(found, needed):
        return _read_original_mrpc(task, found)
    files = {"train": "train.tsv", "validation": needed[1], "test": "test.tsv"}
    if task.name == "mnli":
        files |= {f"validation{MISMATCHED_SPLIT}": "dev_mismatched.tsv", "test": "test_matched.tsv"}
        files |= {f"test{MISMATCHED_SPLIT}": "test_mismatched.tsv"}
    readers = {name: _FileReader(task, found / file) for name, file in files.items() if find_files(found, [file])}
    splits = {name: Split(name, reader.read(labelled="test" not in name)) for name, reader in readers.items()}
    notes = [note for reader in readers.values() for note in reader.notes()]
    if task.name == "mnli" and f"validation{MISMATCHED_SPLIT}" not in splits:
        notes.append(f"{printable(found)}: no dev_mismatched.tsv; MNLI's second validation set is left out")
    return _together(task, splits, notes)


def _read_original_mrpc(task: Task, folder: Path) -> TaskExamples:
    """Read the text files of the Microsoft Research Paraphrase Corpus, which have the columns of GLUE's."""
    train, test = (_FileReader(task, folder / name) for name in _MRPC_ORIGINAL)
    rows = train.read(labelled=True)
    path = next((folder / name for name in _MRPC_DEV_IDS if find_files(folder, [name])), None)
    if path is None:
        note = (
            f"{printable(folder)}: no {_MRPC_DEV_IDS[0]}: the validation set is the original test set, {test.path.name}"
        )
        splits = {"train": Split("train", rows), "validation": Split("validation", test.read(labelled=True))}
        return _together(task, splits, [*train.notes(), *test.notes(), note])
    held_out = {tuple(field.strip() for field in fields[:2]) for _, fields in read_tsv(path) if any(fields)}
    # As GLUE makes its files: these pairs of the training file are its dev.tsv.
    chosen = [pair in held_out for pair in train.mrpc_ids]
    if all(chosen) or not any(chosen):
        raise InputError(
            f"{printable(path)}: its pairs of ids are {'all' if all(chosen) else 'none'} of those in "
            f"{train.path.name}; allowed: those of the pairs to evaluate on, two ids a line, a tab between",
            hint="take GLUE's file, or remove it to evaluate on the original test set",
        )
    splits = {
        "train": Split("train", tuple(row for row, dev in zip(rows, chosen, strict=True) if not dev)),
        "validation": Split("validation", tuple(row for row, dev in zip(rows, chosen, strict=True) if dev)),
        "test": Split("test", test.read(labelled=False)),
    }
    note = f"{printable(folder)}: the validation set is what {path.name} names of {train.path.name}: {sum(chosen)}"
    return _together(task, splits, [*train.notes(), *test.notes(), note])


def _together(task: Task, splits: dict[str, Split], notes: list[str]) -> TaskExamples:
    return TaskExamples(
        task,
        splits["train"],
        tuple(split for name, split in splits.items() if name.startswith("validation")),
        tuple(split for name, split in splits.items() if name.startswith("test")),
        tuple(notes),
    )


def has_pairs(task: TaskName) -> bool:
    """Return whether a task's examples are pairs of texts, rather than single ones."""
    return _LAYOUTS[task].second is not None


class _FileReader:
    """One file of one task: its lines, and what was left out of them."""

    def __init__(self, task: Task, path: Path) -> None:
        self._task, self.path, self._layout = task, path, _LAYOUTS[task.name]
        self._broken: list[int] = []
        self._first_broken: InputError | None = None
        self._without_gold = 0
        self.mrpc_ids: list[tuple[str, ...]] = []
        """Of MRPC, the two ids of each example."""

    def notes(self) -> list[str]:
        """Return warnings for the log: lines that were left out."""
        name = printable(self.path)
        notes = []
        if self._broken:
            first = ", ".join(map(str, self._broken[:5])) + (", …" if len(self._broken) > 5 else "")
            notes.append(f"{name}: lines skipped for other fields than columns: {len(self._broken)} (lines {first})")
        if self._without_gold:
            notes.append(f"{name}: pairs skipped for the gold label {_NO_GOLD_LABEL!r}: {self._without_gold}")
        return notes

    def read(self, *, labelled: bool) -> tuple[TextExample, ...]:
        """Return the file's examples.

        Raises:
            InputError: another task's file, a line with other fields, an unknown label, no example.
        """
        lines = read_tsv(self.path)
        first = next(lines, None)
        if first is None:
            raise InputError(
                f"{printable(self.path)}: got an empty file; allowed: {self._task.official_name}'s", hint=_COPY
            )
        columns, rows = self._columns(first, lines, labelled)
        examples = tuple(self._examples(columns, rows, labelled))
        # Some of QQP's questions hold line breaks and tabs; GLUE's own baseline passes over these lines as well.
        if self._first_broken and self._task.name != "qqp" and len(self._broken) > _MAX_BROKEN_SHARE * len(examples):
            raise self._first_broken
        if not examples:
            left_out = "".join(f" ({note})" for note in self.notes())
            raise InputError(f"{printable(self.path)}: got no example{left_out}; allowed: at least one", hint=_COPY)
        return examples

    def _columns(self, first: Fields, lines: Iterator[Fields], labelled: bool) -> tuple[list[str], Iterator[Fields]]:
        """Return the columns' names, and the rows."""
        _, names = first
        if self._task.name == "cola" and (labelled or _is_cola(names)):
            if not _is_cola(names):
                raise self._wrong_first_line(names, "four fields without names: source, 0 or 1, mark, sentence")
            return _COLA_COLUMNS, _chain(first, lines)
        needed = self._layout.labelled if labelled else self._layout.texts
        if _missing(needed, names):
            raise self._wrong_first_line(names, f"columns named {listed(list(needed))}")
        return [name.strip().lower() for name in names], lines

    def _wrong_first_line(self, names: list[str], allowed: str) -> InputError:
        other = _recognize(names)
        return InputError(
            f"{at(self.path, 1)}: got the fields {listed(names)}{_looks_like(other)}; allowed for "
            f"{self._task.official_name}: {allowed}",
            hint="name the folder of this task's files, or the task of these" if other else _COPY,
        )

    def _examples(self, columns: list[str], rows: Iterator[Fields], labelled: bool) -> Iterator[TextExample]:
        layout = self._layout
        texts = [columns.index(name.lower()) for name in layout.texts]
        label_at = columns.index(layout.label.lower()) if labelled else None
        id_at = columns.index(layout.id) if layout.id in columns else None
        ids_at = [columns.index(name) for name in ("#1 id", "#2 id") if name in columns]
        for number, (line, fields) in enumerate(rows):
            if len(fields) != len(columns):
                self._count_broken(line, fields, len(columns))
                continue
            label = None
            if label_at is not None:
                if fields[label_at].strip() == _NO_GOLD_LABEL and self._task.name == "mnli":
                    self._without_gold += 1
                    continue
                label = self._label(line, fields[label_at].strip())
            for place in texts:
                require_short(fields[place], self.path, str(line))
            if ids_at:
                self.mrpc_ids.append(tuple(fields[place].strip() for place in ids_at))
            name = str(number) if id_at is None else fields[id_at].strip()
            yield TextExample(name, fields[texts[0]], fields[texts[1]] if layout.second else None, label)

    def _count_broken(self, line: int, fields: list[str], num_columns: int) -> None:
        if fields == [""] and self._task.name != "qqp":
            return  # at the end of a file
        self._broken.append(line)
        self._first_broken = self._first_broken or InputError(
            f"{at(self.path, line)}: got {len(fields)} fields between tabs; allowed: {num_columns}, one for each "
            f"column of {self._task.official_name}",
            hint=_COPY,
        )

    def _label(self, line: int, text: str) -> int | float:
        labels = self._task.labels
        if labels:
            if text in labels:
                return labels.index(text)
            others = [
                TASKS[name].official_name
                for name, layout in _LAYOUTS.items()
                if layout.labelled == self._layout.labelled and text in TASKS[name].labels
            ]
            raise InputError(
                f"{at(self.path, line)}: got the label {excerpt(text)}{_looks_like(others[:1])}; allowed for "
                f"{self._task.official_name}: {listed(list(labels))}",
                hint="name the folder of this task's files, or the task of these" if others else _COPY,
            )
        rating = parse_rating(text, self.path, line)
        if not 0 <= rating <= _BEST_RATING:
            raise InputError(
                f"{at(self.path, line)}: got {excerpt(text)} to predict; allowed for {self._task.official_name}: 0 to "
                f"{_BEST_RATING}",
                hint=_COPY,
            )
        return rating


_BEST_RATING = 5
"""Of STS-B, for two sentences that mean the same."""
_COPY = "copy the official file again, or name the task `classification` or `regression` for files of your own"


def _chain(first: Fields, rest: Iterator[Fields]) -> Iterator[Fields]:
    yield first
    yield from rest


def _is_cola(fields: list[str]) -> bool:
    return len(fields) == len(_COLA_COLUMNS) and fields[1] in ("0", "1")


def _missing(needed: tuple[str, ...], names: list[str]) -> set[str]:
    return {name.lower() for name in needed} - {name.strip().lower() for name in names}


def _recognize(names: list[str]) -> list[str]:
    """Return the official names of the tasks whose labelled files begin so."""
    if _is_cola(names):
        return [TASKS["cola"].official_name]
    return [
        TASKS[task].official_name
        for task, layout in _LAYOUTS.items()
        if task != "cola" and not _missing(layout.labelled, names)
    ]


def _looks_like(tasks: list[str]) -> str:
    return f", which looks like {' or '.join(tasks)}'s" if tasks else ""
