"""Says what is wrong with a text that is not YAML: where, the line itself, the likely cause and what to write. Pure.

A parser knows what it expected, and not what was meant: of a line that is indented by one space too many it says that
``mapping values are not allowed here``. What was meant is guessed from its words and from the lines around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ruamel.yaml.error import MarkedYAMLError

from bert_job.foreign_text import printable

_MAX_LINE = 80
"""Characters of a line that are shown."""
_ENTRY = re.compile(r"\s*(- +)*")
_KEY = re.compile(r"\s*(?:- +)*[^\s#'\"{\[][^#]*?:(?: |$)")
_NO_SPACE = re.compile(r"\s*(?:- +)*[A-Za-z][A-Za-z0-9]*:[^\s/]")


@dataclass(frozen=True, slots=True)
class Mistake:
    """Where a text stops being valid YAML, with the likely cause and what to write."""

    line: int
    """From 1."""
    column: int
    """From 1."""
    cause: str
    next_step: str
    shown: str
    """The line."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The line that the parser names, and those before it."""

    lines: Sequence[str]
    number: int
    column: int

    @property
    def line(self) -> str:
        return self.lines[self.number] if self.number < len(self.lines) else ""

    @property
    def indent(self) -> int:
        return _indent(self.line)

    def before(self) -> str:
        """Return the last line before it that holds something."""
        return next((line for line in reversed(self.lines[: self.number]) if _is_content(line)), "")

    def levels(self) -> list[int]:
        """Return the indentations that a line may have here: those of the sections that are open."""
        open_levels: list[int] = []
        for line in filter(_is_content, self.lines[: self.number]):
            open_levels = [level for level in open_levels if level < _indent(line)]
            open_levels.append(_indent(line))
            # What stands behind a dash is a section of its own.
            inner = len(_ENTRY.match(line)[0])  # type: ignore[index]  # it matches anything
            if inner > _indent(line) and ":" in line:
                open_levels.append(inner)
        return open_levels


Guess = tuple[str, str]


def explain(error: MarkedYAMLError, text: str) -> Mistake:
    """Return what is wrong with a text that a parser has refused."""
    problem, context = str(error.problem or ""), str(error.context or "")
    # Of what is never closed the beginning is where to look; the parser has found the end of the file.
    is_open = error.context_mark is not None and ("end of stream" in problem or problem.startswith("expected ',' or"))
    mark = error.context_mark if is_open or error.problem_mark is None else error.problem_mark
    lines = text.splitlines()
    number, column = (mark.line, mark.column) if mark is not None else (0, 0)
    place = _Place(lines, number, column)
    cause, next_step = next(
        (found for words, guess in _GUESSES if re.search(words, f"{context} {problem}") and (found := guess(place))),
        (problem or context, "correct it; allowed: YAML, and JSON, which is YAML as well"),
    )
    shown = printable(place.line.strip())
    return Mistake(
        line=number + 1,
        column=column + 1,
        cause=cause,
        next_step=next_step,
        shown=shown if len(shown) <= _MAX_LINE else f"{shown[: _MAX_LINE - 3]}...",
    )


def _tab(place: _Place) -> Guess | None:
    if "\t" not in place.line[: len(place.line) - len(place.line.lstrip())]:
        return None
    return "the line is indented by a tab", "indent it by spaces, as many as the lines beside it"


def _missing_space(place: _Place) -> Guess | None:
    for line in (place.line, place.before()):
        if _NO_SPACE.match(line):
            name = line.strip().removeprefix("- ").partition(":")[0]
            return f"there is no space after {name}:", f"write '{name}: ' and the value behind it"
    return None


def _two_colons(place: _Place) -> Guess | None:
    head = place.line[: place.column]
    if not _KEY.match(head):
        return None
    return (
        "there are two fields in one line",
        "put the second one on a line of its own, or quote the text with the colon",
    )


def _too_deep(place: _Place) -> Guess | None:
    before = place.before()
    if not before or place.indent <= _indent(before):
        return None
    wanted = place.levels()[-1]
    return (
        f"the line is indented by {_spaces(place.indent)}, and the one before it already has its value",
        f"indent it by {_spaces(wanted)} to stand beside the line before",
    )


def _no_level(place: _Place) -> Guess | None:
    levels = place.levels()
    is_entry = place.line.lstrip().startswith("-")
    if place.indent in levels:
        if is_entry:
            return "a list entry stands where fields were before", "indent it below the field that it belongs to"
        if any(level == place.indent for level in levels) and place.before().lstrip().startswith("- "):
            return (
                "a field stands beside the entries of a list",
                "indent it to the fields of the last entry, or take it out of the list",
            )
        return None
    wanted = " or ".join(_spaces(level) for level in sorted({level for level in levels if level < max(levels) + 1}))
    what = "entry" if is_entry else "line"
    return (
        f"the {what} is indented by {_spaces(place.indent)}, and no line above it that it could stand beside is",
        f"indent it by {wanted}",
    )


def _after_quote(place: _Place) -> Guess | None:
    if not re.search(r": +['\"]", place.line):
        return None
    return (
        "text follows a closing quote",
        "double a quote that belongs to the text ('it''s'), or use the other kind of quotes",
    )


def _after_bracket(place: _Place) -> Guess | None:
    sign = place.line[place.column : place.column + 1]
    return (f"{sign} closes nothing", "take it out, or open it before") if sign and sign in "]}" else None


def _unclosed_bracket(place: _Place) -> Guess | None:
    sign = place.line[place.column : place.column + 1]
    closing = {"{": "}", "[": "]"}.get(sign)
    return (
        None
        if closing is None
        else (f"{sign} is not closed", f"add the missing {closing}, or the comma before the next")
    )


def _unclosed_quote(place: _Place) -> Guess | None:
    sign = place.line[place.column : place.column + 1]
    return (f"the quote {sign} is not closed", "close it where the text ends") if sign and sign in "'\"" else None


def _reserved_sign(place: _Place) -> Guess | None:
    sign = place.line[place.column : place.column + 1]
    return (f"no text may begin with {sign}", "quote the text") if sign and sign in "@`%" else None


def _escape(place: _Place) -> Guess | None:
    return "a backslash in double quotes begins an escape, and this one is none", "write \\\\, or single quotes"


def _no_field(place: _Place) -> Guess | None:
    return "the line is neither a field (name: value) nor a list entry (- value)", "add what is missing, or take it out"


_GUESSES: tuple[tuple[str, Callable[[_Place], Guess | None]], ...] = (
    (r"end of stream", _unclosed_quote),
    (r"expected ',' or", _unclosed_bracket),
    (r"end of stream|expected", _unclosed_bracket),
    (r"unknown escape", _escape),
    (r"", _tab),
    (r"cannot start any token", _reserved_sign),
    (r"mapping values are not allowed", _two_colons),
    (r"mapping values are not allowed|could not find expected", _missing_space),
    (r"mapping values are not allowed", _too_deep),
    (r"expected <block end>|node content|document start", _after_bracket),
    (r"expected <block end>.*scalar", _after_quote),
    (r"expected <block end>|document start", _no_level),
    (r"could not find expected ':'", _no_field),
)
"""Words of the parser, and what may be behind them; the first guess that fits is told."""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _spaces(count: int) -> str:
    return "no space" if count == 0 else f"{count} space{'s' if count > 1 else ''}"


def _is_content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")
