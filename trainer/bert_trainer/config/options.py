"""Options of a command that set the fields of a section: made from its fields, so that no list of them is kept.

A field has one option, with its docstring as help, and its type, choices and default; so have the fields of sections
below it. What an option is called is the field's own name, unless the command says another one.
"""

from __future__ import annotations

import argparse
import re
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from pydantic.alias_generators import to_snake

from bert_job.foreign_text import printable
from bert_job.problems import ABSENT, Problem
from bert_job.section import Section, sections_in

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

_SHOWN_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class _Option:
    flag: str
    field: FieldInfo
    is_named: bool
    """By the command, not after its field."""


class Options:
    """Options for the fields of one section, and of those below it."""

    def __init__(
        self,
        section: type[Section],
        *,
        title: str,
        names: Mapping[str, str] | None = None,
        only: Collection[str] | None = None,
        without: Collection[str] = (),
    ) -> None:
        """Find the fields.

        Args:
            section: Whose fields are set.
            title: Of the group in which the help shows those of the section itself.
            names: Options (without dashes) by paths of fields, ``warmup.steps``, that are called otherwise; of
                a switch that is on by default, what turns it off.
            only: Fields of the section itself that have options. None: all.
            without: Paths of fields without an option.
        """
        self._section, self._title = section, title
        found, named = _fields(section, ""), names or {}
        self._options = {
            path: _Option("--" + named.get(path, path.rpartition(".")[2]).replace("_", "-"), field, path in named)
            for path, field in found
            if path not in without and (only is None or path.partition(".")[0] in only)
        }

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the options, those of each section below in a group of their own. None has a default: see ``given``."""
        groups: dict[str, Any] = {}
        for path, option in self._options.items():
            group = path.rpartition(".")[0]
            if group not in groups:
                groups[group] = parser.add_argument_group(group.replace(".", ", ").replace("_", " ") or self._title)
            said = self._spoken(" ".join((option.field.description or "").replace("`", "").replace("%", "%%").split()))
            said = f"Turns this off: {said}" if option.field.default is True else said
            groups[group].add_argument(
                *_flags(option), dest=self._place(path), default=argparse.SUPPRESS, help=said + _default(option.field),
                **_kind(option.field, is_required="." not in path and option.field.is_required()),
            )  # fmt: skip

    def add_switch(self, parser: argparse.ArgumentParser, flag: str, path: str, *, to: bool) -> None:
        """Add one more option that sets a field to a value."""
        told = f"{self.of(path)}: {'yes' if to else 'no'}"
        parser.add_argument(
            flag, dest=self._place(path), action="store_const", const=to, default=argparse.SUPPRESS, help=told
        )

    def given(self, arguments: argparse.Namespace) -> dict[str, Any]:
        """Return the fields that were given, as the section's document; what was not is left to the section."""
        document: dict[str, Any] = {}
        for path in self._options:
            if hasattr(arguments, self._place(path)):
                *sections, name = path.split(".")
                inner = document
                for part in sections:
                    inner = inner.setdefault(part, {})
                value = getattr(arguments, self._place(path))
                inner[name] = tuple(value) if isinstance(value, list) else value
        return document

    def explain(self, error: ErrorDetails) -> str:
        """Return what is wrong with one value, by its option."""
        path = ".".join(str(part) for part in error["loc"] if isinstance(part, str))
        if error["type"] == "missing":
            return f"{self.of(path)} is required"
        got = printable(f"{error['input']!r}")
        got = got if len(got) <= _SHOWN_CHARACTERS else f"{got[:_SHOWN_CHARACTERS]}..."
        return f"{self.of(path)}: got {got}; {printable(error['msg'])}"

    def explain_rule(self, problem: Problem, path: str) -> str:
        """Return what breaks a rule, by its option. path: that of the problem, below the section, as in a job."""
        # What a job would have to say next is no option.
        found = " is required" if problem.got == ABSENT else f": got {problem.got}; allowed"
        return f"{self.of('.'.join(map(to_snake, path.split('.'))))}{found}: {self._spoken(problem.allowed)}"

    def of(self, path: str) -> str:
        """Return the option of a field; of a section, its first one; of what has none, its path."""
        path = re.sub(r"\[\d+\]", "", path)
        below = (option.flag for at, option in self._options.items() if at == path or at.startswith(f"{path}."))
        return next(below, path)

    def _spoken(self, text: str) -> str:
        """Return words about fields of a job as words about options: what a field is called there is none here."""

        def flag(match: re.Match[str]) -> str:
            word = to_snake(match[1])
            for path, option in self._options.items():
                if word in (path, path.rpartition(".")[2]):
                    return _flags(option)[0]
            return match[0]

        # With the value of a switch, which its flag says.
        return re.sub(r"\b([a-z]+[A-Z]\w*)\b(?:: (?:true|false))?", flag, text).replace("Empty:", "Left out:")

    def _place(self, path: str) -> str:
        return f"{self._section.__name__}.{path}"


def _fields(section: type[Section], path: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        inner = sections_in(field.annotation)
        if not inner:
            yield path + name, field
        # A list of sections is no option; a command that takes one has its own form for it.
        elif not any(get_origin(part) is tuple for part in _parts(field.annotation)):
            for kind in inner:
                yield from _fields(kind, f"{path}{name}.")


def _parts(annotation: Any) -> tuple[Any, ...]:
    """Return the types that a value may have, None and limits left out."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(part for each in get_args(annotation) for part in _parts(each))
    if hasattr(annotation, "__metadata__"):
        return _parts(get_args(annotation)[0])
    return () if annotation is type(None) else (annotation,)


def _flags(option: _Option) -> tuple[str, ...]:
    """Return what the option is called: of a switch that is on, by what turns it off."""
    return ("--no-" + option.flag[2:],) if option.field.default is True and not option.is_named else (option.flag,)


def _kind(field: FieldInfo, *, is_required: bool) -> dict[str, Any]:
    """Return how argparse reads a field's value."""
    parts = _parts(field.annotation)
    first = parts[0]
    if first is bool:
        if field.default is None:
            return {"action": argparse.BooleanOptionalAction}
        return {"action": "store_false" if field.default else "store_true"}
    if get_origin(first) is Literal:
        choices = get_args(first)
        # The names of GLUE's folders are taken as tasks.
        kind = str.lower if all(choice.islower() for choice in choices) else str
        metavar = {"metavar": "NAME"} if len(choices) > 8 else {}
        return {"choices": choices, "type": kind, "required": is_required, **metavar}
    many = get_origin(first) is tuple
    of = _parts(get_args(first)[0])[0] if many else first
    word = "TEXT" if of is str else "N"
    read = {"type": _number_or_word if len(parts) > 1 else of, "metavar": word, "required": is_required}
    return {**read, "nargs": "+"} if many else read


def _number_or_word(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdecimal() else text


def _default(field: FieldInfo) -> str:
    default = field.default
    told = "Default" in (field.description or "") or "Empty" in (field.description or "")
    if told or field.is_required() or default is None or isinstance(default, bool):
        return ""
    return f" Default: {default:g}." if isinstance(default, float) else f" Default: {default}."
