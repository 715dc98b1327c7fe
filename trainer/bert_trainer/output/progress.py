"""Prints the progress records of one attempt, as ``bert_job.progress`` has them, on standard output."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TextIO

from bert_job.progress import Value, format_line


@dataclass(frozen=True, slots=True)
class Reporter:
    """Prints the records of one attempt, on rank 0 alone."""

    job_uid: str
    attempt: int
    stream: TextIO | None = None
    """None: standard output, whatever it is at the time."""
    attempt_run: int = 1
    """Which run of the attempt; the first one, which most attempts end with, is not on the line."""

    def report(self, event: str, **fields: Value) -> None:
        """Print one record and flush it, so that a reader sees it at once."""
        run = self.attempt_run if self.attempt_run > 1 else None
        own: dict[str, Value] = {"job": self.job_uid, "attempt": self.attempt, "attempt_run": run}
        line = format_line({"event": event, **fields, **own})
        print(line, file=self.stream or sys.stdout, flush=True)  # noqa: T201 - this is the one place that prints
