"""SQuAD 1.1 (Rajpurkar et al. 2016), from its official files: articles, paragraphs, questions, answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bert_job.foreign_text import printable
from bert_trainer.dataset.corpus.formats.streams import decode, read_head
from bert_trainer.errors import InputError
from bert_trainer.tasks.answers import AnswerCheck
from bert_trainer.tasks.catalog import Task
from bert_trainer.tasks.delimited import excerpt, require_file, require_short, whole_characters
from bert_trainer.tasks.examples import SpanExample, Split, TaskExamples
from bert_trainer.tasks.folders import find_folder

_TRAIN, _DEV = "train-v1.1.json", "dev-v1.1.json"
_MAX_BYTES = 64 << 20
"""Of a file; the training file has 30 MB. As objects of Python a hostile document takes up to thirty times as many."""
_OFFICIAL = "take the official file, or name the task `spans` for tables of your own"

Value = TypeVar("Value")


def read_squad(task: Task, folder: Path) -> TaskExamples:
    """Read the two files from their folder, or from the folder that holds it.

    Raises:
        InputError: a file is missing, of version 2.0 or not of this form, or answers are not in their contexts.
    """
    found = find_folder(folder, task.official_name, [[_TRAIN, _DEV]])
    notes: list[str] = []
    train, dev = (_read_file(found / name, notes) for name in (_TRAIN, _DEV))
    return TaskExamples(task, Split("train", train), (Split("validation", dev),), (), tuple(notes))


def _read_file(path: Path, notes: list[str]) -> tuple[SpanExample, ...]:
    document = _Node(_read_document(path), path, "")
    version = document.value.get("version") if isinstance(document.value, dict) else None
    if isinstance(version, str) and version.lower().lstrip("v").startswith("2"):
        raise _version_2(path, f"version {excerpt(version)}")
    check = AnswerCheck(path)
    examples: list[SpanExample] = []
    names: dict[str, str] = {}
    for article in document.items("data"):
        for paragraph in article.items("paragraphs"):
            context = paragraph.text("context")
            for question in paragraph.items("qas"):
                example = _example(question, context, check)
                if example.id in names:
                    raise InputError(
                        f"{printable(path)}: {question.place} has the id {excerpt(example.id)}, which "
                        f"{names[example.id]} has; allowed: an id of its own for every question",
                        hint=_OFFICIAL,
                    )
                names[example.id] = question.place
                examples.append(example)
    if not examples:
        raise InputError(f"{printable(path)}: got no question; allowed: at least one", hint=_OFFICIAL)
    notes += check.notes()
    return tuple(examples)


def _example(question: _Node, context: str, check: AnswerCheck) -> SpanExample:
    name = question.text("id")
    if question.value.get("is_impossible") is True:
        raise _version_2(question.path, f"is_impossible in the question {excerpt(name)}")
    answers = []
    for answer in question.items("answers"):
        text, start = answer.text("text"), answer.get("answer_start", int)
        place = check.locate(excerpt(name), context, text, start)
        if place is not None:
            answers.append(place)
    if not question.value["answers"]:
        raise InputError(
            f"{printable(question.path)}: {question.place} ({excerpt(name)}) has no answer; allowed: at least one",
            hint=_OFFICIAL,
        )
    return SpanExample(name, question.text("question"), context, tuple(answers))


def _version_2(path: Path, what: str) -> InputError:
    return InputError(
        f"{printable(path)}: is a file of SQuAD 2.0 ({what}), whose questions may have no answer; allowed: SQuAD 1.1",
        hint=f"take the official {_TRAIN} and {_DEV}",
    )


def _read_document(path: Path) -> Any:
    require_file(path)
    content = read_head(path, _MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise InputError(
            f"{printable(path)}: got more than {_MAX_BYTES >> 20} MiB; allowed: files of SQuAD 1.1, the larger of "
            "30 MB",
            hint="write larger sets as JSON Lines, a question a line, and name the task `spans`",
        )
    text = decode(content, path, 0).removeprefix("\ufeff")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # the second from brackets nested deeper than Python's stack
        raise InputError(f"{printable(path)}: not a JSON document ({error})", hint=_OFFICIAL) from error


@dataclass(frozen=True, slots=True)
class _Node:
    """An object of the document, and where it stands in it, for messages."""

    value: Any
    path: Path
    place: str

    def get(self, key: str, kind: type[Value]) -> Value:
        """Return a value of the object; raises InputError if it is missing or of another kind."""
        if not isinstance(self.value, dict) or key not in self.value:
            got = (
                f"the keys {', '.join(map(excerpt, list(self.value)[:12])) or 'none'}"
                if isinstance(self.value, dict)
                else f"a {type(self.value).__name__}"
            )
            raise InputError(
                f"{printable(self.path)}: {self.place or 'the document'} has {got}; allowed: an object with {key!r}",
                hint=_OFFICIAL,
            )
        value = self.value[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(
                f"{printable(self.path)}: {self._place_of(key)} is a {type(value).__name__}; allowed: "
                f"a {kind.__name__}",
                hint=_OFFICIAL,
            )
        return value

    def text(self, key: str) -> str:
        """Return a text of the object; raises InputError as ``get``, and if it is too long."""
        text = self.get(key, str)
        require_short(text, self.path, f" {self._place_of(key)}")
        return whole_characters(text)

    def items(self, key: str) -> Iterator[_Node]:
        """Yield the objects of a list of the object."""
        for number, item in enumerate(self.get(key, list)):
            yield _Node(item, self.path, f"{self._place_of(key)}[{number}]")

    def _place_of(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key
