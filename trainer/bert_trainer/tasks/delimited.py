"""Rows of TSV, CSV and JSON Lines files, read with bounded memory; what is no text of this kind is named by its line.

Compressed files are read as well. The first byte order mark is skipped. In TSV quotation marks are characters like any
other, as in GLUE's files; CSV follows RFC 4180, where quoted fields may hold line breaks.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_job.foreign_text import printable
from bert_trainer.dataset.corpus.formats.streams import MAX_LINE_BYTES, read_lines
from bert_trainer.errors import InputError
from bert_trainer.system.files import unreadable

MAX_ROWS = 5_000_000
"""Of a file; QQP and MNLI have 0.4 million. All examples are kept in memory, at some 500 bytes each beside the text."""
MAX_TEXT_BYTES = 1 << 30
"""Of a file's content; the largest of GLUE, MNLI's, has 78 MB. Python takes one to four bytes for a character."""

MAX_TEXT_CHARACTERS = 1 << 20
"""Of one text: three hundred times what a model of 512 tokens reads, and 2,000 windows of a context."""

_SHOWN_CHARACTERS = 60
_SHOWN_NAMES = 12
_SURROGATES = re.compile("[\ud800-\udfff]")

Fields = tuple[int, list[str]]
"""The number of a row's first line, from 1, and its fields."""


def excerpt(text: str) -> str:
    """Return the beginning of a text for a message, quoted, with what cannot be printed escaped."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")


def listed(names: list[str]) -> str:
    """Return names for a message: the first of them, quoted."""
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return (", ".join(map(excerpt, names[:_SHOWN_NAMES])) or "none") + more


def at(path: Path, line: int) -> str:
    """Return a place in a file for a message."""
    return f"{printable(path)}:{line}"


def require_file(path: Path) -> None:
    """Refuse what is missing, and what is no regular file: opening a pipe would wait for somebody to write.

    Raises:
        InputError: it is none.
    """
    try:
        if path.is_file():
            return
        exists = path.exists()
    except (OSError, ValueError) as error:  # the second from a NUL in the path
        raise unreadable(path, error) from error
    if exists:
        raise InputError(
            f"{printable(path)}: got a folder, a pipe or a device; allowed: a file", hint="name a file on disk"
        )
    raise InputError(
        f"{printable(path)}: no such file; allowed: a file that every rank's machine sees",
        hint="nothing is downloaded: put the file there, or name the path where it lies",
    )


def read_text_lines(path: Path, *, is_kept: bool = True) -> Iterator[tuple[int, str]]:
    """Yield each line without its end, and its number from 1. is_kept: as ``records.read_records`` takes it.

    Raises:
        InputError: it is no regular file, cannot be read, is not UTF-8 or has NUL bytes; a line, or the whole of what
            is kept, is too long. Names the file and the line.
    """
    require_file(path)
    number, end = 0, 0

    def refuse_line(offset: int) -> None:
        raise InputError(
            f"{at(path, number + 1)}: got a line of {MAX_LINE_BYTES >> 20} MiB or more, from byte {offset} on; "
            f"allowed: shorter ones",
            hint="a model reads at most 512 tokens of a text: cut it, or check where the lines of the file end",
        )

    for number, (offset, line) in enumerate(read_lines(path, refuse_line), start=1):
        if "\0" in line:
            raise InputError(
                f"{at(path, number)}: got a NUL byte; allowed: UTF-8 text",
                hint="a table of another program or encoding: export it as UTF-8 text, or convert it with iconv",
            )
        end = offset + len(line)
        if is_kept and (number > MAX_ROWS or end > MAX_TEXT_BYTES):
            raise InputError(
                f"{at(path, number)}: got more than {MAX_ROWS:,} lines or {MAX_TEXT_BYTES >> 20} MiB of text; "
                f"allowed: less, since every rank keeps all examples in memory",
                hint="fine-tune on a part of the file, for example: shuf -n 1000000",
            )
        yield number, line


def read_tsv(path: Path, *, is_kept: bool = True) -> Iterator[Fields]:
    """Yield the fields between tabs of each line, also of an empty one; raises as ``read_text_lines``."""
    for number, line in read_text_lines(path, is_kept=is_kept):
        yield number, line.split("\t")


def read_csv(path: Path, *, is_kept: bool = True) -> Iterator[Fields]:
    """Yield the fields between commas of each row; raises as ``read_text_lines``, and for marks out of place."""
    begin, size = 1, 0

    def lines() -> Iterator[str]:
        nonlocal size
        for number, line in read_text_lines(path, is_kept=is_kept):
            size += len(line)
            # A quotation mark that is not closed makes one row of the rest of the file.
            if size > MAX_LINE_BYTES:
                raise InputError(
                    f"{at(path, begin)}: got a row of {MAX_LINE_BYTES >> 20} MiB or more, which goes on in line "
                    f"{number}; allowed: shorter ones",
                    hint="a quoted field that begins in this row is perhaps not closed",
                )
            yield line + "\n"

    # Of the whole process; its own default, 128 KiB, is less than a long context has. Nothing else here reads CSV.
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader(lines(), strict=True)
    while True:
        begin, size = reader.line_num + 1, 0
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(
                f"{at(path, begin)}: not CSV ({error}); allowed: fields between commas, quoted where they hold "
                "commas, quotation marks (doubled) or line breaks",
                hint="where quotation marks are characters like any other, separate by tabs and name the format tsv",
            ) from error
        yield begin, fields


def read_objects(path: Path, *, is_kept: bool = True) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the object of each line, empty lines left out, and the line's number from 1.

    Halves of surrogate pairs, which JSON can hold and UTF-8 cannot, are left as they are: ``whole_characters``.

    Raises:
        InputError: as ``read_text_lines``; a line is no JSON object.
    """
    for number, line in read_text_lines(path, is_kept=is_kept):
        if not line.strip():
            continue
        try:
            entry: Any = json.loads(line)
        except (ValueError, RecursionError) as error:  # the second from brackets nested deeper than Python's stack
            raise InputError(
                f"{at(path, number)}: not JSON ({error}); allowed: one object per line",
                hint="a file of one JSON document, spread over lines, is no JSON Lines file",
            ) from error
        if not isinstance(entry, dict):
            raise InputError(f"{at(path, number)}: got a {type(entry).__name__}; allowed: an object with named values")
        yield number, entry


def require_short(text: str, path: Path, place: str) -> None:
    """Refuse a text that no model reads, and that takes hundreds of megabytes as tokens. place: in the file.

    Raises:
        InputError: it is too long.
    """
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InputError(
            f"{printable(path)}:{place}: got a text of {len(text):,} characters; allowed: {MAX_TEXT_CHARACTERS:,}",
            hint="a model reads at most 512 tokens of a text: cut it, or check where the fields of the file end",
        )


def whole_characters(text: str) -> str:
    """Return the text with U+FFFD for each half of a surrogate pair, so that offsets stay and it can be written."""
    return _SURROGATES.sub("�", text)
