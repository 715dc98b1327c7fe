"""What a person sees while a job runs here: a progress bar in a terminal, plain lines anywhere else.

Lines of children and results go to standard output, the operator's own remarks to standard error.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from bert_operator.state.progress import ProgressRecord
from bert_operator.timestamps import render_duration

# (key of the record, label, format), in the order in which they are shown.
_FIGURES = (
    ("loss", "loss", "{:.3f}"),
    ("mlm_accuracy", "masked-LM", "{:.1%}"),
    ("sequences_per_s", "", "{:.0f} seq/s"),
    ("real_tokens_per_s", "", "{:,.0f} tok/s"),
)
_EVALUATION_FIGURES = (
    ("mlm_accuracy", "masked-LM accuracy"),
    ("unigram_baseline", "most frequent token alone"),
    ("nsp_accuracy", "next-sentence accuracy"),
)


class Display(Protocol):
    """Where output goes."""

    def show(self, line: str, record: ProgressRecord | None) -> None:
        """Show a line of a child, and the record that it holds, if it does."""

    def note(self, text: str) -> None:
        """Show a remark of the operator."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class PlainDisplay:
    """Passes lines through as they are. A reader that has gone away does not end the job."""

    def __init__(self, output: TextIO | None = None, remarks: TextIO | None = None) -> None:
        """Empty: standard output and standard error."""
        self._output: TextIO | None = output or sys.stdout
        self._remarks: TextIO | None = remarks or sys.stderr

    def show(self, line: str, record: ProgressRecord | None) -> None:
        """Write the line."""
        del record
        self._output = _write(self._output, line)

    def note(self, text: str) -> None:
        """Write the remark."""
        self._remarks = _write(self._remarks, text)

    def close(self) -> None:
        """Nothing to restore."""


class BarDisplay:
    """One bar per stage, and a line for everything that stays true."""

    def __init__(self, console: Console) -> None:
        """Console: a terminal."""
        self._progress = Progress(
            # Names of stages and figures come from the child: no markup.
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=10, max_width=40)),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[figures]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            _TimeLeftColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def show(self, line: str, record: ProgressRecord | None) -> None:
        """Move the bar, or print the line above it."""
        if record is None:
            self._print(line)
        elif record.event in ("progress", "stage_started"):
            self._move(record)
        elif (sentence := describe_record(record)) is not None:
            self._print(sentence)

    def note(self, text: str) -> None:
        """Print the remark above the bar."""
        self._print(text)

    def close(self) -> None:
        """Stop drawing and leave the last state on the screen."""
        self._progress.stop()

    def _move(self, record: ProgressRecord) -> None:
        stage, steps = record.stage or "?", record.count("steps")
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=steps or 1, figures="", left_s=None)
        self._progress.update(
            self._tasks[stage],
            completed=record.count("step") or 0,
            total=steps,
            figures=render_figures(record),
            left_s=record.number("remaining_s"),
        )

    def _print(self, text: str) -> None:
        self._progress.console.print(Text(text), soft_wrap=True)


class Terminal:
    """A terminal that may close while it is written to, as when a connection breaks; then nothing is shown.

    The job must not end of that: the same event brings a SIGHUP, on which it stops with a checkpoint.
    """

    def __init__(self, stream: TextIO) -> None:
        """Stream: of the terminal."""
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or take no notice."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or give up for good."""
        try:
            self._stream.flush()
        except OSError:
            _discard(self._stream)

    def __getattr__(self, name: str) -> Any:
        """Return anything else from the stream."""
        return getattr(self._stream, name)


class _TimeLeftColumn(ProgressColumn):
    """The time that the child expects to need; it knows better than the pace of the bar."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        left_s = task.fields.get("left_s")
        return Text("" if task.finished or left_s is None else f"{render_duration(left_s)} left", style="cyan")


def choose_display(*, plain: bool) -> Display:
    """Return the bar in a terminal, plain lines where asked for or where output goes elsewhere."""
    if plain or not sys.stdout.isatty():
        return PlainDisplay()
    return BarDisplay(Console(file=cast(TextIO, Terminal(sys.stdout))))


def render_figures(record: ProgressRecord) -> str:
    """Return the figures of a progress record that stand beside the bar."""
    words = []
    for key, label, form in _FIGURES:
        value = record.number(key)
        if value is not None:
            words.append(f"{label} {form.format(value)}".strip())
    return "  ".join(words)


def describe_record(record: ProgressRecord) -> str | None:
    """Return the sentence that a record other than progress is worth, None if none."""
    match record.event:
        case "resumed":
            where = f"Resumed {record.stage or 'the run'} at step {record.text('step') or '?'}"
            message = record.text("message")
            return f"{where}: {message}" if message else where
        case "initialized":
            return record.text("message")
        case "stage_finished":
            seconds = record.number("seconds")
            took = f" in {render_duration(seconds)}" if seconds is not None else ""
            return f"Finished stage {record.stage}{took}"
        case "evaluated":
            return _describe_evaluation(record)
        case "exported":
            return f"Exported the model to {record.text('path')}"
        case "failed" | "stopped":
            return record.text("message")
    return None


_WHEN: Mapping[str | None, str] = MappingProxyType({"before": " before training", "after": " after training"})


def _describe_evaluation(record: ProgressRecord) -> str:
    figures = [
        f"{label} {value:.1%}" for key, label in _EVALUATION_FIGURES if (value := record.number(key)) is not None
    ]
    return f"Held-out documents{_WHEN.get(record.text('when'), '')}: {', '.join(figures)}"


def _write(stream: TextIO | None, line: str) -> TextIO | None:
    """Write and flush a line; return the stream, or None once nobody reads it."""
    if stream is not None:
        try:
            print(line, file=stream, flush=True)  # noqa: T201 - this is where plain lines are printed
        except OSError:
            _discard(stream)
            return None
    return stream


def _discard(stream: TextIO) -> None:
    """Let a stream without a reader lead nowhere: Python could not flush its rest at exit and would return 120."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
