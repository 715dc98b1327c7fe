"""What a person sees who starts a command by hand: lines of text, and a progress bar with rate and time left."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Print a line at once, also where the stream is a pipe or a file. stream: standard output by default."""
    print(text, file=stream, flush=True)  # noqa: T201


def print_lines(lines: Iterable[str]) -> None:
    """Print each line at once on standard output."""
    for line in lines:
        print_line(line)


class ProgressBar:
    """A bar on standard error. A context manager; silent where that is no terminal.

    ``report`` takes the progress records that a job's child prints; ``begin`` and ``advance`` take amounts.
    """

    def __init__(self, text_bytes: int = 0) -> None:
        """text_bytes: size of the text, for the rate; 0: unknown."""
        console = Console(stderr=True)
        # Disabled where nobody watches: in a log every redraw would be a line. Transient: the summary is what stays.
        columns = [*Progress.get_default_columns(), TextColumn("{task.fields[rate]}")]
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._text_bytes = text_bytes
        self._unit = ""
        self._task: TaskID | None = None
        self._done = self._began_s = 0.0
        self._comparison: tuple[TaskID, float] | None = None
        """The bar of a text that is compared with its checksums, and when that began."""

    def __enter__(self) -> ProgressBar:
        """Show the bar."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self._progress.stop()

    def begin(self, name: str, total: float | None, *, unit: str) -> None:
        """Begin a new bar. total: in bytes where the unit begins with MB; None or 0: unknown."""
        self._unit, self._done, self._began_s = unit, 0.0, time.monotonic()
        self._task = self._progress.add_task(name, total=total or None, rate="")

    def advance(self, amount: float) -> None:
        """Add what was done."""
        self._done += amount
        if self._task is not None:
            rate = self._rate(self._done, time.monotonic() - self._began_s)
            self._progress.update(self._task, completed=self._done, rate=rate)

    def compared(self, done: int, total: int) -> None:
        """Show how many bytes of a text were compared with published checksums; the bar goes when all are."""
        if self._comparison is None:
            self._comparison = self._progress.add_task("checksums", total=total, rate=""), time.monotonic()
        task, began_s = self._comparison
        rate = f"{done / max(time.monotonic() - began_s, 1e-9) / 1e6:,.1f} MB/s of text"
        self._progress.update(task, completed=done, rate=rate)
        if done >= total:
            self._progress.remove_task(task)
            self._comparison = None

    def report(self, event: str, **fields: str | int | float | None) -> None:
        """Show a progress record, as in ``output.progress``; it may name the unit of its steps."""
        if event == "stage_started":
            self._task = self._progress.add_task(str(fields["stage"]), rate="")
        elif event == "progress" and self._task is not None:
            done, total = float(fields["step"] or 0), float(fields["steps"] or 1)
            self._unit = str(fields.get("unit") or self._unit)
            elapsed_s = float(fields["elapsed_s"] or 0)
            if self._text_bytes:
                self._unit = "MB of text"
                rate = self._rate(done / total * self._text_bytes, elapsed_s)
            else:
                rate = self._rate(done, elapsed_s)
            self._progress.update(self._task, completed=done, total=total, rate=rate)

    def _rate(self, done: float, elapsed_s: float) -> str:
        if elapsed_s <= 0:
            return ""
        if self._unit.startswith("MB"):
            return f"{done / elapsed_s / 1e6:,.1f} MB/s{self._unit.removeprefix('MB')}"
        return f"{done / elapsed_s:,.1f}{' ' if self._unit else ''}{self._unit}/s"
