"""Changes to the spec of a job's document, to be given to ``sample_document``; each acts in place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from sample_job import PHASE1

JOBS = Path(__file__).parents[1] / "fixtures/jobs"

Spec = dict[str, Any]
Change = Callable[[Spec], object]


LARGE_ENV = [{"name": f"N{number}", "value": "é" * 2048} for number in range(99)]
"""More than a whole job may be, with every value within its own bound."""


def put(*path: str | int, value: object) -> Change:
    """Set what lies at a path; sections on the way are made."""

    def change(spec: Spec) -> None:
        section: Any = spec
        for part in path[:-1]:
            section = section.setdefault(part, {}) if isinstance(section, dict) else section[part]
        # A copy: later changes must not reach into the table that this one stands in.
        section[path[-1]] = copy.deepcopy(value)

    return change


def drop(*path: str | int) -> Change:
    """Remove what lies at a path."""

    def change(spec: Spec) -> None:
        section: Any = spec
        for part in path[:-1]:
            section = section[part]
        del section[path[-1]]

    return change


def pretrain(**fields: object) -> Change:
    """Set fields of the sample's pretrain stage."""
    return lambda spec: spec["stages"][PHASE1]["pretrain"].update(copy.deepcopy(fields))


def both(*changes: Change) -> Change:
    """Make several changes, one after the other."""

    def change(spec: Spec) -> None:
        for each in changes:
            each(spec)

    return change


def only(*stages: int) -> Change:
    """Keep these of the stages."""

    def change(spec: Spec) -> None:
        spec["stages"] = [spec["stages"][stage] for stage in stages]

    return change


def patched(patch: Mapping[str, Any]) -> Change:
    """Merge a patch into the spec, as RFC 7386 says: null removes.

    A key may be a path, unless it has a slash, as labels have. An entry of a list is called by its number, and
    ``stages.3+`` comes in before stage 3.
    """
    return lambda spec: _merge(spec, patch)


def _merge(section: Spec, patch: Mapping[str, Any]) -> None:
    for path, value in patch.items():
        *way, last = [path] if "/" in path else path.split(".")
        holder: Any = section
        for part in way:
            holder = holder[int(part)] if isinstance(holder, list) else holder.setdefault(part, {})
        if last.endswith("+"):
            holder.insert(int(last[:-1]), copy.deepcopy(value))
            continue
        key: Any = int(last) if isinstance(holder, list) else last
        if value is None:
            del holder[key]
        elif isinstance(value, dict):
            if isinstance(holder, dict) and not isinstance(holder.get(key), dict):
                holder[key] = {}
            _merge(holder[key], value)
        else:
            # A copy: later changes must not reach into the table that this one stands in.
            holder[key] = copy.deepcopy(value)


def load_entries(file: Path) -> dict[str, Any]:
    """Return the entries of a YAML file by name, without what it only refers to, whose names begin with a dot."""
    return {name: entry for name, entry in _load(file).items() if not name.startswith(".")}


def load_anchors(file: Path) -> dict[str, Any]:
    """Return what the entries of a YAML file refer to, by name."""
    return {name[1:]: entry for name, entry in _load(file).items() if name.startswith(".")}


@cache
def _load(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(file.read_text())
    return loaded
