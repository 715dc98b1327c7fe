"""Documents as flat arrays: all tokens end to end, with the bounds of sentences and documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.tokens.word_cache import ragged_indexes

Ids = NDArray[Any]
"""uint16 or int32, as ``id_kind``."""


@dataclass(frozen=True, slots=True)
class TokenDocuments:
    """D documents of S sentences of N tokens together. No document and no sentence is empty."""

    ids: Ids
    """(N,): token ids."""
    sentence_bounds: NDArray[np.int64]
    """(S + 1,): the first token of each sentence, and N."""
    document_bounds: NDArray[np.int64]
    """(D + 1,): the first sentence of each document, and S."""
    draws: NDArray[np.int32]
    """(D,): how often each is drawn, all passes together; 0: once in every pass."""

    @property
    def num_documents(self) -> int:
        """Return D."""
        return len(self.document_bounds) - 1

    @classmethod
    def from_lengths(
        cls,
        ids: Ids,
        sentence_lengths: NDArray[np.integer],
        document_lengths: NDArray[np.integer],
        draws: NDArray[np.int32] | None = None,
    ) -> TokenDocuments:
        """Create documents from tokens per sentence (S,) and sentences per document (D,).

        draws: None: each is drawn once in every pass.
        """
        if draws is None:
            draws = np.zeros(len(document_lengths), dtype=np.int32)
        return cls(ids, _bounds(sentence_lengths), _bounds(document_lengths), draws)

    def take(self, documents: NDArray[np.int64]) -> TokenDocuments:
        """Return some of the documents, in the given order; copies."""
        # Two ragged gathers, documents to sentences and sentences to tokens, without a loop over either.
        document_lengths = np.diff(self.document_bounds)[documents]
        sentences = ragged_indexes(self.document_bounds[documents], document_lengths)
        sentence_lengths = np.diff(self.sentence_bounds)[sentences]
        tokens = ragged_indexes(self.sentence_bounds[sentences], sentence_lengths)
        return self.from_lengths(self.ids[tokens], sentence_lengths, document_lengths, self.draws[documents])

    @classmethod
    def concatenate(cls, parts: Sequence[TokenDocuments]) -> TokenDocuments:
        """Join documents end to end; at least one part."""
        return cls.from_lengths(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([np.diff(part.sentence_bounds) for part in parts]),
            np.concatenate([np.diff(part.document_bounds) for part in parts]),
            np.concatenate([part.draws for part in parts]),
        )


def _bounds(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def id_kind(vocabulary_size: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """Return the smallest type that holds every id of a vocabulary."""
    return np.dtype(np.uint16) if vocabulary_size <= 1 << 16 else np.dtype(np.int32)
