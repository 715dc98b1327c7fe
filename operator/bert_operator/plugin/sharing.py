"""What of an object may be handed to others: numbers, times and words of closed lists, at paths that are listed. Pure.

Everything else is a text that somebody chose, and no program can tell a secret from another word: of it, type and
length remain. Not even keys pass that are not listed, nor names: those are numbered. So no text of a cluster is ever
copied; times and numbers are read and written anew.

A shape says what may stand at a path. It is a word of ``Leaf``, ``Words``, a ``Numbered``, a mapping of the keys that
are allowed, or a list of one shape, that of every entry.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from bert_operator.doctor.objects import amount
from bert_operator.timestamps import render_time, time_of

Leaf = Literal["number", "figure", "amount", "boolean", "time", "text"]
Shape = Any

_FILE = "shareable.json"
_MAX_AMOUNT = 20
"""Characters of a quantity, as in the job's definition."""
_LARGEST = 10**18
_DIGITS = 4
"""Of a number that comes as text: enough to help, and too few for one that is a secret."""


@dataclass(frozen=True, slots=True)
class Words:
    """A closed list of words."""

    words: frozenset[str]

    @classmethod
    def of(cls, text: str) -> Words:
        """Return the words of a text."""
        return cls(frozenset(text.split()))


@dataclass(frozen=True, slots=True)
class Numbered:
    """A name, in place of which its number is written: the same name has the same one."""

    kind: str
    """What is counted: ``pod``, ``node``, ``stage``."""


@dataclass(slots=True)
class Numbers:
    """Numbers of names, in the order in which they were met."""

    _known: dict[tuple[str, str], str] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def of(self, kind: str, name: object) -> str:
        """Return what stands for a name, such as ``pod-2``."""
        if (kind, str(name)) not in self._known:
            self._counts[kind] += 1
            self._known[kind, str(name)] = f"{kind}-{self._counts[kind]}"
        return self._known[kind, str(name)]

    def has(self, kind: str, name: object) -> bool:
        """Tell whether a name has a number already."""
        return (kind, str(name)) in self._known

    def listed(self) -> list[tuple[str, str]]:
        """Return every number with its name, for the eyes of whoever has made the bundle."""
        return [(number, name) for (_, name), number in self._known.items()]


@dataclass(frozen=True, slots=True)
class Shareable:
    """What tools/generate.py has found in the definition of the job and in the trainer's records."""

    spec: Shape
    status: Shape
    figures: frozenset[str]
    """Names of figures in records, statuses and logs."""
    events: frozenset[str]
    """Names of the trainer's records."""
    reasons: frozenset[str]
    """Why something is as it is, of the operator."""


def load_shareable() -> Shareable:
    """Return what this release knows."""
    read = json.loads(resources.files("bert_operator.plugin").joinpath(_FILE).read_text())
    lists = {name: frozenset(read[name]) for name in ("figures", "events", "reasons")}
    return Shareable(_shape(read["spec"], lists), _shape(read["status"], lists), **lists)


def _shape(written: Any, lists: Mapping[str, frozenset[str]]) -> Shape:
    """Return a shape as it stands in the file: ``{"one of": [...]}``, and names of lists."""
    if isinstance(written, list):
        return [_shape(item, lists) for item in written]
    if isinstance(written, dict):
        if written.keys() == {"one of"}:
            return Words(frozenset(written["one of"]))
        return {key: _shape(item, lists) for key, item in written.items()}
    if written in lists:
        return Words(lists[written])
    return Numbered(written.removeprefix("name of a ")) if written.startswith("name of a ") else written


def pick(value: Any, shape: Shape, numbers: Numbers) -> Any:
    """Return what may be handed on of a value, in its form.

    Args:
        value: Of a JSON document.
        shape: What may stand there.
        numbers: Of the names in the bundle.
    """
    if value is None:
        return None
    if isinstance(shape, Mapping) and isinstance(value, Mapping):
        return _pick_keys(value, shape, numbers)
    if isinstance(shape, list):
        return [pick(item, shape[0], numbers) for item in value] if isinstance(value, list) else describe(value)
    if isinstance(shape, Numbered):
        return numbers.of(shape.kind, value) if isinstance(value, str) else describe(value)
    picked = _pick_leaf(value, shape)
    return describe(value) if picked is None else picked


def _pick_keys(value: Mapping[str, Any], shape: Mapping[str, Shape], numbers: Numbers) -> dict[str, Any]:
    found = {key: pick(value[key], shape[key], numbers) for key in shape if key in value}
    others = [describe(item) for key, item in value.items() if key not in shape]
    return found | ({"(not listed)": others} if others else {})


def _pick_leaf(value: Any, shape: Shape) -> Any:
    """Return a value if it is what its shape says, written anew; None otherwise."""
    if isinstance(shape, Words):
        return value if isinstance(value, str) and value in shape.words else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST
    match shape:
        case "boolean":
            return value if isinstance(value, bool) else None
        case "number":
            return value if is_number else None
        case "figure":
            return round_figure(value) if is_number or isinstance(value, str) else None
        case "amount":
            return _amount(value) if is_number or isinstance(value, str) else None
        case "time":
            return _time(value)
    return None


def _amount(value: object) -> float | None:
    # No exponents, which may ask for numbers of any length.
    if len(str(value)) > _MAX_AMOUNT or "e" in str(value):
        return None
    return _rounded(float(amount(value))) or None


def _time(value: object) -> str | None:
    try:
        time_s = time_of(value) if isinstance(value, str) else None
        return None if time_s is None else render_time(time_s)
    except (OverflowError, ValueError):
        return None  # before the year 1, or after 9999


def round_figure(value: object) -> float | None:
    """Return a number that comes as text, rounded; None if it is none."""
    try:
        found = float(str(value))
    except ValueError:
        return None
    return _rounded(found) if math.isfinite(found) else None


def _rounded(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def describe(value: Any) -> str:
    """Return type and length of what is not handed on."""
    match value:
        case str():
            return f"(text of {len(value)})"
        case bool():
            return "(boolean)"
        case int() | float():
            return "(number)"
        case list():
            return f"(list of {len(value)})"
        case dict():
            return f"(object of {len(value)})"
    return "(nothing)"
