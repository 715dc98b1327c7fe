"""Which format a file has, by its name, and by its content where the name says nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

from bert_trainer.dataset.file_search import files_below
from bert_trainer.dataset.sources.mlperf_text import list_parts, looks_like_mlperf
from bert_trainer.dataset.sources.streams import read_head
from bert_trainer.errors import InputError

Format = Literal["text", "wikipedia", "jsonLines", "mlperf"]
FileFormat = Literal["text", "wikipedia", "jsonLines"]

_HEAD_BYTES = 4096
_COMPRESSED = r"(?:\.(?:gz|bz2|xz))?"
_NAMES: tuple[tuple[re.Pattern[str], FileFormat | None], ...] = (
    # The index of a multistream dump is text, but no prose.
    (re.compile(rf".*-multistream-index\d*\.txt.*{_COMPRESSED}"), None),
    (re.compile(rf".*\.txt{_COMPRESSED}"), "text"),
    (re.compile(rf".*\.(?:jsonl|ndjson){_COMPRESSED}"), "jsonLines"),
    # A dump in several files has the numbers of its pages behind the suffix.
    (re.compile(rf".*\.xml(?:-p\d+p\d+)?{_COMPRESSED}"), "wikipedia"),
)
EXPECTED = (
    "expected: .txt files in UTF-8 with a blank line between documents, .jsonl files, or Wikipedia dumps "
    "(.xml, .xml.bz2)"
)


def format_by_name(name: str) -> FileFormat | None:
    """Return the format that a file's name stands for; ``None`` where it stands for none that is read."""
    return next((kind for pattern, kind in _NAMES if pattern.fullmatch(name.lower())), None)


def format_by_content(path: Path) -> FileFormat:
    """Tell the format by the beginning of a file; what is neither XML nor JSON is plain text.

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


def find_files(root: Path, wanted: Format | None) -> tuple[Format | None, list[tuple[Path, FileFormat]]]:
    """Find what to read below a folder, or take one file; sorted by path, with the format of each.

    wanted: as the user said; empty: recognised. Returns also the format of the whole, where it is one that files
    do not have by themselves (``mlperf``).

    Raises:
        InputError: nothing is there that can be read, or a folder may not be looked into.
    """
    if root.is_file():
        return wanted, [(root, _format_of(root, wanted))]
    if not root.is_dir():
        raise InputError(f"{root}: no such folder or file; {EXPECTED}")
    if wanted == "mlperf" or (wanted is None and looks_like_mlperf(root)):
        parts = list_parts(root)
        if not parts:
            raise InputError(
                f"{root}: no file part-00000-of-00500 here; allowed with format mlperf: the folder of the parts",
                hint="it is called results4 in the benchmark's results_text.tar.gz",
            )
        return "mlperf", [(path, "text") for path in parts]
    if wanted == "text" and (parts := list_parts(root)):
        # Without the benchmark's evaluation text, which lies among them and must not be trained on.
        return wanted, [(path, "text") for path in parts]
    # A mounted ConfigMap shows every file twice, once below a folder called `..2026_01_31_...`; that one is hidden.
    paths = files_below(root)
    by_name = [(path, format_by_name(path.name)) for path in paths]
    found = [(path, kind) for path, kind in by_name if kind is not None and wanted in (None, kind)]
    if wanted is not None and not found:
        found = [(path, wanted) for path in paths]
    if not found:
        kinds = "no file" if wanted else "no .txt, .jsonl or .xml file"
        raise InputError(f"{root}: {kinds} in this folder; {EXPECTED}")
    return wanted, found


def _format_of(path: Path, wanted: Format | None) -> FileFormat:
    if wanted == "mlperf":
        raise InputError(f"{path}: a file; allowed with format mlperf: the folder of the parts (results4)")
    return wanted or format_by_name(path.name) or format_by_content(path)
