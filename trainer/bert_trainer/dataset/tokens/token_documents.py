"""Documents as flat arrays: all tokens end to end, with the lengths of sentences and documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.tokens.word_cache import ragged_indexes

Ids = NDArray[Any]
"""uint16 or int32, as ``id_kind``."""


class Bounds(NamedTuple):
    """Where D documents and their S sentences begin and end: all that says where to cut, without a token."""

    sentences: NDArray[np.int64]
    """(S + 1,): the first token of each sentence, and the number of tokens."""
    documents: NDArray[np.int64]
    """(D + 1,): the first sentence of each document, and S."""


@dataclass(frozen=True)
class TokenDocuments:
    """D documents of S sentences of N tokens together. No document and no sentence is empty."""

    ids: Ids
    """(N,): token ids."""
    sentence_lengths: NDArray[np.integer]
    """(S,): tokens of each sentence."""
    document_lengths: NDArray[np.integer]
    """(D,): sentences of each document."""
    draws: NDArray[np.int32]
    """(D,): how often each is drawn, all passes together; 0: once in every pass."""

    # Only where they are asked for: most documents are merely written, read and joined.

    @cached_property
    def bounds(self) -> Bounds:
        """Where the documents and their sentences begin and end."""
        return Bounds(_bounds(self.sentence_lengths), _bounds(self.document_lengths))

    @property
    def num_documents(self) -> int:
        """Return D."""
        return len(self.document_lengths)

    def take(self, documents: NDArray[np.int64]) -> TokenDocuments:
        """Return some of the documents, in the given order; copies."""
        # Two ragged gathers, documents to sentences and sentences to tokens, without a loop over either.
        document_lengths = self.document_lengths[documents]
        sentences = ragged_indexes(self.bounds.documents[documents], document_lengths)
        sentence_lengths = self.sentence_lengths[sentences]
        tokens = ragged_indexes(self.bounds.sentences[sentences], sentence_lengths)
        return TokenDocuments(self.ids[tokens], sentence_lengths, document_lengths, self.draws[documents])

    @classmethod
    def concatenate(cls, parts: Sequence[TokenDocuments]) -> TokenDocuments:
        """Join documents end to end; at least one part."""
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.sentence_lengths for part in parts]),
            np.concatenate([part.document_lengths for part in parts]),
            np.concatenate([part.draws for part in parts]),
        )


def _bounds(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def id_kind(vocabulary_size: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """Return the smallest type that holds every id of a vocabulary."""
    return np.dtype(np.uint16) if vocabulary_size <= 1 << 16 else np.dtype(np.int32)
