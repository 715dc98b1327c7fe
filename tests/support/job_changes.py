"""Changes to the spec of a job's document, to be given to ``sample_document``; each acts in place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from sample_job import PHASE1

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
