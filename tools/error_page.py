"""docs/reference/errors.md from the messages that ``error_messages`` finds in the source."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from error_messages import DOCTOR, ErrorClass, Message, collect
from markdown_table import render_rows
from model_page import MARK, clean

ROOT = Path(__file__).resolve().parents[1]

INTRODUCTION = """
Every text with which the operator, `kubectl bert`, the trainer or a tool of this repository refuses something or
gives up, to be searched for a part of what you saw. What stands in braces is filled in; a slash between two texts means
one of them, and what stands in brackets may be missing. A next step follows a message on a line of its own, after
`hint:`, or after `next:` where a job's field is wrong; a dash says that there is none, or that it depends.

The kind of a message is the class of its error; `field` are mistakes in a job, all of which are told at once,
`finding` what the doctor or a condition of a job says, `Blocked` what keeps a job's pods from running, `command line`
what is said together with the usage.

Messages of kubectl, Kubernetes, MPI and PyTorch are theirs; the [conditions and reasons](conditions.md) say what the
operator makes of them. Words of a job's fields: [job](job.md).
""".strip()

CLASSES = """
A class without an exit code of its own has that of the one it is a kind of. The trainer's class is the `reason` of an
attempt that failed with it; what ends with 2, bad input, is never retried unchanged.
""".strip()

_PROGRAMS: tuple[tuple[str, str], ...] = (
    ("kubectl bert doctor", DOCTOR),
    ("kubectl bert", "operator/bert_operator/plugin"),
    ("Operator, bert-operator", "operator/bert_operator"),
    ("Data, bert-data", "trainer/bert_trainer/dataset"),
    ("Launchers and workers, bert-pod", "trainer/bert_trainer/pod"),
    ("Trainer, bert-train", "trainer/bert_trainer"),
    ("Tools of the repository", "tools"),
)
"""Headings, and the folder that stands for each: the first one that holds a module is its program."""
_KINDS = {"argument": "command line", "exit": "-", "rule": "field", "finding": "finding", "blocked": "Blocked"}


def render_error_page() -> str:
    """Every message, by program and part, and every class of errors."""
    messages, classes = collect(ROOT)
    parts = ["# Error messages", MARK, INTRODUCTION]
    for program, folder in _PROGRAMS:
        own = [message for message in messages if _program_of(message.folder) == folder]
        parts.append(f"## {program}")
        for place, group in itertools.groupby(own, lambda message: message.folder):
            parts += [f"### {place}", *_about(place), _table(group)]
    parts += ["## Classes", CLASSES]
    for folder, found in classes.items():
        kinds = {it.kind for it in messages if it.folder.startswith(folder)}
        # Those that are said, and what they are kinds of; others never leave their program.
        bases = {base for kind in kinds for base in _bases(kind, found)}
        shown = {name: it for name, it in found.items() if name in kinds | bases}
        parts += [f"### Classes of {folder}", _class_table(shown)]
    return "\n\n".join(parts) + "\n"


def _program_of(folder: str) -> str:
    return next(found for _, found in _PROGRAMS if f"{folder}/".startswith(f"{found}/"))


def _about(folder: str) -> Iterator[str]:
    file = ROOT / folder / "__init__.py"
    text = ast.get_docstring(ast.parse(file.read_text())) if file.exists() else None
    if text:
        yield text.partition("\n\n")[0].replace("\n", " ")


def _table(messages: Iterable[Message]) -> str:
    rows = (
        (_code(it.text), _code(it.next_step) if it.next_step else "-", _KINDS.get(it.kind, f"`{it.kind}`"))
        for it in messages
    )
    return render_rows(("Message", "Next step", "Kind"), rows)


def _bases(name: str, classes: dict[str, ErrorClass]) -> Iterator[str]:
    while name in classes:
        name = classes[name].base
        yield name


def _class_table(classes: dict[str, ErrorClass]) -> str:
    rows = (
        (f"`{name}`", f"`{found.base}`", "-" if found.exit_code is None else str(found.exit_code), clean(found.meaning))
        for name, found in sorted(classes.items())
    )
    return render_rows(("Class", "A kind of", "Exit code", "Meaning"), rows)


def _code(text: str) -> str:
    # A backtick ends the code.
    return f"`` {text} ``" if "`" in text else f"`{text}`"
