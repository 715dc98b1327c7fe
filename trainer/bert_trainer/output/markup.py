"""HTML out of values: whatever is not markup already is escaped, so that no text can become a tag.

Names and texts of a report come from other people: file names, corpora, messages of programs. No part of a page is put
together in another way than by ``tag``. Source: the WHATWG's HTML standard, "Writing HTML documents".
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

# https://www.w3.org/TR/CSP3/: even a tag that got through would load nothing and run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_VOID = frozenset({"meta", "br", "line", "circle", "path", "polyline", "rect"})


class Markup(str):
    """Text that is HTML, made by this module."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float) -> Markup:
    """Return an element. attributes: ``class_`` is ``class``, and an underscore inside a name a hyphen."""
    words = [name]
    for key, value in attributes.items():
        words.append(f'{key.rstrip("_").replace("_", "-")}="{html.escape(str(value), quote=True)}"')
    if name in _VOID and not children:
        return Markup(f"<{' '.join(words)}/>")
    return Markup(f"<{' '.join(words)}>{join(children)}</{name}>")


def join(parts: Iterable[str]) -> Markup:
    """Return parts one after another, text among them escaped."""
    return Markup("".join(part if isinstance(part, Markup) else html.escape(part) for part in parts))


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> Markup:
    """Return a table that scrolls by itself where it is too wide. numbers: columns that are set to the right."""

    def line(cell: str, cells: Sequence[str]) -> Markup:
        kinds = ({"class_": "number"} if number in numbers else {} for number in range(len(cells)))
        return tag("tr", *(tag(cell, text, **kind) for text, kind in zip(cells, kinds, strict=True)))

    body = [line("td", row) for row in rows]
    return tag("div", tag("table", tag("thead", line("th", header)), tag("tbody", *body)), class_="wide")


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Return names with their values; pairs without a value are left out."""
    return tag("dl", *(part for name, value in pairs if value for part in (tag("dt", name), tag("dd", value))))


def section(title: str, *children: str) -> Markup:
    """Return a part of a page with its heading; nothing for a part without content."""
    inner = [child for child in children if child]
    return tag("section", tag("h2", title), *inner) if inner else Markup()


def render_page(title: str, style: str, *body: str) -> bytes:
    """Return a whole document that needs no network and no script. style: ours, taken as it is."""
    head = (
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        Markup(f"<style>{style}</style>"),
    )
    page = tag("html", tag("head", *head), tag("body", tag("main", *body)), lang="en")
    # A file name may hold bytes that are not UTF-8, which Python keeps as lone surrogates.
    return f"<!doctype html>\n{page}\n".encode(errors="replace")
