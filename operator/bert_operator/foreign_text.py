"""Text from pods, programs and other people's objects, before it is kept in a status or shown on a terminal.

What controls a terminal, or how signs beside it are drawn, lets text say something else than it shows: a line that
rewrites the one above it, or a path whose end is written backwards (U+202E).
"""

from __future__ import annotations

import re
import unicodedata

_COLOUR = re.compile(r"(\033\[[0-9;]*m)")
"""What sets colours alone (SGR)."""
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of signs that are not drawn: controls, formats (directions, no width), halves of surrogate
pairs, which cannot be written as UTF-8 either, separators of lines and paragraphs."""


def visible(text: str) -> str:
    """Return text with U+FFFD for each sign that is not drawn; tabs and line feeds stay."""
    if text.isprintable():
        return text
    return "".join("\ufffd" if sign not in "\t\n" and unicodedata.category(sign) in _UNSEEN else sign for sign in text)


def tame(text: str) -> str:
    """Return lines of a log for a terminal: with their colours, and nothing else that controls one.

    A program may print whatever it likes, such as sequences that rewrite earlier lines or set the clipboard. Of a
    progress bar that goes back to the beginning of its line, the last state is shown.
    """
    return "\n".join(map(_tame_line, text.split("\n")))


def _tame_line(line: str) -> str:
    kept = line.rstrip("\r").rpartition("\r")[2]
    return "".join(
        part
        if _COLOUR.fullmatch(part)
        else "".join(sign if sign.isprintable() or sign == "\t" else "?" for sign in part)
        for part in _COLOUR.split(kept)
    )
