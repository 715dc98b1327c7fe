"""A file system of a few hundred kilobytes, and ways to fill it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, *, size: str) -> Iterator[Path]:
    """Mount one at a folder, which is made; skips the test where this user may not."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("requires the right to mount a tmpfs (root)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the room that is left; return the file that has it."""
    file = folder / "others"
    with file.open("wb", buffering=0) as target, contextlib.suppress(OSError):
        while True:
            target.write(bytes(4096))
    return file
