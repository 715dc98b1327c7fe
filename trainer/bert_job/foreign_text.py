"""Text from files, pods, programs and other people's objects, before it is kept in a status or shown on a terminal.

What controls a terminal, or how signs beside it are drawn, lets text say something else than it shows: a line that
rewrites the one above it, or a path whose end is written backwards (U+202E).
"""

from __future__ import annotations

import re

_COLOUR = re.compile(r"(\033\[[0-9;]*m)")
"""What sets colours alone (SGR)."""
_RESETS = ("\033[0m", "\033[m")
# Of Unicode's categories Cc, Cf, Cs, Zl and Zp all but tab, line feed and the marks around numbers that are drawn; and
# Hangul's fillers, letters by their category. Written out: text of a status is looked at at each of its validations.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad"  # controls, soft hyphen
    "\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # directions, no width, separators
    "\u115f\u1160\u3164\uffa0"
    "\ud800-\udfff"  # halves of surrogate pairs, which cannot be written as UTF-8 either
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)


def printable(text: object) -> str:
    """Return what somebody wrote, for a message on one line: what is not displayed is escaped as Python does."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in shown)


def one_line(text: object) -> str:
    """Return a message of somebody else on one line: line breaks, and what is not displayed, are spaces."""
    return "".join(sign if sign.isprintable() else " " for sign in str(text))


def visible(text: str) -> str:
    """Replace characters that are not displayed by U+FFFD; tabs and line feeds stay."""
    return text if text.isascii() and text.isprintable() else _UNSEEN.sub("\ufffd", text)


def sanitize(text: str) -> str:
    """Return log lines that are safe for a terminal: colours stay, other control sequences are removed.

    A program may print whatever it likes, such as sequences that rewrite earlier lines or set the clipboard. Of a
    progress bar that goes back to the beginning of its line, the last state is shown.
    """
    return "\n".join(map(_sanitize_line, text.split("\n")))


def _sanitize_line(line: str) -> str:
    kept = line.rstrip("\r").rpartition("\r")[2]
    # Every other part sets a colour. None may reach what is printed next: one of them hides it.
    parts = _COLOUR.split(kept)
    shown = "".join(part if number % 2 else _UNSEEN.sub("?", part) for number, part in enumerate(parts))
    return shown if len(parts) == 1 or parts[-2] in _RESETS else f"{shown}\033[0m"
