"""Pairs of text spans for next-sentence prediction: all walks over many documents at once, on flat arrays.

The walk over a document is BERT's ``create_pretraining_data``, with NVIDIA's correction: where ten draws
found no other document, the pair is labelled as not random. Span A always comes first in the text when B
follows it; there is no swapping (that is ALBERT's task). No masking and no special tokens here.

All walks take a step together: each step cuts one pair from every document that has sentences left.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.tokens.token_documents import TokenDocuments
from bert_trainer.system.random_bits import RandomBits

Numbers = NDArray[np.int64]

_DRAWS_OF_OTHER_DOCUMENT = 10
RANDOM_NEXT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class SentencePairs:
    """N pairs of non-empty spans of tokens. Where spans begin and how long they are, not the tokens."""

    walks: Numbers
    """(N,): the walk that a pair is from."""
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


@dataclass(frozen=True, slots=True)
class Walks:
    """W passes over a document each; B is drawn from the documents that are dealt with together."""

    documents: Numbers
    """(W,): the document walked over."""
    pool_first: Numbers
    """(W,): the first document that B may come from."""
    pool_size: Numbers
    """(W,): how many there are, the walk's own one included."""

    @classmethod
    def over(cls, pools: list[int]) -> Walks:
        """Walk once over every document, where so many belong together, then so many, and so on."""
        sizes = np.array(pools, dtype=np.int64)
        firsts = np.cumsum(sizes) - sizes
        return cls(np.arange(sizes.sum()), np.repeat(firsts, sizes), np.repeat(sizes, sizes))

    def repeat(self, times: Numbers) -> Walks:
        """Take each walk so many times, (W,), 0 included."""
        return Walks(*(np.repeat(getattr(self, field.name), times) for field in fields(self)))


def draw_pairs(
    documents: TokenDocuments, walks: Walks, bits: RandomBits, *, capacity: int, short_sequence_probability: float
) -> SentencePairs:
    """Take every walk to its end and return all pairs, by walk and in the order of the text.

    capacity: tokens of A and B together, that is the sequence length less 3; at least 2.
    """
    is_short = bits.hits(short_sequence_probability, len(walks.documents))
    shorter = 2 + bits.below(np.full(len(is_short), capacity - 1))
    targets = np.where(is_short, shorter, capacity)
    sentences = documents.document_bounds[walks.documents]
    ends = documents.document_bounds[walks.documents + 1]
    active = np.arange(len(walks.documents))
    steps: list[SentencePairs] = []
    while len(active):
        pairs, sentences = _step(documents, walks, bits, active, sentences, ends, targets)
        steps.append(_truncate(pairs, capacity, bits))
        left = sentences < ends
        active, sentences, ends, targets = active[left], sentences[left], ends[left], targets[left]
    together = {
        field.name: np.concatenate([getattr(step, field.name) for step in steps] or [np.zeros(0, dtype=np.int64)])
        for field in fields(SentencePairs)
    }
    order = np.argsort(together["walks"], kind="stable")
    return SentencePairs(**{name: values[order] for name, values in together.items()})


def _step(
    documents: TokenDocuments,
    walks: Walks,
    bits: RandomBits,
    active: Numbers,
    sentences: Numbers,
    ends: Numbers,
    targets: Numbers,
) -> tuple[SentencePairs, Numbers]:
    """Cut the next pair from every active walk, untruncated; return it and the sentence where the walk goes on.

    active: (W,), numbers of the walks. sentences, ends, targets: (W,), of those walks: the next sentence, the
    one behind the last, the tokens aimed at.
    """
    bounds = documents.sentence_bounds
    starts = bounds[sentences]
    # The chunk: sentences until the target is reached or the document ends.
    chunk_ends = np.minimum(np.searchsorted(bounds, starts + targets), ends)
    chunks = chunk_ends - sentences
    splits = sentences + 1 + np.where(chunks > 1, bits.below(np.maximum(chunks - 1, 1)), 0)
    tokens_a = bounds[splits] - starts
    is_random = (chunks == 1) | bits.hits(RANDOM_NEXT_SHARE, len(active))
    first_b, tokens_b = bounds[splits], bounds[chunk_ends] - bounds[splits]
    rows = np.flatnonzero(is_random)
    others = _draw_other_documents(walks, active[rows], bits)
    first_b[rows], tokens_b[rows] = _draw_spans(documents, others, targets[rows] - tokens_a[rows], bits)
    is_random_next = np.zeros(len(active), dtype=np.bool_)
    is_random_next[rows] = others != walks.documents[active[rows]]
    # The sentences meant for B were not used where it is a random one: they come again.
    return (
        SentencePairs(active, starts, tokens_a, first_b, tokens_b, is_random_next),
        np.where(is_random, splits, chunk_ends),
    )


def _draw_other_documents(walks: Walks, numbers: Numbers, bits: RandomBits) -> Numbers:
    """Draw for each walk until it is another document, ten times at most; so the answer may be its own."""
    others = walks.documents[numbers].copy()
    rows = np.arange(len(numbers))
    for _ in range(_DRAWS_OF_OTHER_DOCUMENT):
        others[rows] = walks.pool_first[numbers[rows]] + bits.below(walks.pool_size[numbers[rows]])
        rows = rows[others[rows] == walks.documents[numbers[rows]]]
        if not len(rows):
            break
    return others


def _draw_spans(
    documents: TokenDocuments, others: Numbers, wanted: Numbers, bits: RandomBits
) -> tuple[Numbers, Numbers]:
    """Return first token and length of sentences from a random one on, until enough or the document ends.

    wanted: tokens; one sentence is taken even where none is wanted.
    """
    bounds = documents.sentence_bounds
    firsts, ends = documents.document_bounds[others], documents.document_bounds[others + 1]
    sentences = firsts + bits.below(ends - firsts)
    starts = bounds[sentences]
    stops = np.minimum(np.searchsorted(bounds, starts + np.maximum(wanted, 1)), ends)
    return starts, bounds[stops] - starts


def _truncate(pairs: SentencePairs, capacity: int, bits: RandomBits) -> SentencePairs:
    lengths = truncated_lengths(pairs.tokens_a, pairs.tokens_b, capacity)
    fronts = [
        bits.coins(before - after) for before, after in zip((pairs.tokens_a, pairs.tokens_b), lengths, strict=True)
    ]
    return SentencePairs(
        pairs.walks, pairs.first_a + fronts[0], lengths[0], pairs.first_b + fronts[1], lengths[1], pairs.is_random_next
    )


def truncated_lengths(tokens_a: Numbers, tokens_b: Numbers, capacity: int) -> tuple[Numbers, Numbers]:
    """Return the lengths, (N,) each, that are left when both spans together have ``capacity`` tokens at most.

    As if tokens went one by one from the longer span (B where both are equal). Each of them goes from the front
    or the back with equal chances, so the two are cut at both ends alike.
    """
    left_a = np.minimum(tokens_a, np.maximum(capacity - tokens_b, (capacity + 1) // 2))
    fits = tokens_a + tokens_b <= capacity
    return np.where(fits, tokens_a, left_a), np.where(fits, tokens_b, capacity - left_a)
