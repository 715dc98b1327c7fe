"""One thing that is wrong, as a value: what, why it matters, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """Jobs, or some of them, do not run."""
    WARNING = "warning"
    """Jobs run and something else will go wrong, or runs badly."""
    NOTE = "note"
    """Nothing that can be told from here; worth a look."""


@dataclass(frozen=True)
class Finding:
    """A problem found by a check."""

    level: Level
    """How bad it is."""
    problem: str
    """What is wrong, with its object: kind, namespace/name, what was found and what is allowed."""
    why: str
    """What becomes of jobs because of it."""
    remedy: str
    """A command, or what to change where; the page that explains it where one sentence is not enough."""


def error(problem: str, why: str, remedy: str) -> Finding:
    """Return a finding of level error."""
    return Finding(Level.ERROR, problem, why, remedy)


def warning(problem: str, why: str, remedy: str) -> Finding:
    """Return a finding of level warning."""
    return Finding(Level.WARNING, problem, why, remedy)


def note(problem: str, why: str, remedy: str) -> Finding:
    """Return a finding of level note."""
    return Finding(Level.NOTE, problem, why, remedy)
