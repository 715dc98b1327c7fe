"""Sentence splitting, and detection of what the lines of a text hold.

Splitting is ``sentencex`` (Wikimedia; rules for a language, or of the nearest language that has some, no
download): a compiled library that splits tens of MB/s on one core. Text that has one sentence per line already
is not split.

The splitter ends no sentence between quotation marks or brackets, so two stray ones hide all that is between them. What
comes out longer than a sentence can be is split again as if it had none.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import sentencex

Lines = Literal["sentences", "paragraphs", "wrapped"]
"""What a line of text holds: one sentence; one paragraph or more; or as much as its width allowed, so that
sentences go on in the next line."""

# sentencex for its speed, an order of magnitude above the build's own: 73 MB/s on one core, where PySBD has 0.3, syntok
# 1.4 and nupunkt 7.6.
SPLITTER_VERSION = f"sentencex {importlib.metadata.version('sentencex')}"
"""Part of every corpus's fingerprint: another version may split otherwise."""
_SURVEYED_LINES = 500
_MIN_SPLIT_SHARE = 0.2
"""Share of the lines that hold an end of a sentence before their end, from which on lines are no sentences. Text
with one sentence per line has some such lines, since no two splitters agree on all."""
_MIN_ENDED_SHARE = 0.5
"""Share of the lines that end with a sentence, from which on lines are paragraphs and not wrapped."""
# Without a bound, two stray quotation marks made 81 % of a German file one sentence, of which a row held the beginning.
MAX_SENTENCE = 2048
"""Characters; about what a row of 512 tokens holds of English, and what does not fit into a row is cut away."""
# An eighth of a megabyte of unclosed marks took the splitter 15 s.
_MAX_PIECE = 1 << 13
"""Characters given to the splitter at a time: its time grows with the square of unclosed quotation marks."""
_SHORT = 1 << 10
"""Characters of a line for which that square does not matter, and of a piece's end that is split again with the
next."""
_MAX_MARKS_SHARE = 1 / 16
"""Share of a longer line's characters above which its quotation marks are taken for noise."""

# Control characters other than white space; and halves of surrogate pairs, which JSON can escape and UTF-8 cannot
# encode.
_FORBIDDEN = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_MARKS = (
    "'`\"\u00ab\u00bb\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u2039\u203a\u300a\u300b\u300c\u300d\u300e\u300f"
)
_WITHOUT_MARKS = str.maketrans(dict.fromkeys(_MARKS + "()[]{}<>\uff08\uff09", " "))
_MARK = re.compile(f"[{_MARKS}]")
_OPENING_MARKS = re.compile(rf"(?<=\s)[({_MARKS}\[]+$")
"""At the end of a piece they open the next sentence."""
_ENDED = re.compile(r"[.!?:;\u2026\u3002\uff01\uff1f\u0964\u06d4\u061f][\"')\]\u2019\u201d\u00bb]*$")


@dataclass(slots=True)
class LongSentences:
    """Counts of what was longer than a sentence can be, and was therefore split again."""

    sentences: int = 0
    characters: int = 0

    def add(self, found: LongSentences) -> None:
        """Add the counts of another process."""
        self.sentences += found.sentences
        self.characters += found.characters

    def since(self, before: LongSentences) -> LongSentences:
        """Return what was added since a copy of these counts was taken."""
        return LongSentences(self.sentences - before.sentences, self.characters - before.characters)


long_sentences = LongSentences()
"""Of this process since it began, and of its workers."""


def clean_line(text: str) -> str:
    """Return text on one line: white space becomes single spaces, control characters go.

    Half surrogate pairs become the replacement character, as decoders have it.
    """
    # One fast scan in C that most lines pass, which spares them two substitutions.
    if not text.isprintable():
        text = _SURROGATES.sub("\ufffd", _FORBIDDEN.sub("", text))
    return " ".join(text.split())


def split_sentences(paragraph: str, language: str, counted: LongSentences = long_sentences) -> list[str]:
    """Return the sentences of one cleaned line, none above ``MAX_SENTENCE``.

    language: ISO 639 code. counted: counts those that were longer.
    """
    return _split(paragraph, language, counted)


def _split(paragraph: str, language: str, counted: LongSentences) -> list[str]:
    if len(paragraph) <= _SHORT:
        found = sentencex.segment(language, paragraph)
    else:
        # In pieces that overlap: the end of each is split again with the next, so that a sentence across two pieces
        # comes out whole, whatever the length of the line.
        found = []
        waiting = ""
        for start in range(0, len(paragraph), _MAX_PIECE):
            piece = _bounded(waiting + paragraph[start : start + _MAX_PIECE], language, counted)
            if start + _MAX_PIECE < len(paragraph):
                waiting = _take_end(piece)
            found += piece
    return [sentence for sentence in map(str.strip, found) if sentence]


def _take_end(found: list[str]) -> str:
    """Take the last sentences off those of a piece, to be split again with the next piece.

    The last one may go on there, and a quotation that is closed there decides how those before it are split.
    """
    taken = [found.pop()]
    while found and sum(map(len, taken)) + len(found[-1]) <= _SHORT:
        taken.append(found.pop())
    # Whether a straight mark opens or closes depends on those before it: the piece has to end where all are closed.
    while len(taken) > 1 and sum(sentence.count('"') for sentence in found) % 2:
        found.append(taken.pop())
    return "".join(reversed(taken))


def _bounded(piece: str, language: str, counted: LongSentences) -> list[str]:
    """Return the sentences of some text, which together are that text, none above ``MAX_SENTENCE``."""
    if len(_MARK.findall(piece)) > _MAX_MARKS_SHARE * len(piece):
        sentences = _split_without_marks(piece, language)
    else:
        sentences = sentencex.segment(language, piece)
    if max(map(len, sentences)) <= MAX_SENTENCE:
        return sentences
    bounded: list[str] = []
    for sentence in sentences:
        if len(sentence) <= MAX_SENTENCE:
            bounded.append(sentence)
            continue
        counted.sentences += 1
        counted.characters += len(sentence)
        for part in _split_without_marks(sentence, language):
            bounded += _pieces(part)
    return bounded


def _split_without_marks(text: str, language: str) -> list[str]:
    """Split the text as if it had no quotation marks and brackets; they stay in it."""
    # They become spaces, so places in the translated text are places in the text.
    sentences: list[str] = []
    start = end = 0
    for part in sentencex.segment(language, text.translate(_WITHOUT_MARKS)):
        end += len(part)
        opening = _OPENING_MARKS.search(text, start, end)
        stop = opening.start() if opening and end < len(text) else end
        sentences.append(text[start:stop])
        start = stop
    sentences.append(text[start:])
    return [sentence for sentence in sentences if sentence]


def sentences_of(lines: Iterable[str], layout: Lines, language: str) -> Iterator[str]:
    """Yield the sentences of one document.

    lines: as ``clean_line`` returns them; an empty one separates paragraphs.
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
    """Return what the lines of a text hold, by its first lines. lines: cleaned; empty ones do not count."""
    seen = [line for line in lines if line][:_SURVEYED_LINES]
    if not seen:
        return "sentences"
    split = sum(len(_split(line[:_MAX_PIECE], language, LongSentences())) > 1 for line in seen)
    if split < _MIN_SPLIT_SHARE * len(seen):
        return "sentences"
    ended = sum(_ENDED.search(line) is not None for line in seen)
    return "paragraphs" if ended >= _MIN_ENDED_SHARE * len(seen) else "wrapped"


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
    """Split what is too long for a sentence at spaces; without one, anywhere."""
    start = 0
    while start < len(text):
        end = start + MAX_SENTENCE
        if end < len(text):
            space = text.rfind(" ", start + 1, end)
            end = space if space > 0 else end
        yield text[start:end]
        start = end
