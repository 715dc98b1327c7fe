"""Sentences out of text, and what the lines of a text hold.

Splitting is ``sentencex`` (Wikimedia; rules for a language, or of the nearest language that has some, no
download): a compiled library that cuts tens of MB/s on one core. Text that has one sentence per line already
is not split.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import sentencex

Lines = Literal["sentences", "paragraphs", "wrapped"]
"""What a line of text holds: one sentence; one paragraph or more; or as much as its width allowed, so that
sentences go on in the next line."""

SPLITTER_VERSION = f"sentencex {importlib.metadata.version('sentencex')}"
"""Another version may split otherwise."""
_SURVEYED_LINES = 500
_LEAST_SPLIT_SHARE = 0.2
"""Share of the lines that hold an end of a sentence before their end, from which on lines are no sentences. Text
with one sentence per line has some such lines, since no two splitters agree on all."""
_LEAST_ENDED_SHARE = 0.5
"""Share of the lines that end with a sentence, from which on lines are paragraphs and not wrapped."""
_LONGEST_PIECE = 1 << 20
"""Characters given to the splitter at a time: bounds what it takes for text without any end of a sentence."""

# Control characters, less those that are white space; and halves of surrogate pairs, which UTF-8 has not.
_FORBIDDEN = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_ENDED = re.compile(r"[.!?:;\u2026\u3002\uff01\uff1f\u0964\u06d4\u061f][\"')\]\u2019\u201d\u00bb]*$")


def clean_line(text: str) -> str:
    """Return text on one line: white space becomes single spaces, control characters go.

    Half surrogate pairs become the replacement character, as decoders have it.
    """
    if not text.isprintable():
        text = _SURROGATES.sub("\ufffd", _FORBIDDEN.sub("", text))
    return " ".join(text.split())


def split_sentences(paragraph: str, language: str) -> list[str]:
    """Return the sentences of one cleaned line. language: ISO 639 code."""
    pieces: Iterable[str] = [paragraph] if len(paragraph) <= _LONGEST_PIECE else _pieces(paragraph)
    found = (sentence.strip() for piece in pieces for sentence in sentencex.segment(language, piece))
    return [sentence for sentence in found if sentence]


def sentences_of(lines: Iterable[str], layout: Lines, language: str) -> Iterator[str]:
    """Yield the sentences of one document.

    lines: as ``clean_line`` returns them; an empty one parts paragraphs.
    """
    if layout == "sentences":
        yield from (line for line in lines if line)
    elif layout == "paragraphs":
        for line in lines:
            if line:
                yield from split_sentences(line, language)
    else:
        for paragraph in _joined(lines):
            yield from split_sentences(paragraph, language)


def detect_lines(lines: Sequence[str], language: str) -> Lines:
    """Tell what the lines of a text hold, by its first lines. lines: cleaned; empty ones do not count."""
    seen = [line for line in lines if line][:_SURVEYED_LINES]
    if not seen:
        return "sentences"
    split = sum(len(split_sentences(line[:_LONGEST_PIECE], language)) > 1 for line in seen)
    if split < _LEAST_SPLIT_SHARE * len(seen):
        return "sentences"
    ended = sum(_ENDED.search(line) is not None for line in seen)
    return "paragraphs" if ended >= _LEAST_ENDED_SHARE * len(seen) else "wrapped"


def _joined(lines: Iterable[str]) -> Iterator[str]:
    waiting: list[str] = []
    for line in lines:
        if line:
            waiting.append(line)
        elif waiting:
            yield " ".join(waiting)
            waiting = []
    if waiting:
        yield " ".join(waiting)


def _pieces(text: str) -> Iterator[str]:
    """Cut a huge line at spaces; without one, anywhere."""
    start = 0
    while start < len(text):
        end = start + _LONGEST_PIECE
        if end < len(text):
            space = text.rfind(" ", start + 1, end)
            end = space if space > 0 else end
        yield text[start:end]
        start = end
