"""Rows of a table with named columns, whatever separates them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from bert_job.foreign_text import printable
from bert_trainer.dataset.corpus.formats.streams import METHODS
from bert_trainer.errors import InputError
from bert_trainer.tasks.delimited import Fields, at, excerpt, listed, read_csv, read_objects, read_tsv

Format = Literal["auto", "tsv", "csv", "jsonLines"]

_SUFFIXES: dict[str, Format] = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonLines",
    ".ndjson": "jsonLines",
    ".jsonlines": "jsonLines",
}

Record = tuple[int, dict[str, Any]]
"""The number of a row's first line, from 1, and its values by column: texts, of JSON Lines whatever JSON has."""


def read_records(
    path: Path, format: Format, wanted: set[str], notes: list[str], *, is_kept: bool = True
) -> Iterator[Record]:
    """Yield the rows, of which each has the wanted columns.

    Args:
        path: The file.
        format: Of it.
        wanted: Columns.
        notes: Warnings for the log are added at the end.
        is_kept: Whether all rows will be in memory together, so that there must not be too many.

    Raises:
        InputError: as ``delimited`` raises it; a column is missing, a row has other fields than columns.
    """
    format = _format_of(path) if format == "auto" else format
    if format == "jsonLines":
        for line, entry in read_objects(path, is_kept=is_kept):
            if not wanted <= entry.keys():
                _require(wanted, list(entry), at(path, line), "the object")
            yield line, entry
        return
    rows = (read_tsv if format == "tsv" else read_csv)(path, is_kept=is_kept)
    names = _read_header(path, rows, wanted)
    skipped, quoted = 0, 0
    for line, fields in rows:
        if not any(fields) and len(fields) <= 1:
            if is_kept or len(names) > 1:
                skipped += 1
                continue
            fields = [""]  # of a single column an empty text, which has its line in the output
        if len(fields) != len(names):
            raise InputError(
                f"{at(path, line)}: got {len(fields)} fields; allowed: {len(names)}, one for each column",
                hint="a text that holds the separator or a line break must be quoted, as CSV can, or be JSON Lines",
            )
        quoted += format == "tsv" and any(_is_quoted(field) for field in fields)
        yield line, dict(zip(names, fields, strict=True))
    found = [f"{printable(path)}: empty lines skipped: {skipped}"] * bool(skipped)
    found += [f"{printable(path)}: lines with quoted fields: {quoted}; in TSV the marks are part of the text"] * bool(
        quoted
    )
    notes += [note for note in found if note not in notes]


def _read_header(path: Path, rows: Iterator[Fields], wanted: set[str]) -> list[str]:
    first = next(rows, None)
    if first is None:
        raise InputError(f"{printable(path)}: got an empty file; allowed: a line of column names, and rows")
    names = [name.strip() for name in first[1]]
    if any("\r" in name for name in names):
        raise InputError(
            f"{at(path, 1)}: its lines end with carriage returns alone; allowed: line feeds",
            hint=f"convert it: tr '\\r' '\\n' < {printable(path)}",
        )
    _require(wanted, names, at(path, 1), "the file")
    twice = sorted(name for name in wanted if names.count(name) > 1)
    if twice:
        raise InputError(f"{at(path, 1)}: got the column {excerpt(twice[0])} more than once; allowed: once")
    return names


def _require(wanted: set[str], names: list[str], place: str, what: str) -> None:
    missing = sorted(wanted.difference(names))
    if missing:
        raise InputError(
            f"{place}: no column {listed(missing)}; {what} has {listed(names)}",
            hint="name columns as they are called there; the format (tsv, csv or jsonLines) says what separates them",
        )


def _is_quoted(field: str) -> bool:
    # As programs write TSV that quote like CSV: marks around, and those inside doubled.
    return len(field) > 4 and field[0] == field[-1] == '"' and '""' in field[1:-1]


def _format_of(path: Path) -> Format:
    name = path.name.lower()
    for method in METHODS.values():
        name = name.removesuffix(method.suffix)
    found = _SUFFIXES.get(Path(name).suffix)
    if found is None:
        raise InputError(
            f"{printable(path)}: its suffix names no format; allowed: {', '.join(_SUFFIXES)}, also compressed",
            hint="say the format of the files: tsv, csv or jsonLines",
        )
    return found
