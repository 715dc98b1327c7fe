"""Problems: single mistakes in what people wrote, collected and reported together."""

from __future__ import annotations

import json
from dataclasses import dataclass

from bert_job.foreign_text import printable

PathPart = str | int
Path = tuple[PathPart, ...]
ABSENT = "nothing"
"""``got`` of a problem with a missing field, which is reported as required."""
# Compared, not only shown: in a cluster such a field has another next step (cluster.settings_rules).
UNKNOWN_FIELD = "a field that does not exist here"
"""``got`` of a problem with an unknown field."""
_MAX_VALUE = 60
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake in a job: ``path`` in kubectl's notation, and what was found, is allowed and to do, as text."""

    path: str
    got: str
    allowed: str
    next_step: str

    def __str__(self) -> str:
        """Render on one line."""
        found = "required" if self.got == ABSENT else f"got {self.got}; allowed"
        return f"{self.path}: {found}: {self.allowed}; next: {self.next_step}"


def render_path(path: Path) -> str:
    """Render keys and list positions as ``spec.stages[1].pretrain``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            shown = printable(part)
            text += f".{shown}" if text else shown
    return text or "(the document)"


def render_value(value: object) -> str:
    """Render a value as it stands in YAML's flow style, shortened where it is long."""
    # default=str: messages quote whatever was found, also what JSON has no form for.
    text = printable(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 3]}..."
