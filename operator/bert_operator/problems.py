"""One mistake in a job, told to the person who can correct it: where, what, what is allowed, what next.

Not an exception: problems are collected, so that all of them are corrected in one go.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

PathPart = str | int
Path = tuple[PathPart, ...]

ABSENT = "nothing"
"""What a problem says it got where a field is missing."""

UNKNOWN_FIELD = "a field that does not exist here"

_LONGEST_VALUE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A mistake. All four parts are text for people; ``path`` is written as kubectl writes it."""

    path: str
    got: str
    allowed: str
    next_step: str

    def __str__(self) -> str:
        """Render on one line."""
        return f"{self.path}: got {self.got}; allowed: {self.allowed}; next: {self.next_step}"


def render_path(path: Path) -> str:
    """Render keys and list positions as ``spec.stages[1].pretrain``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text or "(the document)"


def render_value(value: object) -> str:
    """Render a value as it stands in YAML's flow style, shortened where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
