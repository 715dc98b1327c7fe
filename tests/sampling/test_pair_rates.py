"""Rates of the walk over a document against their exact expectations, worked out without drawing anything.

Sentences of equal length make the walk a Markov chain of the sentences that are left, so the expected number of
pairs and of random ones follow by recursion; sentences of one token make a walk's target visible.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from bert_trainer.dataset.sampling.sentence_pairs import SentencePairs
from bert_trainer.system.random_bits import RandomBits
from confidence import FIVE_SIGMA, SkewedBits, chi_square_z, mean_z, share_z
from sampling_cases import coded_documents
from walks import bits_of, flat, pairs_of_walks, walk_many

CAPACITY = 13


# The walk's own document is as long as the longest chunk, since only the first pair counts; others are longer.
DOCUMENTS = flat(coded_documents([[1] * CAPACITY, *[[1] * 60] * 1000]))


def first_pairs(bits: RandomBits, draws: int, short: float) -> SentencePairs:
    """First pairs of walks over a document of one-token sentences; ten draws always find another document."""
    pairs = pairs_of_walks(DOCUMENTS, [0] * draws, bits, capacity=CAPACITY, short=short)
    first = np.unique(pairs.walks, return_index=True)[1]
    assert len(first) == draws
    return SentencePairs(**{field.name: getattr(pairs, field.name)[first] for field in fields(pairs)})


def test_a_chunk_of_several_sentences_gets_a_random_next_half_of_the_time() -> None:
    def z(bits: RandomBits) -> float:
        return share_z(int(first_pairs(bits, 130_000, short=0.0).is_random_next.sum()), 130_000, 0.5)

    # A standard deviation is 0.14 points: 51 % is 7.2 of them away.
    assert abs(z(bits_of(21))) < FIVE_SIGMA
    assert z(SkewedBits(21, chance=0.5)) > FIVE_SIGMA


def test_one_walk_in_ten_aims_at_a_uniform_shorter_length() -> None:
    def targets(bits: RandomBits) -> Counter[int]:
        # B follows A in these, so together they are the chunk: exactly the target.
        pairs = first_pairs(bits, 100_000, short=0.1)
        return Counter((pairs.tokens_a + pairs.tokens_b)[~pairs.is_random_next].tolist())

    # 2 ... 13, both included: the longest is drawn as a short one, too.
    chances = dict.fromkeys(range(2, CAPACITY), 0.1 / 12) | {CAPACITY: 0.9 + 0.1 / 12}
    counts = targets(bits_of(22))
    total = sum(counts.values())
    assert set(counts) == set(chances)
    expected = [total * chance for chance in chances.values()]
    assert abs(chi_square_z([counts[length] for length in chances], expected)) < FIVE_SIGMA
    assert abs(share_z(total - counts[CAPACITY], total, 0.1 * 11 / 12)) < FIVE_SIGMA
    # 11 % short walks instead of 10 %: 7 standard deviations.
    skewed = targets(SkewedBits(22, chance=0.1))
    assert share_z(sum(skewed.values()) - skewed[CAPACITY], sum(skewed.values()), 0.1 * 11 / 12) > FIVE_SIGMA


def test_the_first_span_ends_behind_any_sentence_but_the_last() -> None:
    def z(bits: RandomBits) -> float:
        counts = Counter(first_pairs(bits, 75_000, short=0.0).tokens_a.tolist())
        assert set(counts) == set(range(1, CAPACITY))
        return chi_square_z([counts[length] for length in range(1, CAPACITY)], [75_000 / 12] * 12)

    assert abs(z(bits_of(23))) < FIVE_SIGMA
    # One draw in a hundred that takes a single sentence.
    assert z(SkewedBits(23, first_tenth=True)) > FIVE_SIGMA


def expectations(sentences: int, per_chunk: int, found: Fraction) -> tuple[Fraction, Fraction]:
    """Pairs, and pairs labelled random, of one walk; found: chance that ten draws find another document."""

    @cache
    def expect(left: int) -> tuple[Fraction, Fraction]:
        if left == 0:
            return Fraction(0), Fraction(0)
        chunk = min(per_chunk, left)
        if chunk == 1:
            pairs, labels = expect(left - 1)
            return 1 + pairs, found + labels
        after_random = [expect(left - a) for a in range(1, chunk)]
        after_actual = expect(left - chunk)
        pairs, labels = (
            Fraction(sum(after[which] for after in after_random), 2 * (chunk - 1)) + after_actual[which] / 2
            for which in (0, 1)
        )
        return 1 + pairs, found / 2 + labels

    return expect(sentences)


@pytest.mark.parametrize(
    ("sentences", "per_chunk", "documents"), [(30, 6, 3), (12, 4, 2), (7, 2, 4), (5, 5, 2), (9, 1, 2)]
)
def test_pairs_and_random_nexts_of_a_document_are_as_many_as_the_chain_implies(
    sentences: int, per_chunk: int, documents: int
) -> None:
    pairs, labels = expectations(sentences, per_chunk, 1 - Fraction(1, documents**10))
    shard = coded_documents([[5] * sentences] * documents)
    walks = [
        [pair.is_random_next for pair in pairs]
        for pairs in walk_many(shard, [0] * 4000, bits_of(24), capacity=5 * per_chunk)
    ]
    if per_chunk == 1:
        assert pairs == sentences
        assert all(len(walk) == sentences for walk in walks)
    else:
        assert abs(mean_z([len(walk) for walk in walks], float(pairs))) < FIVE_SIGMA
    # Above one half: leftover single sentences, and walks that a random next makes longer.
    rate = float(labels / pairs)
    assert 0.5 < rate <= 1
    assert abs(mean_z([sum(walk) - rate * len(walk) for walk in walks], 0.0)) < FIVE_SIGMA
    half_again = [sum(walk) - 0.5 * len(walk) for walk in walks]
    assert mean_z(half_again, 0.0) > FIVE_SIGMA
