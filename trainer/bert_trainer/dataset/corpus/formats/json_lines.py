"""Documents of JSON Lines: one object per line, whose text is in a field of it.

The text is prose, each of its lines a paragraph; a list of strings is taken for sentences. Format:
https://jsonlines.org
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_trainer.dataset.corpus.document import Document, split_into_documents
from bert_trainer.dataset.corpus.formats.plain_text import TextRules
from bert_trainer.dataset.corpus.formats.streams import MAX_LINE_BYTES, read_lines
from bert_trainer.dataset.corpus.sentences import Lines, clean_line, sentences_of
from bert_trainer.errors import InputError

logger = logging.getLogger(__name__)

_SHOWN_KEYS = 8


def read_json_lines(path: Path, text_field: str, rules: TextRules, skipped: Counter[str]) -> Iterator[Document]:
    """Yield a document for each line. skipped: counts the lines whose text is empty or null, or too long.

    Raises:
        InputError: the file cannot be read, or a line is no JSON object with such a field; names the line.
    """
    layout: Lines = "paragraphs" if rules.lines == "auto" else rules.lines
    number = 0

    def skip(offset: int) -> None:
        longest = f"{MAX_LINE_BYTES >> 20} MiB"
        logger.warning("%s:%d: skipped: longer than %s (at byte offset %d)", path, number + 1, longest, offset)
        skipped[f"lines above {longest}"] += 1

    for number, (_, line) in enumerate(read_lines(path, skip), start=1):
        if not line.strip():
            continue
        text = _text(line, text_field, path, number)
        # A list has its sentences already; clean_line also removes line breaks, which separate sentences from here on.
        if isinstance(text, list):
            sentences: Iterator[str] = (sentence for sentence in map(clean_line, text) if sentence)
        else:
            sentences = sentences_of(map(clean_line, text.splitlines()), layout, rules.language)
        characters = len(line)  # escapes make the line longer than its text, never shorter
        documents = 0
        for documents, piece in enumerate(split_into_documents(sentences, characters), start=1):  # noqa: B007 - counted
            yield Document(f"{path}#{number}", piece)
        if not documents:
            skipped["lines without text"] += 1


def _text(line: str, text_field: str, path: Path, number: int) -> str | list[str]:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError) as error:  # the second from brackets nested deeper than Python's stack
        raise InputError(
            f"{path}:{number}: not JSON ({error}); allowed: one object per line",
            hint="a file of one JSON document, spread over lines, is no JSON Lines file",
        ) from error
    if not isinstance(entry, dict):
        raise InputError(f"{path}:{number}: got {type(entry).__name__}; allowed: an object with a field {text_field!r}")
    if text_field not in entry:
        keys = ", ".join(map(repr, list(entry)[:_SHOWN_KEYS])) or "none"
        raise InputError(
            f"{path}:{number}: no field {text_field!r}; the object has {keys}",
            hint="name the field that holds the text: textField in a job, --corpus PATH,text_field=NAME by hand",
        )
    value = entry[text_field]
    if value is None:
        return ""
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        return value
    raise InputError(
        f"{path}:{number}: field {text_field!r} is {type(value).__name__}; allowed: a text, or a list of sentences"
    )
