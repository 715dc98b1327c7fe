"""What a run shows that somebody started by hand: bars in a terminal, lines elsewhere, and its results at the end.

The same as ``bert-operator local`` shows. Under an executor, which reads the records itself, nothing is changed.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from bert_job.console.display import Display, choose_display, open_console
from bert_job.console.summary import print_summary, read_report
from bert_job.progress import ATTEMPT_VARIABLE, parse_progress_line
from bert_trainer.errors import TrainerError
from bert_trainer.output.runs_page import write_index
from bert_trainer.system.launched_rank import read_launched

_RUNS = "runs"
"""Folder in which examples keep their runs side by side."""


@contextmanager
def displayed(folder: Path, environment: Mapping[str, str], *, plain: bool) -> Iterator[None]:
    """Show the records that this process prints, and where its results are once it has succeeded.

    Args:
        folder: Output folder of the run.
        environment: Of the process.
        plain: Print the records as they are.
    """
    rank = read_launched(environment)
    is_other = rank is not None and rank.rank != 0
    # Without standard output nothing is shown, as nothing was printed.
    if ATTEMPT_VARIABLE in environment or plain or is_other or sys.stdout is None:
        yield
        return
    # A launcher puts the output of several ranks into one terminal.
    display = choose_display(plain=False, may_draw=rank is None)
    shown = _Shown(display, sys.stdout)
    reason = ""
    try:
        with contextlib.redirect_stdout(shown), _logged_beside(display):
            yield
    except TrainerError as error:
        reason = str(error)  # as standard error has it, with its hint
        raise
    finally:
        shown.flush_rest()
        display.end_attempt(reason)
        display.close()
    print_summary(open_console(), read_report(folder), folder)
    # A page of somebody else stays, and a list that cannot be written is no reason to fail.
    if folder.parent.name == _RUNS:
        with contextlib.suppress(OSError, TrainerError):
            write_index(folder.parent)


class _Shown:
    """Standard output whose lines go to a display."""

    def __init__(self, display: Display, stream: TextIO) -> None:
        self._display, self._stream, self._rest = display, stream, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            record = parse_progress_line(line)
            # That a run was stopped, standard error says.
            if record is None or record.event != "stopped":
                self._display.show(line, record)
        return len(text)

    def flush(self) -> None:
        """Lines are shown when they end."""

    def flush_rest(self) -> None:
        """Show what no line feed has ended."""
        if self._rest:
            self.write("\n")

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextmanager
def _logged_beside(display: Display) -> Iterator[None]:
    """Have warnings printed above the bars."""

    class Above(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            display.note(self.format(record))

    root = logging.getLogger()
    before, above = root.handlers[:], Above()
    for handler in before:
        above.setFormatter(handler.formatter)
        root.removeHandler(handler)
    root.addHandler(above)
    try:
        yield
    finally:
        root.removeHandler(above)
        for handler in before:
            root.addHandler(handler)
