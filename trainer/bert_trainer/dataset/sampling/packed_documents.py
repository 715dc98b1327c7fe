"""Documents cut into pieces and packed into rows that are nearly full: nothing is thrown away, nothing comes twice.

Each row takes the longest piece that is left, then the longest one that fits behind it, and so on: greedy best fit, as
ModernBERT packs its batches (Warner et al. 2024), over all pieces of a shard instead of a buffer of some. Lengths alone
decide how pieces go together, chance which of those of one length. Special tokens and masks are added later.

Letters: P pieces, N rows of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.tokens.token_documents import Bounds
from bert_trainer.dataset.tokens.word_cache import ragged_indexes
from bert_trainer.system.random_bits import RandomBits

Numbers = NDArray[np.int64]

PIECE_SPECIAL_TOKENS = 2
"""[CLS] and [SEP]."""


@dataclass(frozen=True, slots=True)
class PackedDocuments:
    """N rows of P pieces: offsets and lengths, not the tokens themselves."""

    first: Numbers
    """(P,): each piece's first token in the documents' ``ids``, row after row."""
    tokens: Numbers
    """(P,): each piece's length."""
    pieces: Numbers
    """(N,): pieces of each row."""

    def __len__(self) -> int:
        """Return N."""
        return len(self.pieces)

    def take(self, rows: Numbers | slice) -> PackedDocuments:
        """Return the given rows in the given order; copies."""
        pieces = self.pieces[rows]
        places = ragged_indexes((np.cumsum(self.pieces) - self.pieces)[rows], pieces)
        return PackedDocuments(self.first[places], self.tokens[places], pieces)


def pack_documents(bounds: Bounds, times: Numbers, bits: RandomBits, *, row_tokens: int) -> PackedDocuments:
    """Pack documents into rows of at most ``row_tokens``, special tokens counted; at least 3.

    Args:
        bounds: Of the documents.
        times: Of each, how often it is packed, (D,).
        bits: The shard's random stream.
        row_tokens: Of a row.
    """
    starts, capacity = bounds.sentences[bounds.documents], row_tokens - PIECE_SPECIAL_TOKENS
    first, lengths = np.repeat(starts[:-1], times), np.repeat(np.diff(starts), times)
    # All pieces of a document but the last are full.
    counts = -(-lengths // capacity)
    before = ragged_indexes(np.zeros_like(counts), counts) * capacity
    first = np.repeat(first, counts) + before
    tokens = np.minimum(np.repeat(lengths, counts) - before, capacity)
    sizes, pieces = _fill_rows(tokens + PIECE_SPECIAL_TOKENS, row_tokens)
    # Pieces in the order of their lengths, those of one length shuffled, go where such lengths were placed.
    shuffled = np.argsort(bits.words(len(tokens)), kind="stable")
    order = np.empty_like(shuffled)
    order[np.argsort(sizes, kind="stable")] = shuffled[np.argsort(tokens[shuffled], kind="stable")]
    return PackedDocuments(first[order], tokens[order], pieces)


def _fill_rows(sizes: Numbers, row_tokens: int) -> tuple[Numbers, Numbers]:
    """Return all sizes in the order in which rows take them, (P,), and how many of them each row takes, (N,)."""
    left = np.bincount(sizes, minlength=row_tokens + 1).tolist()
    # Bit n is set while pieces of n tokens are left: the longest that fits is the highest bit below a limit.
    lengths = sum(1 << size for size, count in enumerate(left) if count)
    taken: list[int] = []
    pieces: list[int] = []
    while lengths:
        space, before = row_tokens, len(taken)
        while fitting := lengths & ((2 << space) - 1):
            size = fitting.bit_length() - 1
            taken.append(size)
            space -= size
            left[size] -= 1
            if not left[size]:
                lengths ^= 1 << size
        pieces.append(len(taken) - before)
    return np.array(taken, np.int64), np.array(pieces, np.int64)
