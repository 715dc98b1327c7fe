"""Progress lines: one logfmt record per line on standard output.

``bert-trainer/1 event=progress job=... attempt=1 stage=phase1 step=120 steps=700 loss=6.104 ...``

They have two readers: people with ``kubectl logs -f``, and the operator, which turns them into status. The prefix
carries the version of this contract; job and attempt tell a line of this attempt from one of its predecessor, and
``attempt_run`` a line of a later run of the attempt, whose pods a queue has suspended and started again. Values with
spaces, quotes or equals signs are quoted as JSON strings. A number that is not finite is left out: its absence says so.
"""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import dataclass
from typing import TextIO

PREFIX = "bert-trainer/1"

Value = str | int | float | None

_MAX_LINE = 8192  # characters
_MAX_FIELDS = 64
_FIELD = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)=("(?:[^"\\]|\\.)*"|[^\s"=]*)(?: |$)')


def format_line(fields: dict[str, Value]) -> str:
    """Render one record; keys with the value None or a non-finite number are left out."""
    words = [PREFIX]
    for key, value in fields.items():
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            continue
        words.append(f"{key}={_word(value)}")
    return " ".join(words)


def _word(value: str | int | float) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    # File names may hold bytes that are not UTF-8: Python keeps those as lone surrogates, which cannot be encoded.
    text = str(value).encode(errors="replace").decode()
    plain = text and text.isprintable() and not any(character in text for character in ' "=')
    return text if plain else json.dumps(text)


def parse_line(line: str) -> dict[str, str] | None:
    """Return the fields of a record; None for any other line, however similar, and for one that is too long.

    The same rules as the operator's parser, in time linear in the line's length: anything may print to this log.
    """
    if not line.startswith(f"{PREFIX} ") or len(line) > _MAX_LINE:
        return None
    fields: dict[str, str] = {}
    position = len(PREFIX) + 1
    while position < len(line):
        match = _FIELD.match(line, position)
        if match is None or match[1] in fields or len(fields) == _MAX_FIELDS:
            return None
        try:
            fields[match[1]] = json.loads(match[2]) if match[2].startswith('"') else match[2]
        except ValueError:
            return None
        position = match.end()
    return fields if fields.get("event") else None


@dataclass(frozen=True, slots=True)
class Reporter:
    """Prints the records of one attempt. Ranks other than 0 get ``stream=None`` and print nothing."""

    job_uid: str
    attempt: int
    stream: TextIO | None = sys.stdout
    attempt_run: int = 1
    """Which run of the attempt; the first one, which most attempts end with, is not on the line."""

    def report(self, event: str, **fields: Value) -> None:
        """Print one record and flush it, so that a reader sees it at once."""
        if self.stream is not None:
            run = self.attempt_run if self.attempt_run > 1 else None
            own: dict[str, Value] = {"job": self.job_uid, "attempt": self.attempt, "attempt_run": run}
            line = format_line({"event": event, **fields, **own})
            print(line, file=self.stream, flush=True)  # noqa: T201 - this is the one place that prints
