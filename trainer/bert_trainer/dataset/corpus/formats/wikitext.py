"""Prose from the markup of MediaWiki pages.

The markup is parsed by ``mwparserfromhell``; this module decides what stays: running text, what links and a few
templates show, quotations. Tables, lists, headings, references, formulas, images and all other templates go, and so
do paragraphs with markup left in them, since a corpus of prose tolerates missing text better than code. Templates are
not expanded: a page means what its text says.

Hostile or broken pages are skipped by an estimate of what parsing them would cost (``check_markup``). It counts marks
and reads no clock, so that the same pages are skipped on every machine.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
from mwparserfromhell.parser import ParserError
from mwparserfromhell.wikicode import Wikicode

from bert_trainer.dataset.corpus.formats.wiki_templates import is_annotation, is_shown, show_template

EXTRACTOR_VERSION = 3
"""Raised whenever the same page would yield other text: it is part of the fingerprint of every dump."""

RENDERED = "templates rendered"
"""What is counted of the templates whose text stands in a page, those inside others as well."""

HOLE = "\ufdd0"
"""Stands in a paragraph where a template showed something that is not known; the sentence around it is no sentence."""
_LIST_MARK = "\x02"
"""Stands before the text of a list item; XML forbids the character, so no page has it."""
_LESS_THAN = "\x03"
"""Stands for a ``<`` that begins no tag, until the parser is done."""

# The extensions below hide their content from everything else; MediaWiki, too, takes them out first, up to the
# next closing tag. References are half of an English page, and the parser's time is spared them.
_HIDING = (
    "ce|chem|code|gallery|graph|hiero|imagemap|inputbox|mapframe|maplink|math|nowiki|poem|pre|ref|references|score|"
    "section|source|syntaxhighlight|templatedata|templatestyles|timeline|"
    "includeonly|indicator|script|style|table"
)
_OPENING = re.compile(rf"<!--|<({_HIDING})\b[^<>]*>", re.IGNORECASE)
_CLOSING = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in _HIDING.split("|")}
_SHOWN_EXTENSIONS = frozenset({"nowiki", "poem"})
_TAG = re.compile(r"<(/?)([a-z][a-z0-9]*)\b[^<>]*>", re.IGNORECASE)
_BREAKING_TAGS = frozenset({"blockquote", "br", "center", "dd", "div", "dl", "dt", "hr", "li", "ol", "p", "td", "ul"})
_ITEM_TAGS = frozenset({"dd", "dt", "li"})
_INTERLANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*:")
_BEHAVIOUR_SWITCH = re.compile(r"__[A-Z]+__")
_QUOTES = re.compile(r"'{2,}")
_EMPTY_BRACKETS = re.compile(r"[(\[（][\s,;:/\u2013\u2014-]*[)\]）]")
_OPENED = re.compile(r"([(\[])[\s,;:]+")
_CLOSED = re.compile(r"[\s,;:]+([)\]])")
_SPACED = re.compile(r"\s+([,.;:!?])")
_REPEATED = re.compile(r"([,;:])(?:\s*[,;:])+")
_LEFT_OVER = re.compile(r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|</?[a-z][^<>]*>|^[|!*#:;=]|\|\|")
# Directly behind a word or its punctuation, behind the end of a sentence, or alone in brackets: a note, which nothing
# misses. Behind a currency sign, a dash or an opening quotation mark stands what the sentence is about.
_NOTE = re.compile(
    rf"(?<=[\w.,;:!?)\]%\u201d\u2019\u00bb\u2026]){HOLE}+|(?<=\S[\"']){HOLE}+"
    rf"|(?<=[.!?]) {HOLE}+|(?<=[.!?][\"')\u201d]) {HOLE}+"
    rf"|[(\[][ ,;:]*{HOLE}+[ ,;:]*[)\]]"
)
_TABLE = re.compile(r"^(?:[^\S\n]|:)*\{\|", re.MULTILINE)
_TABLE_END = re.compile(r"^(?:[^\S\n]|:)*\|\}", re.MULTILINE)

# The cost of parsing, in marks of about 20 microseconds each.
_MARK = re.compile(
    r"\n(?:=|-(?=---)|[*#:;]*)|\{\{|\}\}|\[\[|\]\]|\[(?=//|[a-z]{3,9}:)|\]|\||&(?=[#a-z0-9])|:(?=\S)", re.IGNORECASE
)
_ENDLESS_HEADING = re.compile(r"^=(?:[^=\n]*+=++){200}", re.MULTILINE)
"""The parser calls itself for each run of equals signs of a heading, until the process has no stack left."""
_CLOSED_BY = {"}}": "{{", "]]": "[[", "]": "["}
_MAX_UNCLOSED = 100
_MAX_COST = 50_000
"""About a second; the longest articles of the English Wikipedia have a tenth of it."""
_COST_OF_LINE_MARK = 2
"""Of each character that begins a list item or a heading."""
_LINES_PER_MARK = 4
_CHARACTERS_PER_MARK = 320
"""Characters that the parser reads again in the time that a mark takes."""


class MarkupError(Exception):
    """A page that is skipped for its markup."""


class BrokenMarkupError(MarkupError):
    """So much is never closed that text and markup cannot be told apart, or the parser gave up."""


class CostlyMarkupError(MarkupError):
    """It would take longer to parse than any page that is meant to be read."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """What nodes are shown with, of one page."""

    dropped: frozenset[str]
    """Lower-cased names of namespaces whose links show no text."""
    counts: Counter[str]


def extract_paragraphs(
    wikitext: str, dropped_namespaces: frozenset[str], counts: Counter[str] | None = None
) -> list[str]:
    """Return the paragraphs of a page, each on one line, without markup; with ``HOLE`` where something is missing.

    dropped_namespaces: lower-cased names of those whose links show no text: files and categories. counts: counts the
    templates that were rendered, as ``RENDERED``.

    Raises:
        MarkupError: as ``check_markup``; or the parser gave up.
    """
    # Hidden content goes before tables and tags: a comment or <nowiki> may hold half a table. Tags go before the parser
    # runs: its time is quadratic in those that are never closed, an hour for some pages.
    # Measured: 150 KB of opening tags took the parser 46 s.
    wikitext = wikitext.replace(HOLE, "")
    visible = _TAG.sub(_replace_tag, _without_tables(_without_hidden(wikitext))).replace("<", _LESS_THAN)
    check_markup(visible)
    try:
        # Bold and italic marks are cut away in _tidy: that is cheaper, and unbalanced ones cannot confuse the parser.
        code = mwparserfromhell.parse(visible, skip_style_tags=True)
    except ParserError as error:
        raise BrokenMarkupError from error
    text = "".join(_show(code, _Rules(dropped_namespaces, Counter() if counts is None else counts)))
    lines = (line for line in text.split("\n") if line)
    paragraphs = (_tidy(line) for line in lines if not line.lstrip().startswith(_LIST_MARK))
    # What ends with a colon announces a list, a table or a formula that is gone.
    return [line for line in paragraphs if line and not line.endswith(":") and not _LEFT_OVER.search(line)]


def check_markup(text: str) -> None:
    """Refuse text that would take the parser more than about a second. Time: linear, some 2 % of the parser's.

    Three things cost the parser time: marks, each once more for every template or link around it; scans to the end of
    the line or page, and back, for whatever is never closed; and lines.

    Raises:
        BrokenMarkupError: more than a hundred templates or links are never closed, or a heading never ends.
        CostlyMarkupError: the estimate is above the limit.
    """
    # Openings without their closing so far: which, where, and whether that has to come on the same line.
    waiting: list[tuple[str, int, bool]] = []
    marks = reread = lines = 0
    for match in _MARK.finditer("\n" + text):
        mark = match[0]
        if mark[0] == "\n":
            lines += 1
            # A link or address ends with its line: the parser finds it open there and goes back to its beginning.
            marks += _COST_OF_LINE_MARK * (len(mark) - 1)
            while waiting and waiting[-1][2]:
                reread += match.start() - waiting.pop()[1]
        elif mark in _CLOSED_BY:
            # A closing that fits nothing is text to the parser.
            if waiting and waiting[-1][0] == _CLOSED_BY[mark]:
                waiting.pop()
        elif mark == "|":
            marks += len(waiting)
            # The text of a link, unlike its target, may go over several lines.
            if waiting and waiting[-1][0] == "[[":
                waiting[-1] = ("[[", waiting[-1][1], False)
        else:
            # What stands inside a template or link is put together anew for each one around it.
            marks += len(waiting) + 1
            if mark not in "&:":
                waiting.append((mark, match.start(), mark != "{{"))
    if len(waiting) > _MAX_UNCLOSED or _ENDLESS_HEADING.search(text):
        raise BrokenMarkupError
    # Each opening that is left sends the parser to the end of the page and back.
    reread += sum(len(text) - place for _, place, _ in waiting)
    if marks + lines // _LINES_PER_MARK + reread // _CHARACTERS_PER_MARK > _MAX_COST:
        raise CostlyMarkupError


def _without_hidden(text: str) -> str:
    """Cut out comments and extensions, but for what they show. Time: linear, unclosed ones included."""
    pieces: list[str] = []
    position = 0
    never_closed: set[str] = set()
    while opening := _OPENING.search(text, position):
        pieces.append(text[position : opening.start()])
        position = opening.end()
        if opening[0] == "<!--":
            end = text.find("-->", position)
            position = end + 3 if end >= 0 else len(text)
            continue
        name = opening[1].lower()
        if opening[0].endswith("/>") or name in never_closed:
            continue
        closing = _CLOSING[name].search(text, position)
        if closing is None:
            # Remembered: each such search reads to the end of the page, and hostile pages hold many.
            never_closed.add(name)
            continue
        pieces.append(_show_hidden(name, text[position : closing.start()]))
        position = closing.end()
    return "".join((*pieces, text[position:]))


def _replace_tag(match: re.Match[str]) -> str:
    name = match[2].lower()
    if name in _ITEM_TAGS and not match[1]:
        return f"\n{_LIST_MARK}"
    return "\n" if name in _BREAKING_TAGS else ""


def _show_hidden(name: str, content: str) -> str:
    if name == "nowiki":
        return re.sub(r"[\[\]{}|<>']", "", content)
    return content if name in _SHOWN_EXTENSIONS else ""


def _without_tables(text: str) -> str:
    """Cut out tables, nested ones with those around them; one that never ends goes to its section's end."""
    pieces: list[str] = []
    position = 0
    ends = iter(_TABLE_END.finditer(text))
    end = next(ends, None)
    while begin := _TABLE.search(text, position):
        pieces.append(text[position : begin.start()])
        start = position = begin.end()
        depth = 1
        while depth:
            while end is not None and end.start() < position:
                end = next(ends, None)
            if end is None:
                # A forgotten end must not cost the rest of the article.
                heading = text.find("\n==", start)
                position = heading if heading >= 0 else len(text)
                break
            # Tables that began in between, less the one that ends here.
            depth += len(_TABLE.findall(text, position, end.start())) - 1
            position = end.end()
    return "".join((*pieces, text[position:]))


def _show(code: Wikicode | None, rules: _Rules) -> Iterator[str]:
    """Yield the text that a reader of the page sees, list items behind their mark."""
    for node in code.nodes if code is not None else ():
        yield from _SHOW[type(node)](node, rules)


def _show_text(node: Text, _: _Rules) -> Iterator[str]:
    yield str(node.value)


def _show_nothing(node: Node, _: _Rules) -> Iterator[str]:
    yield ""


def _show_heading(node: Heading, _: _Rules) -> Iterator[str]:
    yield "\n"


def _show_entity(node: HTMLEntity, _: _Rules) -> Iterator[str]:
    try:
        yield node.normalize()
    except (ValueError, OverflowError):  # a number that is no character
        yield ""


def _show_external_link(node: ExternalLink, rules: _Rules) -> Iterator[str]:
    if node.brackets:
        yield from _show(node.title, rules)


def _show_tag(node: Tag, rules: _Rules) -> Iterator[str]:
    # Without HTML, what is left as tags is lists and rules of wiki markup.
    yield _LIST_MARK if str(node.tag) in _ITEM_TAGS else "\n"


def _show_wikilink(node: Wikilink, rules: _Rules) -> Iterator[str]:
    title = str(node.title).strip()
    if not title.startswith(":"):
        if title.partition(":")[0].strip().lower() in rules.dropped and ":" in title:
            return
        if node.text is None and _INTERLANGUAGE.match(title):
            return
    # str(node.text) would do, but every link around this one would put that text together again: quadratic.
    if node.text is not None and any(not isinstance(part, Text) or part.value.strip() for part in node.text.nodes):
        yield from _show(node.text, rules)
    else:
        yield title.removeprefix(":")


def _show_template(node: Template, rules: _Rules) -> Iterator[str]:
    name = str(node.name).strip().replace("_", " ").lower()
    if name.startswith("formatnum:"):
        rules.counts[RENDERED] += 1
        yield str(node.name).partition(":")[2].strip()
        return
    if is_annotation(name):
        return
    shown = None
    if is_shown(name):
        given = {str(it.name).strip(): "".join(_show(it.value, rules)).strip() for it in node.params}
        shown = show_template(name, given)
        rules.counts[RENDERED] += shown is not None
    yield HOLE if shown is None else shown


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
    """Fix what the parts cut away leave behind: empty brackets, doubled punctuation and spaces."""
    line = _QUOTES.sub("", _BEHAVIOUR_SWITCH.sub("", line)).replace(_LESS_THAN, "<")
    # Runs go first: the patterns below would take quadratic time on a long one.
    line = " ".join(line.split())
    if HOLE in line:
        # Before a sentence stand boxes; what goes on in lower case was the rest of one.
        rest = line.lstrip(HOLE + " ")
        begins = not rest[:1].islower() and rest[:1] not in (",", ";", ")")
        line = _NOTE.sub("", rest if begins else f"{HOLE} {rest}")
    line = _REPEATED.sub(r"\1", line)
    if "(" in line or "[" in line or "\uff08" in line:
        line = _CLOSED.sub(r"\1", _OPENED.sub(r"\1", _EMPTY_BRACKETS.sub("", line)))
    return " ".join(_REPEATED.sub(r"\1", _SPACED.sub(r"\1", line)).split())
