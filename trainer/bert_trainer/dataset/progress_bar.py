"""A build's progress as a bar on a terminal, for people who start it by hand."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import Progress, TaskID


class ProgressBar:
    """Takes the records that a job's child would print. A context manager; silent without a terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(console=console, disable=not console.is_terminal, transient=True)
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
            self._task = self._progress.add_task(str(fields["stage"]))
        elif event == "progress" and self._task is not None:
            self._progress.update(self._task, completed=float(fields["step"] or 0), total=float(fields["steps"] or 1))
