"""Format detection: by a file's name, and by its content where the name says nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bert_job.foreign_text import printable
from bert_trainer.dataset.corpus.formats.mlperf_text import EVALUATION_FILE, LIST_NAMES, list_parts, looks_like_mlperf
from bert_trainer.dataset.corpus.formats.streams import METHODS, read_head
from bert_trainer.dataset.corpus.formats.zip_archives import is_zip, list_members
from bert_trainer.errors import InputError
from bert_trainer.system.files import Search, search_below, unreadable

Format = Literal["text", "wikipedia", "jsonLines", "mlperf"]
FileFormat = Literal["text", "wikipedia", "jsonLines"]

_HEAD_BYTES = 4096
_COMPRESSED = f"(?:{'|'.join(re.escape(method.suffix) for method in METHODS.values())})?"
_NAMES: tuple[tuple[re.Pattern[str], FileFormat | None], ...] = (
    # The index of a multistream dump is text, but no prose. A name may hold a line break.
    (re.compile(rf".*-multistream-index\d*\.txt.*{_COMPRESSED}", re.DOTALL), None),
    (re.compile(rf".*\.(?:txt|text){_COMPRESSED}", re.DOTALL), "text"),
    (re.compile(rf".*\.(?:jsonl|ndjson){_COMPRESSED}", re.DOTALL), "jsonLines"),
    # A dump in several files has the numbers of its pages behind the suffix.
    (re.compile(rf".*\.xml(?:-p\d+p\d+)?{_COMPRESSED}", re.DOTALL), "wikipedia"),
)
_NO_PROSE: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(rf".*\.(?:csv|tsv|tab){_COMPRESSED}", re.DOTALL),
        "a table, by its name",
        "take the column that holds the text into a .txt file, one line each, for example with 'cut -f 4'",
    ),
    (
        re.compile(rf".*\.json{_COMPRESSED}", re.DOTALL),
        "JSON that is not one object per line",
        "write it as JSON Lines, one object per line, with the text in a field",
    ),
    (
        re.compile(rf".*\.(?:html?|xhtml){_COMPRESSED}", re.DOTALL),
        "a web page, by its name",
        "take its text out first; format: text reads it as it is, with its markup",
    ),
)
"""Names of files that are not read as plain text unless ``format: text`` says so; what they are, and the way out."""

EXPECTED = (
    "expected: .txt or .text files in UTF-8 with a blank line between documents, .jsonl files, or Wikipedia dumps "
    "(.xml, .xml.bz2)"
)


def format_by_name(name: str) -> FileFormat | None:
    """Return the format that a file's name stands for; ``None`` where it stands for none that is read."""
    return next((kind for pattern, kind in _NAMES if pattern.fullmatch(name.lower())), None)


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The files of a folder that are read, and those that are not."""

    kind: Format | None
    """Of the whole, where it is one that files do not have by themselves (``mlperf``), or as the user said."""
    files: tuple[tuple[Path, FileFormat], ...]
    """Sorted by path, with the format of each."""
    skipped: tuple[tuple[Path, str], ...] = ()
    """The others, and why."""
    hidden: tuple[Path, ...] = ()
    """Files and folders that are skipped because their names begin with a full stop."""


def format_by_content(path: Path) -> FileFormat:
    """Return the format by the beginning of a file; what is neither XML nor JSON is plain text.

    Raises:
        InputError: the file cannot be read.
    """
    head = read_head(path, _HEAD_BYTES)
    if b"<mediawiki" in head:
        return "wikipedia"
    first = head.split(b"\n", 1)[0].strip()
    if first.startswith(b"{"):
        try:
            entry: Any = json.loads(first)
        except ValueError:
            # Its first line may be longer than what was read.
            return "jsonLines" if len(first) > _HEAD_BYTES // 2 else "text"
        if isinstance(entry, dict):
            return "jsonLines"
    return "text"


def find_files(root: Path, wanted: Format | None) -> FoundFiles:
    """Find what to read below a folder, or take one file. wanted: as the user said; None: detected.

    Raises:
        InputError: nothing is there that can be read, or a folder may not be looked into.
    """
    if root.is_file():
        try:
            members = list_members(root) if is_zip(root) else None
        except OSError as error:
            raise unreadable(root, error) from error
        if members is None or wanted == "mlperf":
            return FoundFiles(wanted, ((root, _format_of(root, wanted)),))
        if len(members) == 1:
            return FoundFiles(wanted, ((members[0], _format_of(members[0], wanted)),))
        return _find_by_name(root, wanted, Search(members))
    if not root.is_dir():
        raise InputError(f"{root}: no such folder or file; {EXPECTED}")
    if wanted == "mlperf" or (wanted is None and looks_like_mlperf(root)):
        parts = list_parts(root)
        if not parts:
            raise InputError(
                f"{root}: no file part-00000-of-00500 here; allowed with format mlperf: the folder of the parts",
                hint="it is called results4 in the benchmark's results_text.tar.gz",
            )
        search = search_below(root)
        # They belong to the text without being trained on: no warning that they are left out.
        search.files[:] = [path for path in search.files if path.name not in (EVALUATION_FILE, *LIST_NAMES)]
        return _found("mlperf", [(path, "text") for path in parts], search, "that are no part of the MLPerf text")
    # A mounted ConfigMap shows every file twice, once below a folder called `..2026_01_31_...`, which counts as hidden.
    search = search_below(root)
    if wanted == "text" and (parts := list_parts(root)):
        # Without the benchmark's evaluation text, which lies among them and must not be trained on.
        return _found(wanted, [(path, "text") for path in parts], search, "that lie beside parts of the MLPerf text")
    search.files[:] = [member for path in search.files for member in _unpacked(path)]
    return _find_by_name(root, wanted, search)


def _unpacked(path: Path) -> list[Path]:
    """Return the files of an archive, told by its name as all files of a folder are; any other file as it is."""
    return list_members(path) if path.suffix.lower() == ".zip" and is_zip(path) else [path]


def _find_by_name(root: Path, wanted: FileFormat | None, search: Search) -> FoundFiles:
    """Take the files whose names stand for what is wanted, or for any format."""
    by_name = [(path, format_by_name(path.name)) for path in search.files]
    found = [(path, kind) for path, kind in by_name if kind is not None and wanted in (None, kind)]
    # No name stands for what the user says, so it holds for all of them.
    if wanted is not None and not found:
        found = [(path, wanted) for path in search.files]
    if not found:
        kinds = "no file" if wanted else "no .txt, .jsonl or .xml file"
        there = f"; there are {join_paths([path for path, _ in by_name])}" if by_name else ""
        raise InputError(f"{printable(root)}: {kinds} in it; {EXPECTED}{there}")
    return _found(
        wanted,
        found,
        search,
        f"whose names do not stand for {wanted}" if wanted else "whose names stand for no format that is read",
    )


def join_paths(paths: Sequence[Path], most: int = 10) -> str:
    """Return the first names and the number of the others."""
    more = f" and {len(paths) - most:,} more" if len(paths) > most else ""
    return ", ".join(printable(path.name) for path in paths[:most]) + more


def _found(kind: Format | None, files: list[tuple[Path, FileFormat]], search: Search, reason: str) -> FoundFiles:
    read = {path for path, _ in files}
    others = [(path, reason) for path in search.files if path not in read]
    others += [(path, "that are broken links or not regular files") for path in search.no_files]
    return FoundFiles(kind, tuple(files), tuple(others), tuple(search.hidden))


def _format_of(path: Path, wanted: Format | None) -> FileFormat:
    if wanted == "mlperf":
        raise InputError(f"{path}: a file; allowed with format mlperf: the folder of the parts (results4)")
    kind = wanted or format_by_name(path.name)
    if kind is not None:
        return kind
    kind = format_by_content(path)
    if kind == "text":
        for pattern, what, hint in _NO_PROSE:
            if pattern.fullmatch(path.name.lower()):
                raise InputError(f"{printable(path)}: {what}; {EXPECTED}", hint=hint)
    return kind
