"""A build's progress as a bar on a terminal, for people who start it by hand."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn


class ProgressBar:
    """Takes the records that a job's child would print. A context manager; silent without a terminal."""

    def __init__(self, text_bytes: int = 0) -> None:
        """text_bytes: of the text that is worked on, for the rate; 0: not known."""
        console = Console(stderr=True)
        columns = [*Progress.get_default_columns(), TextColumn("{task.fields[rate]}")]
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._text_bytes = text_bytes
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        """Show the bar."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self._progress.stop()

    def report(self, event: str, **fields: str | int | float | None) -> None:
        """Take one record, as in ``progress``; events other than progress change nothing."""
        if event == "stage_started":
            self._task = self._progress.add_task(str(fields["stage"]), rate="")
        elif event == "progress" and self._task is not None:
            done, total = float(fields["step"] or 0), float(fields["steps"] or 1)
            rate = self._rate(done, total, float(fields["elapsed_s"] or 0))
            self._progress.update(self._task, completed=done, total=total, rate=rate)

    def _rate(self, done: float, total: float, elapsed_s: float) -> str:
        if not elapsed_s:
            return ""
        if not self._text_bytes:
            return f"{done / elapsed_s:,.1f}/s"
        return f"{done / total * self._text_bytes / elapsed_s / 1e6:.1f} MB/s of text"
