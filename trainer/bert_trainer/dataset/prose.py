"""Plain English sentences out of Python documentation text (docstrings, rendered reStructuredText).

Works on text alone and runs none of it: code, doctests, signatures, grammar, tables, headings and markup
are cut away and what still reads like a sentence is kept. It does not understand reStructuredText; a block
that looks doubtful is dropped, because a corpus of prose bears losing some better than it bears code.
"""

from __future__ import annotations

import re

_SHORTEST_SENTENCE_WORDS = 3
_LEAST_LETTERS_SHARE = 0.7
"""Letters and spaces among all characters; below it a block is taken for code or data."""

_BLANK_LINES = re.compile(r"\n\s*\n")
_UNDERLINE = re.compile(r"^\s*([=\-~*^#\"'`+.:_])\1{2,}\s*$")
_CODE_LINE = re.compile(
    r"^\s*(>>>|\.\.\. |\$ |%|#!|@\w|def \w|class \w+.*:\s*$|import \w|from \S+ import |return\b.*\(|"
    r"\w[\w.\[\]]*\s*(=|\+=|->)\s*\S|(if|for|while|with|elif|try|else|except)\b.*:\s*$)"
)
_TABLE_LINE = re.compile(r"^\s*(\+[-=+]+\+?|\|.*\||(=+|-+)(\s+(=+|-+))+)\s*$")
_SIGNATURE = re.compile(r"^\s*[\w.]+\s*\([^\n]*?\)\s*(->\s*[^\n]*?)?\s*(?:--+\s*|:\s+|$)", re.MULTILINE)
_DIRECTIVE = re.compile(r"^\s*\.\. [\w:-]+::.*$|^\s*:\w+:\s*$", re.MULTILINE)
_FIELD = re.compile(r"^\s*:(param|type|arg|return|returns|rtype|raise|raises|keyword)\b[^:\n]*:\s*", re.MULTILINE)
_ROLE = re.compile(r":[\w+.:-]+:`[~!]?([^`<]*?)(?:\s*<[^>`]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^>`]*>`_{0,2}")
_QUOTED = re.compile(r"`{1,2}([^`\n]+)`{1,2}_{0,2}")
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([\w][^*\n]*?)\*{1,2}(?![\w*])")
_FOOTNOTE = re.compile(r"\s*\[\d+\]_?")
_BULLET = re.compile(r"^\s*(?:[-*\u2022]|\d+[.)]|\(\d+\)|[a-z]\))\s+")
_SPACES = re.compile(r"\s+")

# A full stop ends a sentence when white space and something that can begin one follow.
_SENTENCE_END = re.compile(r"(?<=[.!?])([\"')\]\u2019\u201d]*)\s+(?=[\"'(\[\u2018\u201c]*[A-Z])")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|Mr|Mrs|Ms|Dr|St|No|Fig|Sec|al|resp|approx|incl|eg|ie|ca|pp?|[A-Z]))\.[\"')\]]*$"
)


def split_paragraphs(text: str) -> list[str]:
    """Cut documentation text into cleaned paragraphs, each on one line, without code and markup."""
    text = _DIRECTIVE.sub("", text.expandtabs())
    paragraphs: list[str] = []
    literal = False
    for block in _BLANK_LINES.split(text):
        lines = [line for line in block.split("\n") if line.strip()]
        if not lines:
            continue
        indented = lines[0].startswith((" ", "\t"))
        if literal and indented:
            continue
        literal = lines[-1].rstrip().endswith("::")
        paragraphs += _items(lines)
    return [cleaned for cleaned in map(_clean, paragraphs) if _is_prose(cleaned)]


def split_sentences(paragraph: str) -> list[str]:
    """Cut one paragraph at the ends of its sentences, then leave out pieces too short to be one."""
    sentences: list[str] = []
    start = 0
    for match in _SENTENCE_END.finditer(paragraph):
        if _ABBREVIATION.search(paragraph, start, match.end(1)):
            continue
        sentences.append(paragraph[start : match.end(1)].strip())
        start = match.end()
    sentences.append(paragraph[start:].strip())
    return [sentence for sentence in sentences if _has_words(sentence)]


def _items(lines: list[str]) -> list[str]:
    """Split a block at list bullets and headings; a block holding code or a table yields nothing."""
    if any(_TABLE_LINE.match(line) or "::=" in line for line in lines):
        return []
    items: list[list[str]] = [[]]
    for number, line in enumerate(lines):
        if _UNDERLINE.match(line):
            items[-1:] = [[], []]
        elif _CODE_LINE.match(line):
            # What follows a line of code in the same block is its output or more code.
            break
        elif _BULLET.match(line) and (number == 0 or not items[-1] or line.startswith((" ", "-", "*", "\u2022"))):
            items.append([_BULLET.sub("", line)])
        else:
            items[-1].append(line)
    return ["\n".join(item) for item in items if item]


def _clean(paragraph: str) -> str:
    paragraph = _SIGNATURE.sub("", paragraph)
    paragraph = _FIELD.sub("", paragraph)
    for pattern in (_ROLE, _LINK, _QUOTED, _EMPHASIS):
        paragraph = pattern.sub(r"\1", paragraph)
    paragraph = _FOOTNOTE.sub("", paragraph)
    return _SPACES.sub(" ", paragraph).strip().replace("::", ":")


def _is_prose(paragraph: str) -> bool:
    if not _has_words(paragraph) or len(paragraph) < 20:
        return False
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    ends = paragraph.rstrip("\"')]\u2019\u201d").endswith((".", "!", "?", ":"))
    return letters >= _LEAST_LETTERS_SHARE * len(paragraph) and (ends or len(paragraph.split()) >= 5)


def _has_words(sentence: str) -> bool:
    words = [word for word in sentence.split() if word.strip(".,;:!?()\"'").isalpha()]
    return len(words) >= _SHORTEST_SENTENCE_WORDS
