"""Texts to tokens, and tokens to rows of [CLS] A [SEP] (B [SEP])."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.tokens.token_documents import id_kind
from bert_trainer.dataset.tokens.word_cache import WordCache, ragged_indexes
from bert_trainer.dataset.tokens.wordpiece import Encoder, Vocabulary

_TEXTS_AT_A_TIME = 1 << 14
_CHARACTERS_AT_A_TIME = 1 << 22
"""Of texts whose tokens are in memory before they are cut."""
_ROWS_AT_A_TIME = 1 << 14
"""Whose tokens' places are in memory together, 16 bytes each."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Pieces:
    """Runs of one array of token ids; they may overlap."""

    ids: NDArray[np.integer]
    """(n,) uint16 or int32"""
    starts: NDArray[np.int64]
    """(R,): where each run begins."""
    counts: NDArray[np.int64]
    """(R,): tokens of each."""

    def cut(self, counts: NDArray[np.int64]) -> Pieces:
        """Return the first tokens of each run, as many as given."""
        return Pieces(self.ids, self.starts, counts)

    def take(self, runs: NDArray[np.int64]) -> Pieces:
        """Return the runs of the given numbers."""
        return Pieces(self.ids, self.starts[runs], self.counts[runs])


@dataclass(frozen=True)
class LocatedTokens:
    """The tokens of some texts, and where they stand."""

    ids: NDArray[np.integer]
    """(n,) uint16 or int32: of all texts, end to end."""
    bounds: NDArray[np.int32]
    """(n, 2): of each token the first character, and the one behind it, in its text as it is given."""
    counts: NDArray[np.int64]
    """(texts,)"""

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(texts,): offset of every text's first token."""
        return _exclusive_sums(self.counts)


def unknown_share(samples: RaggedSamples, vocabulary: Vocabulary) -> float:
    """Return the share of [UNK] in the rows' tokens, [CLS] and [SEP] aside, in [0, 1]; 0 of no tokens."""
    is_special = np.isin(samples.tokens, (vocabulary.cls_id, vocabulary.sep_id))
    num_tokens = len(samples.tokens) - int(is_special.sum())
    return int((samples.tokens == vocabulary.unk_id).sum()) / max(1, num_tokens)


def tokenize_texts(
    texts: Sequence[str], vocabulary: Vocabulary, *, lower_case: bool, most_tokens: int
) -> tuple[Pieces, NDArray[np.int64]]:
    """Return the first tokens of every text, at most so many, and how many each text has, (texts,); it may be none.

    Cost: 10 µs of a core for a sentence of 15 words, where most words were seen before; as much for each character of
    writing without spaces. Memory: the tokens, and those of some megabytes of text before they are cut.
    """
    encoder = Encoder(vocabulary, lower_case=lower_case)
    cache = WordCache(encoder.encode_words, encoder.split)
    kind = id_kind(vocabulary.size)
    parts, lengths = [np.zeros(0, dtype=kind)], [np.zeros(0, dtype=np.int64)]
    for batch in _batches(texts):
        ids, counts = cache.look_up_texts(batch)
        kept = np.minimum(counts, most_tokens)
        parts.append(ids[ragged_indexes(_exclusive_sums(counts), kept)].astype(kind))
        lengths.append(counts)
    counts = np.concatenate(lengths)
    kept = np.minimum(counts, most_tokens)
    return Pieces(np.concatenate(parts), _exclusive_sums(kept), kept), counts


def locate_tokens(texts: Sequence[str], vocabulary: Vocabulary, *, lower_case: bool) -> LocatedTokens:
    """Return all tokens of every text with their places."""
    encoder = Encoder(vocabulary, lower_case=lower_case)
    cache = WordCache(encoder.locate_words)
    parts, lengths = [np.zeros((0, 3), dtype=np.int32)], [np.zeros(0, dtype=np.int64)]
    for batch in _batches(texts):
        words, words_of_text = encoder.split(batch)
        values, word_counts = cache.look_up(words)
        # Where each word begins in its text: behind the words before it and what is between; in the next text from 0.
        lengths_of_words = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
        word_starts = _exclusive_sums(lengths_of_words + encoder.between_words)
        first_words = _exclusive_sums(words_of_text)
        word_starts -= np.repeat(word_starts[first_words], words_of_text)
        values[:, 1:] += np.repeat(word_starts, word_counts)[:, None].astype(np.int32)
        parts.append(values)
        lengths.append(np.add.reduceat(word_counts, first_words))
    joined = np.concatenate(parts)
    return LocatedTokens(joined[:, 0].astype(id_kind(vocabulary.size)), joined[:, 1:], np.concatenate(lengths))


def join_rows(first: Pieces, second: Pieces, is_pair: NDArray[np.bool_], vocabulary: Vocabulary) -> RaggedSamples:
    """Return [CLS] A [SEP] B [SEP], or [CLS] A [SEP] where there is no second text.

    first, second, is_pair: of R rows; runs of ``second`` that no row has are empty.
    """
    first_segment_counts = first.counts + 2
    token_counts = first_segment_counts + np.where(is_pair, second.counts + 1, 0)
    row_starts = _exclusive_sums(token_counts)
    # Everything that no text is written over stays [SEP].
    tokens = np.full(int(token_counts.sum()), vocabulary.sep_id, dtype=id_kind(vocabulary.size))
    tokens[row_starts] = vocabulary.cls_id
    for places, pieces in ((row_starts + 1, first), (row_starts + first_segment_counts, second)):
        for start in range(0, len(token_counts), _ROWS_AT_A_TIME):
            part = slice(start, start + _ROWS_AT_A_TIME)
            counts = pieces.counts[part]
            tokens[ragged_indexes(places[part], counts)] = pieces.ids[ragged_indexes(pieces.starts[part], counts)]
    none = np.zeros(0, dtype=np.uint16)
    rows = len(token_counts)
    return RaggedSamples(
        tokens=tokens,
        token_counts=token_counts,
        first_segment_counts=first_segment_counts,
        next_sentence_labels=np.zeros(rows, dtype=np.int8),
        prediction_counts=np.zeros(rows, dtype=np.int64),
        masked_lm_positions=none,
        masked_lm_ids=none,
    )


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        # Half of a surrogate pair, which JSON can write, is no character. BERT's clean-up drops what stands for it
        # here; no other character moves.
        batch.append(text if text.isascii() else _SURROGATE.sub(_REPLACEMENT, text))
        characters += len(text)
        if len(batch) == _TEXTS_AT_A_TIME or characters >= _CHARACTERS_AT_A_TIME:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _exclusive_sums(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many come before each, (n,)."""
    sums: NDArray[np.int64] = np.cumsum(counts) - counts
    return sums
