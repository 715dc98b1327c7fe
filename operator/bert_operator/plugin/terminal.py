"""What a terminal can show: colours, bars, sparklines, tables. Pure, except for ``detect_terminal``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

Colour = Literal["red", "green", "yellow", "blue", "bold", "dim"]

_CODES: Mapping[Colour, str] = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "bold": "1", "dim": "2"}
_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS = "_.-=+*#@"
Cell = str | tuple[str, Colour]


@dataclass(frozen=True, slots=True)
class Ink:
    """Text formatting: with or without colours and non-ASCII characters."""

    colours: bool = False
    unicode: bool = True

    def paint(self, text: str, colour: Colour) -> str:
        """Colour text. The colour must not be the only carrier of meaning."""
        return f"\033[{_CODES[colour]}m{text}\033[0m" if self.colours and text else text

    def bar(self, share: float, width: int) -> str:
        """Return a bar of so many characters, filled to a share in [0, 1]."""
        filled = round(min(1.0, max(0.0, share)) * width)
        full, empty = ("█", "░") if self.unicode else ("#", "-")
        return full * filled + empty * (width - filled)

    def sparkline(self, values: Sequence[float], width: int) -> str:
        """Return values as a line of small columns, each the mean of a section; empty for none."""
        means = shorten(values, width)
        if not means:
            return ""
        levels = _LEVELS if self.unicode else _ASCII_LEVELS
        low, high = min(means), max(means)
        scale = (len(levels) - 1) / (high - low) if high > low else 0.0
        return "".join(levels[round((value - low) * scale)] for value in means)

    def sign(self, wanted: str, instead: str) -> str:
        """Return a symbol, or its ASCII substitute."""
        return wanted if self.unicode else instead


PLAIN = Ink()


def detect_terminal(stream: TextIO, environment: Mapping[str, str] = os.environ) -> Ink:
    """Return what a stream supports: colours on terminals only, and not with NO_COLOR (no-color.org)."""
    is_terminal = stream.isatty() and environment.get("TERM") != "dumb"
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
    return Ink(colours=is_terminal and not environment.get("NO_COLOR"), unicode=encoding.startswith("utf"))


def width_of(stream: TextIO) -> int:
    """Return the columns of a terminal; 100 if the stream is none."""
    return shutil.get_terminal_size((100, 24)).columns if stream.isatty() else 100


def shorten(values: Sequence[float], width: int) -> list[float]:
    """Return at most ``width`` values: the means of parts as equal as possible."""
    if len(values) <= width:
        return list(values)
    ends = [len(values) * part // width for part in range(width + 1)]
    parts = [values[start:end] for start, end in zip(ends, ends[1:], strict=False)]
    return [sum(part) / len(part) for part in parts]


def table(header: Sequence[str], rows: Iterable[Sequence[Cell]], ink: Ink = PLAIN) -> list[str]:
    """Return the lines of a table as kubectl writes them: columns by three spaces, no rules."""
    cells: list[Sequence[Cell]] = [list(header), *rows]
    widths = [max(len(_text(row[column])) for row in cells) for column in range(len(header))]
    return [_row(row, widths, ink) for row in cells]


def fold(text: str, width: int, indent: str) -> list[str]:
    """Return a sentence in lines of at most ``width`` columns, all but the first indented."""
    lines: list[str] = []
    current = ""
    for word in text.split():
        room = width - (len(indent) if lines else 0)
        if current and len(current) + 1 + len(word) > room:
            lines.append(current)
            current = word
        else:
            current = f"{current} {word}".lstrip()
    lines.append(current)
    return [lines[0], *(indent + line for line in lines[1:])]


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _row(row: Sequence[Cell], widths: Sequence[int], ink: Ink) -> str:
    parts = []
    for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
        text = _text(cell)
        # Blanks stay outside the colour, and the last column ends where its text does.
        blanks = " " * (width - len(text)) if number < len(row) - 1 else ""
        parts.append((text if isinstance(cell, str) else ink.paint(text, cell[1])) + blanks)
    return "   ".join(parts).rstrip()
