"""Digests of files that may be large: a piece at a time, and whoever waits is told how far it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

_PIECE_BYTES = 1 << 20


def digest_file(path: Path, algorithm: str, advance: Callable[[int], None] = lambda _: None) -> str:
    """Return a file's digest, hexadecimal. Memory: a piece. advance: told how many more bytes were read; may raise.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            advance(len(piece))
    return digest.hexdigest()
