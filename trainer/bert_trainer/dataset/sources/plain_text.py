"""Documents of plain text: one sentence per line, one paragraph per line, or wrapped prose.

UTF-8, compressed or not. What the lines of a file hold is told by its first lines where it is not said.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from bert_trainer.dataset.document import Document
from bert_trainer.dataset.sentences import Lines, clean_line, detect_lines, sentences_of
from bert_trainer.dataset.sources.streams import read_lines

logger = logging.getLogger(__name__)

Boundaries = Literal["emptyLines", "files"]
"""What parts documents, besides the ends of files."""

_SURVEYED_LINES = 1000
_SURVEYED_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class TextRules:
    """How lines become documents and sentences."""

    language: str = "en"
    lines: Lines | Literal["auto"] = "auto"
    documents: Boundaries = "emptyLines"


def read_plain_text(path: Path, rules: TextRules, left_out: Counter[str]) -> Iterator[Document]:
    """Yield the documents of one file. left_out: gets files without text counted.

    Raises:
        InputError: the file cannot be read, is damaged or not UTF-8.
    """
    lines = (clean_line(line) for _, line in read_lines(path))
    head = list(_first_lines(lines))
    layout = rules.lines
    if layout == "auto":
        layout = detect_lines(head, rules.language)
        logger.info("%s: lines are taken for %s", path, layout)
    number = 0
    for document in _documents(chain(head, lines), rules.documents):
        sentences = tuple(sentences_of(document, layout, rules.language))
        if sentences:
            number += 1
            yield Document(f"{path}#{number}", sentences)
    if not number:
        left_out["files without text"] += 1


def _first_lines(lines: Iterator[str]) -> Iterator[str]:
    """Take the lines that tell what lines hold: few enough to be held in memory."""
    characters = 0
    for line in islice(lines, _SURVEYED_LINES):
        yield line
        characters += len(line)
        if characters >= _SURVEYED_CHARACTERS:
            return


def _documents(lines: Iterator[str] | chain[str], boundaries: Boundaries) -> Iterator[Iterator[str] | list[str]]:
    if boundaries == "files":
        yield iter(lines)
        return
    waiting: list[str] = []
    for line in lines:
        if line:
            waiting.append(line)
        elif waiting:
            yield waiting
            waiting = []
    if waiting:
        yield waiting
