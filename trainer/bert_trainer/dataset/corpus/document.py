"""The unit of a corpus: a document is a name and its sentences, in order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

LONGEST_DOCUMENT = 4 << 20
"""Characters of a document, and for each sentence what it takes beside them. Several copies of a document are in
memory at a time, and its shingles."""
PIECE_COST = 64
"""Of a sentence or line, beside its characters."""


@dataclass(frozen=True, slots=True)
class Document:
    """Text that belongs together; sentences are non-empty, stripped and hold no line break."""

    name: str
    """Where it came from, for messages."""
    sentences: tuple[str, ...]
    weight: float = 1.0
    """How often it is drawn, relative to the build's ``dupe_factor``; above 0."""


def in_documents(sentences: Iterable[str], characters: int) -> Iterator[tuple[str, ...]]:
    """Part the sentences of a text where they would be too long for one document; without any, yield nothing.

    characters: of all of them at most.
    """
    # Two characters for a sentence is the least, a letter and a full stop; nearly all text goes this way.
    if characters + characters // 2 * PIECE_COST <= LONGEST_DOCUMENT:
        if whole := tuple(sentences):
            yield whole
        return
    waiting: list[str] = []
    cost = 0
    for sentence in sentences:
        cost += len(sentence) + PIECE_COST
        if cost > LONGEST_DOCUMENT and waiting:
            yield tuple(waiting)
            waiting, cost = [], len(sentence) + PIECE_COST
        waiting.append(sentence)
    if waiting:
        yield tuple(waiting)


def digest_sentences(sentences: Sequence[str]) -> bytes:
    """Return 32 bytes that stand for a document's text, whatever its name is."""
    return hashlib.sha256("\n".join(sentences).encode()).digest()
