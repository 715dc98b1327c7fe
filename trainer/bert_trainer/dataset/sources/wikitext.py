"""Prose out of the markup of MediaWiki pages.

The markup is parsed by ``mwparserfromhell``; here is decided what stays: running text, what links and a few
templates show, quotations. Tables, lists, headings, references, formulas, images and all other templates go, and
paragraphs that markup is left over in, since a corpus of prose bears losing some better than it bears code.
Templates are not carried out: a page means what its text says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import mwparserfromhell
from mwparserfromhell.nodes import (
    Argument,
    Comment,
    ExternalLink,
    Heading,
    HTMLEntity,
    Node,
    Tag,
    Template,
    Text,
    Wikilink,
)
from mwparserfromhell.wikicode import Wikicode

EXTRACTOR_VERSION = 1
"""Raised whenever the same page would yield other text."""

_LIST_MARK = "\x02"
"""Stands before what a list item says; XML has no such character, so no page has."""

# The extensions below hide their content from everything else; MediaWiki, too, takes them out first, up to the
# next closing tag. References are half of an English page, and the parser's time is spared them.
_HIDING = (
    "ce|chem|code|gallery|graph|hiero|imagemap|inputbox|mapframe|maplink|math|nowiki|poem|pre|ref|references|score|"
    "section|source|syntaxhighlight|templatedata|templatestyles|timeline"
)
_HIDDEN = re.compile(
    rf"<!--.*?(?:-->|\Z)|<({_HIDING})\b[^<>]*?/>|<({_HIDING})\b[^<>]*?>.*?</\2\s*>", re.DOTALL | re.IGNORECASE
)
_SHOWN = frozenset({"nowiki", "poem"})
_DROPPED_TAGS = frozenset(
    {*_HIDING.split("|"), "indicator", "script", "style", "table", "td", "th", "tr", "includeonly"} - _SHOWN
)
_LIST_TAGS = frozenset({"li", "dt", "dd"})
_INTERLANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*:")
_BEHAVIOUR_SWITCH = re.compile(r"__[A-Z]+__")
_QUOTES = re.compile(r"'{2,}")
_EMPTY_BRACKETS = re.compile(r"[(\[（][\s,;:/\u2013\u2014-]*[)\]）]")
_OPENED = re.compile(r"([(\[])[\s,;:]+")
_CLOSED = re.compile(r"[\s,;:]+([)\]])")
_SPACED = re.compile(r"\s+([,.;:!?])")
_REPEATED = re.compile(r"([,;:])(?:\s*[,;:])+")
_LEFT_OVER = re.compile(r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|</?[a-z]+[^<>]*>|^[|!*#:;=]|\|\|")
_TABLE = re.compile(r"^[ \t:]*\{\|", re.MULTILINE)
_TABLE_END = re.compile(r"^[ \t:]*\|\}", re.MULTILINE)


def extract_paragraphs(wikitext: str, dropped_namespaces: frozenset[str]) -> list[str]:
    """Return the paragraphs of a page, each on one line, without markup.

    dropped_namespaces: lower-cased names of those whose links show no text: files and categories.
    """
    visible = _without_tables(_HIDDEN.sub(_replace_hidden, wikitext))
    # Bold and italic marks are cut away afterwards: cheaper, and unbalanced ones cannot confuse the parser.
    code = mwparserfromhell.parse(visible, skip_style_tags=True)
    text = "".join(_show(code, dropped_namespaces))
    paragraphs = (_tidy(line) for line in text.split("\n") if not line.lstrip().startswith(_LIST_MARK))
    # What ends with a colon announces a list, a table or a formula that is gone.
    return [line for line in paragraphs if line and not line.endswith(":") and not _LEFT_OVER.search(line)]


def _replace_hidden(match: re.Match[str]) -> str:
    if (match[2] or "").lower() not in _SHOWN:
        return ""
    content = match[0].partition(">")[2].rpartition("<")[0]
    return content if match[2].lower() == "poem" else re.sub(r"[\[\]{}|<>']", "", content)


def _without_tables(text: str) -> str:
    """Cut out tables, nested ones with those around them; one that never ends goes to its section's end."""
    pieces: list[str] = []
    position = 0
    while begin := _TABLE.search(text, position):
        pieces.append(text[position : begin.start()])
        position = _end_of_table(text, begin.end())
    return "".join((*pieces, text[position:]))


def _end_of_table(text: str, position: int) -> int:
    depth = 1
    start = position
    while depth:
        end = _TABLE_END.search(text, position)
        if end is None:
            heading = text.find("\n==", start)
            return heading if heading >= 0 else len(text)
        depth += len(_TABLE.findall(text, position, end.start())) - 1
        position = end.end()
    return position


def _show(code: Wikicode | None, dropped: frozenset[str]) -> Iterator[str]:
    """Yield the text that a reader of the page sees, list items behind their mark."""
    for node in code.nodes if code is not None else ():
        yield from _SHOW[type(node)](node, dropped)


def _show_text(node: Text, _: frozenset[str]) -> Iterator[str]:
    yield str(node.value)


def _show_nothing(node: Node, _: frozenset[str]) -> Iterator[str]:
    yield ""


def _show_heading(node: Heading, _: frozenset[str]) -> Iterator[str]:
    yield "\n"


def _show_entity(node: HTMLEntity, _: frozenset[str]) -> Iterator[str]:
    try:
        yield node.normalize()
    except (ValueError, OverflowError):  # a number that is no character
        yield ""


def _show_external_link(node: ExternalLink, dropped: frozenset[str]) -> Iterator[str]:
    if node.brackets:
        yield from _show(node.title, dropped)


def _show_tag(node: Tag, dropped: frozenset[str]) -> Iterator[str]:
    name = str(node.tag).strip().lower()
    if name in _LIST_TAGS:
        # Of wiki lists the tag is only the mark; of HTML lists it holds the item.
        yield f"\n{_LIST_MARK}" if not node.wiki_markup else _LIST_MARK
    elif name == "br":
        yield "\n"
    elif name not in _DROPPED_TAGS:
        yield from _show(node.contents, dropped)


def _show_wikilink(node: Wikilink, dropped: frozenset[str]) -> Iterator[str]:
    title = str(node.title).strip()
    if not title.startswith(":"):
        if title.partition(":")[0].strip().lower() in dropped and ":" in title:
            return
        if node.text is None and _INTERLANGUAGE.match(title):
            return
    if node.text is not None and str(node.text).strip():
        yield from _show(node.text, dropped)
    else:
        yield title.removeprefix(":")


def _show_template(node: Template, dropped: frozenset[str]) -> Iterator[str]:
    name = str(node.name).strip().replace("_", " ").lower()
    if name.startswith("formatnum:"):
        yield str(node.name).partition(":")[2].strip()
    elif name in _FIXED:
        yield _FIXED[name]
    else:
        shown = _PARAMETERS.get(name) or (("2",) if name.startswith("lang-") else ())
        for number, parameter in enumerate(shown):
            if node.has(parameter, ignore_empty=True):
                yield " " if number else ""
                yield from _show(node.get(parameter).value, dropped)


_FIXED = {
    "'": "'",
    "'s": "'s",
    "\u2013": "\u2013",
    "ndash": "\u2013",
    "mdash": "\u2014",
    "snd": " \u2013 ",
    "nbsp": " ",
}
"""Templates that stand for a character."""

_PARAMETERS = {
    "abbr": ("1",),
    "blockquote": ("1", "text"),
    "convert": ("1", "2"),
    "cquote": ("1",),
    "cvt": ("1", "2"),
    "lang": ("2",),
    "langx": ("2",),
    "nihongo": ("1",),
    "no wrap": ("1",),
    "nobr": ("1",),
    "nowrap": ("1",),
    "quote": ("1", "text"),
    "sic": ("1",),
    "small": ("1",),
    "transl": ("2",),
    "visible anchor": ("1",),
}
"""Templates that sentences are built with, and the parameters that they show, in this order."""

_SHOW: dict[type[Node], Callable[..., Iterator[str]]] = {
    Argument: _show_nothing,
    Comment: _show_nothing,
    ExternalLink: _show_external_link,
    HTMLEntity: _show_entity,
    Heading: _show_heading,
    Tag: _show_tag,
    Template: _show_template,
    Text: _show_text,
    Wikilink: _show_wikilink,
}


def _tidy(line: str) -> str:
    """Mend what the parts cut away leave behind: empty brackets, doubled punctuation and spaces."""
    line = _QUOTES.sub("", _BEHAVIOUR_SWITCH.sub("", line))
    if "(" in line or "[" in line or "（" in line:
        line = _CLOSED.sub(r"\1", _OPENED.sub(r"\1", _EMPTY_BRACKETS.sub("", line)))
    return " ".join(_REPEATED.sub(r"\1", _SPACED.sub(r"\1", line)).split())
