"""The package's sampling on documents written as lists, one answer per walk or row, for tests to look at."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.sampling.masking import MaskingRule, mask_rows
from bert_trainer.dataset.sampling.sentence_pairs import SentencePairs, Walks, draw_pairs
from bert_trainer.dataset.sampling.shard_samples import ShardTask, assemble_shard, draw_shard
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.tokens.token_documents import TokenDocuments
from bert_trainer.system.random_bits import RandomBits

Documents = Sequence[Sequence[Sequence[int]]]


@dataclass(frozen=True)
class Pair:
    """Two spans of token ids."""

    tokens_a: list[int]
    tokens_b: list[int]
    is_random_next: bool


@dataclass(frozen=True)
class Masked:
    """One sequence after masking."""

    tokens: list[int]
    positions: list[int]
    labels: list[int]


@dataclass(frozen=True)
class MaskedTokens:
    """N masked sequences of T tokens, at most P predictions each."""

    tokens: NDArray[np.int32]
    """(N, T)."""
    positions: NDArray[np.int32]
    """(N, P): ascending, then 0."""


def bits_of(seed: int) -> RandomBits:
    """Return a stream for a number."""
    return RandomBits(str(seed))


def flat(documents: Documents) -> TokenDocuments:
    """Return documents as the package keeps them."""
    return TokenDocuments(
        np.array([token for document in documents for sentence in document for token in sentence], dtype=np.int32),
        np.array([len(sentence) for document in documents for sentence in document], dtype=np.int64),
        np.array([len(document) for document in documents], dtype=np.int64),
        draws=np.zeros(len(documents), dtype=np.int32),
    )


def pairs_of_walks(
    documents: TokenDocuments, indexes: Sequence[int], bits: RandomBits, *, capacity: int, short: float = 0.0
) -> SentencePairs:
    """Walk once over document ``index`` for each index and return all pairs as arrays, ordered by walk."""
    every = np.ones(len(indexes), dtype=np.int64)
    pool = documents.num_documents
    walks = Walks(np.array(indexes, dtype=np.int64), 0 * every, pool * every)
    return draw_pairs(documents.bounds, walks, bits, capacity=capacity, short_sequence_probability=short)


def walk_many(
    documents: Documents, indexes: Sequence[int], bits: RandomBits, *, capacity: int, short: float = 0.0
) -> list[list[Pair]]:
    """Walk once over ``documents[index]`` for each index and return the pairs of each walk."""
    tokens = flat(documents)
    pairs = pairs_of_walks(tokens, indexes, bits, capacity=capacity, short=short)
    found: list[list[Pair]] = [[] for _ in indexes]
    columns = (pairs.walks, pairs.first_a, pairs.tokens_a, pairs.first_b, pairs.tokens_b, pairs.is_random_next)
    ids = tokens.ids.tolist()
    for walk, a, num_a, b, num_b, is_random in zip(*(column.tolist() for column in columns), strict=True):
        found[walk].append(Pair(ids[a : a + num_a], ids[b : b + num_b], is_random))
    return found


def walk(documents: Documents, index: int, seed: int, *, capacity: int, short: float = 0.0) -> list[Pair]:
    """Walk once over one document."""
    return walk_many(documents, [index], bits_of(seed), capacity=capacity, short=short)[0]


def samples_of(documents: Documents, task: ShardTask, bits: RandomBits) -> Samples:
    """Make the samples of a shard whose groups all hold these documents."""
    blocks = assemble_shard(draw_shard([[flat(documents)]] * len(task.groups), task, bits), task)
    return RaggedSamples.concatenate(list(blocks)).to_padded(task.sequence_length, task.masking.max_predictions)


def unmasked_rows(rows: Sequence[Sequence[int]]) -> RaggedSamples:
    """Return rows of any lengths, without predictions."""
    counts, none = np.array(list(map(len, rows))), np.zeros(len(rows), np.int64)
    tokens = np.array([token for row in rows for token in row], dtype=np.int32)
    return RaggedSamples(tokens, counts, counts, none.astype(np.int8), none, tokens[:0], tokens[:0])


def mask_many(rows: Sequence[Sequence[int]], rule: MaskingRule, bits: RandomBits) -> list[Masked]:
    """Mask rows of any lengths."""
    masked = mask_rows(unmasked_rows(rows), bits.words(len(rows)), rule)
    parts = (masked.take(slice(row, row + 1)) for row in range(len(rows)))
    return [Masked(it.tokens.tolist(), it.masked_lm_positions.tolist(), it.masked_lm_ids.tolist()) for it in parts]


def mask_copies(row: Sequence[int], rows: int, rule: MaskingRule, bits: RandomBits) -> MaskedTokens:
    """Mask the same row many times; arrays, for tests that count over hundreds of thousands of positions."""
    padded = mask_rows(unmasked_rows([row] * rows), bits.words(rows), rule).to_padded(len(row), rule.max_predictions)
    return MaskedTokens(padded.input_ids, padded.masked_lm_positions)
