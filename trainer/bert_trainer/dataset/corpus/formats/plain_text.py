"""Documents of plain text: one sentence per line, one paragraph per line, or wrapped prose.

UTF-8, compressed or not. What the lines of a file hold is detected from its first lines, unless a setting says so.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from bert_job.foreign_text import printable
from bert_trainer.dataset.corpus.document import MAX_DOCUMENT, PIECE_COST, Document, split_into_documents
from bert_trainer.dataset.corpus.formats.streams import read_lines
from bert_trainer.dataset.corpus.sentences import Lines, clean_line, detect_lines, sentences_of
from bert_trainer.errors import InputError

logger = logging.getLogger(__name__)

Boundaries = Literal["emptyLines", "files"]
"""What separates documents, besides the ends of files."""

_SURVEYED_LINES = 1000
_SURVEYED_CHARACTERS = 1 << 20
_MIN_TABLE_LINES = 10
_MIN_TABLE_SHARE = 0.9
"""Share of the lines with the same number of tabs at which they are taken for rows of a table."""
_TABLE_SUFFIXES = (".tsv", ".tab", ".csv")


@dataclass(frozen=True, slots=True)
class TextRules:
    """How lines become documents and sentences."""

    language: str = "en"
    lines: Lines | Literal["auto"] = "auto"
    documents: Boundaries = "emptyLines"


def read_plain_text(path: Path, rules: TextRules) -> Iterator[Document]:
    """Yield the documents of one file.

    Raises:
        InputError: the file cannot be read, is damaged, not UTF-8, or a table.
    """
    lines = (line for _, line in read_lines(path))
    head = list(_first_lines(lines))
    named_table = path.name.lower().endswith(_TABLE_SUFFIXES)
    # Who says what the lines hold has looked at them; a table's name is refused nevertheless.
    if rules.lines == "auto" or named_table:
        _refuse_table(path, head, 1 if named_table else _MIN_TABLE_LINES)
    head = [clean_line(line) for line in head]
    layout = rules.lines
    if layout == "auto":
        layout = detect_lines(head, rules.language)
        # At INFO, which only bert-data read shows: a wrong guess is the first thing to look for in odd sentences.
        logger.info("%s: lines are taken for %s", printable(path), layout)
    number = 0
    for document in _documents(chain(head, map(clean_line, lines)), rules.documents):
        characters = sum(map(len, document))
        for sentences in split_into_documents(sentences_of(document, layout, rules.language), characters):
            number += 1
            yield Document(f"{path}#{number}", sentences)


def _first_lines(lines: Iterator[str]) -> Iterator[str]:
    """Take the lines that the layout is detected from; they stay in memory, so characters are bounded, too."""
    characters = 0
    for line in islice(lines, _SURVEYED_LINES):
        yield line
        characters += len(line)
        if characters >= _SURVEYED_CHARACTERS:
            return


def _refuse_table(path: Path, head: list[str], min_lines: int) -> None:
    """Refuse lines of columns: their numbers and labels would be trained on. head: lines as they are."""
    # Tabs before the text are indentation.
    tabs = Counter(line.lstrip().count("\t") for line in head if line.strip())
    if tabs.total() < min_lines:
        return
    [(number, lines)] = tabs.most_common(1)
    if number and lines >= _MIN_TABLE_SHARE * tabs.total():
        raise InputError(
            f"{printable(path)}: {lines} of its first {tabs.total()} lines have {number + 1} columns, parted by tabs; "
            "allowed: lines of text",
            hint="take the column that holds the text, for example: cut -f 4 FILE; or say lines: sentences to read the "
            "lines of a .txt file as they are",
        )


def _documents(lines: Iterator[str] | chain[str], boundaries: Boundaries) -> Iterator[list[str]]:
    """Split the lines of a file into documents; where nothing separates them, before they grow too long for memory."""
    waiting: list[str] = []
    cost = 0
    for line in lines:
        if line or boundaries == "files":
            cost += len(line) + PIECE_COST
            if cost > MAX_DOCUMENT and waiting:
                yield waiting
                waiting, cost = [], len(line) + PIECE_COST
            waiting.append(line)
        elif waiting:
            yield waiting
            waiting, cost = [], 0
    if waiting:
        yield waiting
