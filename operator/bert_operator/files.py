"""Files in folders where others may write too, such as a shared volume: no link of theirs is written through."""

from __future__ import annotations

import secrets
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically: readers see the old or the new content. Raises OSError."""
    # A name that nobody can guess, made anew (O_EXCL): no link lies in wait under it. The mode is the umask's.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
        partial.replace(path)
    # A full disk, or an interrupt: nobody else would know the file's name.
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
