"""The unit of a corpus: a document is a name and its sentences, in order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Document:
    """Text that belongs together; sentences are non-empty, stripped and hold no line break."""

    name: str
    """Where it came from, for messages."""
    sentences: tuple[str, ...]
    weight: float = 1.0
    """How often it is drawn, relative to the build's ``dupe_factor``; above 0."""


def digest_sentences(sentences: Sequence[str]) -> bytes:
    """Return 32 bytes that stand for a document's text, whatever its name is."""
    return hashlib.sha256("\n".join(sentences).encode()).digest()
