"""Sentence pairs for next-sentence prediction, from many documents at once, on flat arrays.

A walk over a document is ``create_instances_from_document`` of BERT's ``create_pretraining_data``, with NVIDIA's
correction: if ten draws found no other document, the pair is labelled as not random. A always precedes B in the text
when B follows it; pairs are not swapped (that is ALBERT's task). Masks and special tokens are added later.

The script handles one document after the other. Here all walks advance together: each step takes one pair from every
document that has sentences left, so a step costs a few array operations instead of a Python loop. Random numbers are
therefore drawn in another order than the script's: samples have the same distribution, not the same values.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.tokens.token_documents import Bounds
from bert_trainer.system.random_bits import RandomBits

Numbers = NDArray[np.int64]

# Both as in create_pretraining_data.
_DRAWS_OF_OTHER_DOCUMENT = 10
RANDOM_NEXT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class SentencePairs:
    """N pairs of non-empty spans of tokens: their offsets and lengths, not the tokens themselves."""

    walks: Numbers
    """(N,): the walk that made the pair."""
    first_a: Numbers
    """(N,): A's first token in the documents' ``ids``."""
    tokens_a: Numbers
    """(N,): A's length."""
    first_b: Numbers
    """(N,)."""
    tokens_b: Numbers
    """(N,)."""
    is_random_next: NDArray[np.bool_]
    """(N,): B comes from another document; label 1."""

    def __len__(self) -> int:
        """Return N."""
        return len(self.walks)

    def take(self, rows: Numbers | slice) -> SentencePairs:
        """Return the given pairs in the given order; copies, or views for a slice."""
        return SentencePairs(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Walks:
    """W traversals of one document each. A random B comes from the documents of the same pool."""

    documents: Numbers
    """(W,): the document of the walk."""
    pool_first: Numbers
    """(W,): the first document of the pool."""
    pool_size: Numbers
    """(W,): documents in the pool, the walk's own one included."""

    @classmethod
    def over(cls, pools: list[int]) -> Walks:
        """Return one walk over every document. pools: the sizes of consecutive pools of documents."""
        sizes = np.array(pools, dtype=np.int64)
        firsts = np.cumsum(sizes) - sizes
        return cls(np.arange(sizes.sum()), np.repeat(firsts, sizes), np.repeat(sizes, sizes))

    def repeat(self, times: Numbers) -> Walks:
        """Repeat each walk. times: (W,), 0 leaves it out."""
        return Walks(*(np.repeat(getattr(self, field.name), times) for field in fields(self)))


def draw_pairs(
    bounds: Bounds, walks: Walks, bits: RandomBits, *, capacity: int, short_sequence_probability: float
) -> SentencePairs:
    """Complete all walks and return their pairs, ordered by walk and by their position in the text.

    Args:
        bounds: of the documents of all walks.
        walks: what to traverse.
        bits: the shard's random stream.
        capacity: most tokens of A and B together, the sequence length less 3; at least 2.
        short_sequence_probability: share of walks that aim at a random shorter length.
    """
    # The target length is drawn once per walk, in short ones uniformly from 2 to the capacity.
    is_short = bits.hits(short_sequence_probability, len(walks.documents))
    shorter = 2 + bits.below(np.full(len(is_short), capacity - 1))
    targets = np.where(is_short, shorter, capacity)
    sentences, ends = bounds.documents[walks.documents], bounds.documents[walks.documents + 1]
    active = np.arange(len(walks.documents))
    steps: list[SentencePairs] = []
    while len(active):
        pairs, sentences = _step(bounds, walks, bits, active, sentences, ends, targets)
        steps.append(_truncate(pairs, capacity, bits))
        left = sentences < ends
        active, sentences, ends, targets = active[left], sentences[left], ends[left], targets[left]
    together = {
        field.name: np.concatenate([getattr(step, field.name) for step in steps] or [np.zeros(0, dtype=np.int64)])
        for field in fields(SentencePairs)
    }
    return SentencePairs(**together).take(np.argsort(together["walks"], kind="stable"))


def _step(
    bounds: Bounds,
    walks: Walks,
    bits: RandomBits,
    active: Numbers,
    sentences: Numbers,
    ends: Numbers,
    targets: Numbers,
) -> tuple[SentencePairs, Numbers]:
    """Take the next pair of every active walk, untruncated; return it and the sentence where the walk continues.

    active: (W,), numbers of the walks. sentences, ends, targets: (W,), of those walks: the next sentence, the one
    behind the last, the target length.
    """
    starts = bounds.sentences[sentences]
    # The chunk: sentences until they have at least ``targets`` tokens, or the document ends.
    chunk_ends = np.minimum(np.searchsorted(bounds.sentences, starts + targets), ends)
    chunks = chunk_ends - sentences
    # A is at least one sentence, and all but the last at most. Bits are drawn for chunks of one sentence, too, so that
    # the stream advances by one word per active walk.
    splits = sentences + 1 + np.where(chunks > 1, bits.below(np.maximum(chunks - 1, 1)), 0)
    tokens_a = bounds.sentences[splits] - starts
    # A chunk of one sentence has no B of its own.
    is_random = (chunks == 1) | bits.hits(RANDOM_NEXT_SHARE, len(active))
    first_b = bounds.sentences[splits]
    tokens_b = bounds.sentences[chunk_ends] - first_b
    rows = np.flatnonzero(is_random)
    others = _draw_other_documents(walks, active[rows], bits)
    first_b[rows], tokens_b[rows] = _draw_spans(bounds, others, targets[rows] - tokens_a[rows], bits)
    # NVIDIA's correction: a B from the walk's own document is not labelled as random. The unused part of the chunk is
    # put back all the same.
    is_random_next = np.zeros(len(active), dtype=np.bool_)
    is_random_next[rows] = others != walks.documents[active[rows]]
    # With a random B the second part of the chunk was not used: the walk continues there.
    return (
        SentencePairs(active, starts, tokens_a, first_b, tokens_b, is_random_next),
        np.where(is_random, splits, chunk_ends),
    )


def _draw_other_documents(walks: Walks, numbers: Numbers, bits: RandomBits) -> Numbers:
    """Draw a document of the pool for each walk until it is not the walk's own, ten times at most."""
    others = walks.documents[numbers].copy()
    rows = np.arange(len(numbers))
    for _ in range(_DRAWS_OF_OTHER_DOCUMENT):
        others[rows] = walks.pool_first[numbers[rows]] + bits.below(walks.pool_size[numbers[rows]])
        rows = rows[others[rows] == walks.documents[numbers[rows]]]
        if not len(rows):
            break
    return others


def _draw_spans(bounds: Bounds, others: Numbers, wanted: Numbers, bits: RandomBits) -> tuple[Numbers, Numbers]:
    """Return offset and length of the sentences from a random one on, until there are enough or the document ends.

    wanted: tokens; at least one sentence is taken, even if A has reached the target.
    """
    firsts, ends = bounds.documents[others], bounds.documents[others + 1]
    sentences = firsts + bits.below(ends - firsts)
    starts = bounds.sentences[sentences]
    stops = np.minimum(np.searchsorted(bounds.sentences, starts + np.maximum(wanted, 1)), ends)
    return starts, bounds.sentences[stops] - starts


def _truncate(pairs: SentencePairs, capacity: int, bits: RandomBits) -> SentencePairs:
    # Each removed token comes off the front or the back by a fair coin, so the front loses a binomial number.
    lengths = truncated_lengths(pairs.tokens_a, pairs.tokens_b, capacity)
    fronts = [
        bits.coins(before - after) for before, after in zip((pairs.tokens_a, pairs.tokens_b), lengths, strict=True)
    ]
    return SentencePairs(
        pairs.walks, pairs.first_a + fronts[0], lengths[0], pairs.first_b + fronts[1], lengths[1], pairs.is_random_next
    )


def truncated_lengths(tokens_a: Numbers, tokens_b: Numbers, capacity: int) -> tuple[Numbers, Numbers]:
    """Return the lengths of both spans, (N,) each, after truncation to ``capacity`` tokens together.

    The result of ``truncate_seq_pair``, which removes one token at a time from the longer span, from B if both are
    equal, in closed form.
    """
    # B keeps capacity - left_a: if both spans have to shrink, A gets the odd token.
    left_a = np.minimum(tokens_a, np.maximum(capacity - tokens_b, (capacity + 1) // 2))
    fits = tokens_a + tokens_b <= capacity
    return np.where(fits, tokens_a, left_a), np.where(fits, tokens_b, capacity - left_a)
