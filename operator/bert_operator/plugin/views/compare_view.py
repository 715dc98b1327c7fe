"""``compare``: two jobs side by side: what was asked of them, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bert_operator.plugin.job import Job
from bert_operator.plugin.terminal import Cell, Ink, printable, table
from bert_operator.timestamps import render_duration, time_of

_SAME = "-"
_LONGEST = 48
"""Characters of a value; two that are longer than this are told apart by kubectl bert export."""


def show_comparison(first: Job, second: Job, ink: Ink, now_s: float) -> list[str]:
    """Return two tables: figures, and the fields of the spec that differ. now_s: seconds since 1970."""
    names: list[Cell] = [first.name, second.name]
    rows: list[list[Cell]] = [[label, *values] for label, *values in _figures(first, second, now_s)]
    header = ["", *(str(name) for name in names)]
    lines = table(header, rows, ink)
    differences = list(find_differences(first.spec, second.spec))
    if not differences:
        return [*lines, "", "The specs are equal."]
    shown: list[list[Cell]] = [[path, _short(left), _short(right)] for path, left, right in differences]
    return [*lines, "", *table(["SPEC", *header[1:]], shown, ink)]


def find_differences(first: Any, second: Any, path: str = "spec") -> Iterator[tuple[str, Any, Any]]:
    """Yield the path of each field that differs, with both values; None for a field that is not there.

    Entries of lists that have names are compared by name, others by position.
    """
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in [*first, *(key for key in second if key not in first)]:
            yield from find_differences(first.get(key), second.get(key), f"{path}.{key}")
    elif _is_named(first) and _is_named(second):
        left, right = ({item["name"]: item for item in items} for items in (first, second))
        for name in [*left, *(name for name in right if name not in left)]:
            yield from find_differences(left.get(name), right.get(name), f"{path}[{name}]")
    elif first != second:
        yield path, first, second


def _is_named(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(isinstance(item, Mapping) and "name" in item for item in value)
    )


def _figures(first: Job, second: Job, now_s: float) -> Iterator[tuple[str, str, str]]:
    def both(label: str, left: object, right: object) -> tuple[str, str, str]:
        return label, _short(left), _short(right)

    yield both("phase", first.phase, second.phase)
    yield both("stage", first.status.get("stage"), second.status.get("stage"))
    yield both("attempts", first.attempt, second.attempt)
    yield both("failures", len(first.failures), len(second.failures))
    yield both("time", _time(first, now_s), _time(second, now_s))
    for label, key in (("step", "step"), ("loss", "loss"), ("sequences/s", "sequencesPerSecond"), ("left", "eta")):
        yield both(label, first.progress.get(key), second.progress.get(key))
    left, right = _results(first), _results(second)
    for label in [*left, *(label for label in right if label not in left)]:
        yield both(label, left.get(label), right.get(label))


def _results(job: Job) -> dict[str, str]:
    found = {}
    for result in job.status.get("results") or ():
        for metric in list(result.get("metrics") or ())[:3]:
            found[f"{result.get('stage')} {metric.get('name')}"] = str(metric.get("value"))
    return found


def _time(job: Job, now_s: float) -> str | None:
    begun_s, ended_s = time_of(job.status.get("startTime")), time_of(job.status.get("completionTime"))
    return None if begun_s is None else render_duration((now_s if ended_s is None else ended_s) - begun_s)


def _short(value: object) -> str:
    text = _SAME if value is None else printable(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
