"""Prints: results to standard output, remarks to standard error, and one line that changes while a verb waits."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TextIO

from bert_operator.plugin.terminal import Ink, detect_terminal, width_of

Colours = Literal["auto", "always", "never"]


@dataclass(slots=True)
class Console:
    """Output streams of a verb."""

    output: TextIO = field(default_factory=lambda: sys.stdout)
    remarks: TextIO = field(default_factory=lambda: sys.stderr)
    colours: Colours = "auto"
    """auto: on terminals alone, and not with NO_COLOR."""
    _waiting: str = field(default="", init=False)
    """The line that is shown while something is waited for."""

    @property
    def ink(self) -> Ink:
        """Formatting that standard output supports."""
        ink = detect_terminal(self.output)
        return ink if self.colours == "auto" else replace(ink, colours=self.colours == "always")

    @property
    def width(self) -> int:
        """Columns of results."""
        return width_of(self.output)

    def show(self, lines: Iterable[str] | str) -> None:
        """Print results."""
        self.clear()
        for line in [lines] if isinstance(lines, str) else lines:
            print(line, file=self.output, flush=True)  # noqa: T201 - the place where results are printed

    def remark(self, text: str) -> None:
        """Print a remark."""
        self.clear()
        print(text, file=self.remarks, flush=True)  # noqa: T201 - the place where remarks are printed

    def wait(self, text: str, state: str | None = None) -> None:
        """Show what a verb waits for: one changing line on a terminal, elsewhere a line per state.

        Args:
            text: The line.
            state: What of it changes seldom; None: all of it.
        """
        is_terminal = self.remarks.isatty()
        shown = text[: width_of(self.remarks) - 1] if is_terminal else state or text
        if shown == self._waiting:
            return
        if is_terminal:
            self.remarks.write(f"\r\033[K{shown}")
            self.remarks.flush()
        else:
            print(shown, file=self.remarks, flush=True)  # noqa: T201 - the place where remarks are printed
        self._waiting = shown

    def clear(self) -> None:
        """Remove the changing line."""
        if self._waiting and self.remarks.isatty():
            self.remarks.write("\r\033[K")
            self.remarks.flush()
            self._waiting = ""
