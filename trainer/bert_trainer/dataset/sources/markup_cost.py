"""What parsing a page's markup would cost, told by its marks before it is parsed.

The parser takes some microseconds for each mark, reads on to the end of the page, and back, for each template or link
that is never closed, and we put together what a template or link shows once for each that it stands in. All of that is
counted here as it would happen, so that the same pages are left out on every machine; no clock is looked at.
"""

from __future__ import annotations

import re

_MARK = re.compile(
    r"\n(?:=|-(?=---)|[*#:;]*)|\{\{|\}\}|\[\[|\]\]|\[(?=//|[a-z]{3,9}:)|\]|\||&(?=[#a-z0-9])|:(?=\S)", re.IGNORECASE
)
_ENDLESS_HEADING = re.compile(r"^=(?:[^=\n]*+=++){200}", re.MULTILINE)
"""The parser calls itself for each run of equals signs of a heading, until the process has no stack left."""
_CLOSED_BY = {"}}": "{{", "]]": "[[", "]": "["}
_MOST_UNCLOSED = 100
_MOST_COST = 50_000
"""Marks, each about 20 microseconds; the longest articles of the English Wikipedia have a tenth of it."""
_PER_LINE_MARK = 2
"""Lists and headings cost twice as much as others."""
_LINES_PER_MARK = 4
_CHARACTERS_PER_MARK = 320
"""That are read again in the time that a mark takes."""


class MarkupError(Exception):
    """A page that is left out for its markup."""


class BrokenMarkupError(MarkupError):
    """It leaves so much open that nobody can tell its text from its markup, or the parser gave up."""


class CostlyMarkupError(MarkupError):
    """It has more markup than any page that is meant to be read."""


def check_markup(text: str) -> None:
    """Refuse text that the parser would not be done with in a second. Time: linear, some 2 % of the parser's.

    Raises:
        BrokenMarkupError: a hundred templates or links and more are never closed.
        CostlyMarkupError: as its name says.
    """
    # Openings that are waiting for their closing: which, where, and whether it has to come on the same line.
    waiting: list[tuple[str, int, bool]] = []
    marks = reread = lines = 0
    for match in _MARK.finditer("\n" + text):
        mark = match[0]
        if mark[0] == "\n":
            lines += 1
            marks += _PER_LINE_MARK * (len(mark) - 1)
            while waiting and waiting[-1][2]:
                reread += match.start() - waiting.pop()[1]
        elif mark in _CLOSED_BY:
            # Out of turn it is text to the parser, and so it is here.
            if waiting and waiting[-1][0] == _CLOSED_BY[mark]:
                waiting.pop()
        elif mark == "|":
            marks += len(waiting)
            if waiting and waiting[-1][0] == "[[":
                waiting[-1] = ("[[", waiting[-1][1], False)
        else:
            marks += len(waiting) + 1
            if mark not in "&:":
                waiting.append((mark, match.start(), mark != "{{"))
    if len(waiting) > _MOST_UNCLOSED or _ENDLESS_HEADING.search(text):
        raise BrokenMarkupError
    reread += sum(len(text) - place for _, place, _ in waiting)
    if marks + lines // _LINES_PER_MARK + reread // _CHARACTERS_PER_MARK > _MOST_COST:
        raise CostlyMarkupError
