"""Output while a job runs here: progress bars in a terminal, a line now and then anywhere else, or all lines.

Lines of children go to standard output, the operator's own remarks to standard error.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from bert_job.console.output_once import OutputOnce
from bert_job.durations import render_duration
from bert_job.foreign_text import sanitize
from bert_job.progress import ProgressRecord
from bert_job.tasks import MISMATCHED, TASK_METRICS

SECONDS_PER_LINE = 10.0
"""At least, between two lines of progress in a file or a pipe: a preparation reports several times a second."""

# (key of the record, label, format), in display order.
_FIGURES = (
    ("seed", "seed", "{:.0f}"),
    ("epoch", "epoch", "{:.2f}"),
    ("loss", "loss", "{:.3f}"),
    ("mlm_accuracy", "masked-LM", "{:.1%}"),
    ("sequences_per_s", "", "{:.0f} seq/s"),
    ("real_tokens_per_s", "", "{:,.0f} tok/s"),
)
_EVALUATION_FIGURES = (
    ("mlm_accuracy", "masked-LM accuracy"),
    ("unigram_baseline", "most frequent token alone"),
    ("nsp_accuracy", "next-sentence accuracy"),
    ("nsp_baseline", "more frequent answer alone"),
)
_TASK_METRICS = frozenset(metric for metrics in TASK_METRICS.values() for metric in metrics)


class Display(Protocol):
    """Output of a job."""

    def show(self, line: str, record: ProgressRecord | None, *, from_rank: bool = True) -> None:
        """Show a line of a child's output.

        Args:
            line: As it came.
            record: What it parses to, if it is a progress record.
            from_rank: False where the launcher itself wrote it.
        """

    def end_attempt(self, told: str) -> None:
        """Show output that was held back until the child ended. told: the reason for its end in a remark, or empty."""

    def note(self, text: str) -> None:
        """Show a remark of the operator."""

    def close(self) -> None:
        """Restore the terminal."""


class PlainDisplay:
    """Passes lines through unchanged, for programs. A closed pipe does not end the job."""

    def __init__(self, output: TextIO | None = None, remarks: TextIO | None = None) -> None:
        """Write to the given streams; None: standard output and standard error."""
        self._output: TextIO | None = output or sys.stdout
        self._remarks: TextIO | None = remarks or sys.stderr

    def show(self, line: str, record: ProgressRecord | None, *, from_rank: bool = True) -> None:
        """Write the line."""
        del record, from_rank
        self._output = _write(self._output, line)

    def end_attempt(self, told: str) -> None:
        """Nothing was held back."""

    def note(self, text: str) -> None:
        """Write the remark."""
        self._remarks = _write(self._remarks, sanitize(text))

    def close(self) -> None:
        """Nothing to restore."""


class _EventDisplay(ABC):
    """For people: a sentence for every event, and every other line once."""

    def __init__(self) -> None:
        self._once = OutputOnce()

    def show(self, line: str, record: ProgressRecord | None, *, from_rank: bool = True) -> None:
        """Show what the line says, unless it is held back for the reason of an end."""
        if record is None:
            for text in self._once.take(line, from_rank=from_rank):
                self._print(text)
        elif record.event == "failed":
            self._once.take_reason(record.text("message") or "")
        elif record.event in ("progress", "stage_started"):
            self._show_progress(record)
        elif (sentence := describe_record(record)) is not None:
            self._print(sentence)

    def end_attempt(self, told: str) -> None:
        """Show what was held back and says something else."""
        ended, self._once = self._once, OutputOnce()
        for text in ended.end(told):
            self._print(text)

    @abstractmethod
    def _show_progress(self, record: ProgressRecord) -> None:
        """Show how far a stage is: a record of its start or of its progress."""

    @abstractmethod
    def _print(self, text: str) -> None:
        """Show a line of text, which may hold anything."""


class LineDisplay(_EventDisplay):
    """For people who read a file or a pipe: a line of progress per interval, and a sentence for every other event."""

    def __init__(
        self,
        output: TextIO | None = None,
        remarks: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write as ``PlainDisplay`` does. clock: in seconds, never backwards."""
        super().__init__()
        self._plain = PlainDisplay(output, remarks)
        self._clock = clock
        self._due_at_s = -math.inf

    def note(self, text: str) -> None:
        """Write the remark."""
        self._plain.note(text)

    def close(self) -> None:
        """Nothing to restore."""

    def _show_progress(self, record: ProgressRecord) -> None:
        """Write a line, unless the last one was a moment ago; the end of a stage is always shown, its start never."""
        if record.event != "progress":
            return
        now_s = self._clock()
        step, steps = record.count("step"), record.count("steps")
        if now_s >= self._due_at_s or (step is not None and step == steps):
            self._due_at_s = now_s + SECONDS_PER_LINE
            self._print(_render_progress(record))

    def _print(self, text: str) -> None:
        self._plain.show(sanitize(text), None)


class BarDisplay(_EventDisplay):
    """One bar per stage, and a line above the bars for every other event."""

    def __init__(self, console: Console) -> None:
        """Console: a terminal."""
        super().__init__()
        self._progress = Progress(
            # Stage names and figures come from the child: markup in them must not be interpreted.
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=10, max_width=40)),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[figures]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            _TimeLeftColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def note(self, text: str) -> None:
        """Print the remark above the bar."""
        self._print(text)

    def close(self) -> None:
        """Stop drawing; the last state stays on the screen."""
        self._progress.stop()

    def _show_progress(self, record: ProgressRecord) -> None:
        stage, steps = record.stage or "?", record.count("steps")
        # Attempts share a bar: a resumed stage goes on where its checkpoint is.
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
        self._progress.console.print(Text(sanitize(text)), soft_wrap=True)


class Terminal:
    """A terminal that may be closed at any time, as when a connection breaks; output is then discarded.

    An OSError here must not end the job: the same event sends a SIGHUP, which stops it with a checkpoint.
    """

    def __init__(self, stream: TextIO) -> None:
        """Stream: of the terminal."""
        self._stream = stream

    def write(self, text: str) -> int:
        """Write; ignore a closed terminal."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush; discard all further output if the terminal is closed."""
        try:
            self._stream.flush()
        except OSError:
            _discard(self._stream)

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the stream."""
        return getattr(self._stream, name)


class _TimeLeftColumn(ProgressColumn):
    """The remaining time as the child reports it, a better estimate than the pace of the bar."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        left_s = task.fields.get("left_s")
        return Text("" if task.finished or left_s is None else f"{render_duration(left_s)} left", style="cyan")


def open_console() -> Console:
    """Return standard output as a console that may be closed at any time, as ``Terminal`` is."""
    return Console(file=cast(TextIO, Terminal(sys.stdout)))


def choose_display(*, plain: bool, may_draw: bool = True) -> Display:
    """Return bars for a terminal, fewer and shorter lines for files and pipes.

    Args:
        plain: Every line as it comes.
        may_draw: Whether this process has its terminal for itself.
    """
    if plain:
        return PlainDisplay()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Texts are shown as they are: a terminal that lacks a letter gets its number.
        sys.stdout.reconfigure(errors="backslashreplace")
    if not (may_draw and sys.stdout.isatty()):
        return LineDisplay()
    return BarDisplay(open_console())


def render_figures(record: ProgressRecord) -> str:
    """Return the figures of a progress record that are shown beside the bar."""
    words = []
    for key, label, form in _FIGURES:
        value = record.number(key)
        if value is not None:
            words.append(f"{label} {form.format(value)}".strip())
    return "  ".join(words)


def _render_progress(record: ProgressRecord) -> str:
    step, steps, left_s = record.count("step") or 0, record.count("steps"), record.number("remaining_s")
    of_all = "" if not steps else f"/{steps} ({step / steps:.0%})"
    words = [f"{record.stage or '?'} {step}{of_all}", render_figures(record)]
    if left_s:
        words.append(f"{render_duration(left_s)} left")
    return "  ".join(word for word in words if word)


def describe_record(record: ProgressRecord) -> str | None:
    """Return the sentence for a record other than progress, None if it is not shown."""
    match record.event:
        case "resumed":
            where = f"Resumed {record.stage or 'the run'} at step {record.text('step') or '?'}"
            message = record.text("message")
            return f"{where}: {message}" if message else where
        case (
            "initialized"
            | "learning_rate"
            | "micro_batch_size"
            | "preflight"
            | "shard_left_out"
            | "stopped"
            | "task_note"
            | "task_read"
            | "unhealthy"
        ):
            return record.text("message")
        case "stage_finished":
            seconds, message = record.number("seconds"), record.text("message")
            took = f" in {render_duration(seconds)}" if seconds is not None else ""
            return f"Finished stage {record.stage}{took}" + (f": {message}" if message else "")
        case "evaluated":
            return _describe_evaluation(record)
        case "exported":
            return f"Exported the model to {record.text('path')}"
    return None


_WHEN: Mapping[str | None, str] = MappingProxyType({"before": " before training", "after": " after training"})


def _describe_evaluation(record: ProgressRecord) -> str | None:
    if not _TASK_METRICS.isdisjoint(record.fields):
        return _describe_task(record)
    figures = [
        f"{label} {value:.1%}" for key, label in _EVALUATION_FIGURES if (value := record.number(key)) is not None
    ]
    when = _WHEN.get(record.text("when"), "")
    if record.text("when") == "during":
        when = f" in {record.stage} at step {record.text('step') or '?'}"
    verdict = record.text("verdict")
    return f"Evaluation{when}: {', '.join(figures)}" + (f"; {verdict}" if verdict else "")


def _describe_task(record: ProgressRecord) -> str | None:
    """Return what an evaluation of a finetune stage found; at the stage's end in the trainer's words."""
    if record.text("when") == "after":
        return record.text("message")
    runs = [f"{name} {value:.10g}" for name in ("seed", "rank", "epoch") if (value := record.number(name)) is not None]
    # In the order of the record, the deciding one first.
    figures = [
        f"{name} {value:.3f}"
        for name in record.fields
        if name.removesuffix(MISMATCHED) in _TASK_METRICS and (value := record.number(name)) is not None
    ]
    return f"Evaluation in {', '.join([record.stage or '?', *runs])}: {', '.join(figures)}"


def _write(stream: TextIO | None, line: str) -> TextIO | None:
    """Write and flush a line; return the stream, or None once its reader is gone."""
    if stream is not None:
        try:
            print(line, file=stream, flush=True)  # noqa: T201 - this is where plain lines are printed
        except OSError:
            _discard(stream)
            return None
    return stream


def _discard(stream: TextIO) -> None:
    """Redirect a stream without a reader to /dev/null: otherwise Python's flush at exit fails, with exit code 120."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
