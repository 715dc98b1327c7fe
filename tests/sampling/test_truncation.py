"""Pairs that do not fit lose tokens of the longer span, at either end with equal chances."""

from __future__ import annotations

import random
from collections import Counter
from math import comb

import numpy as np
import pytest

from bert_trainer.dataset.sampling.sentence_pairs import truncated_lengths
from bert_trainer.system.random_bits import RandomBits
from confidence import FIVE_SIGMA, SkewedBits, chi_square_z, share_z
from plain_sampling import plain_truncate
from walks import bits_of, walk_many


def left_of_long_spans(bits: RandomBits, *, walks: int, length: int, capacity: int) -> list[list[int]]:
    """Spans of the first pair of each walk, cut out of ``range(length)``, which A and B both are."""
    documents = [[[*range(length)]]]
    pairs = [pairs[0] for pairs in walk_many(documents, [0] * walks, bits, capacity=capacity)]
    return [tokens for pair in pairs for tokens in (pair.tokens_a, pair.tokens_b)]


def removed_in_front(bits: RandomBits, *, pairs: int) -> int:
    """Tokens taken from the front of A and of B, of 2,000 that go from each pair."""
    return sum(tokens[0] for tokens in left_of_long_spans(bits, walks=pairs, length=1100, capacity=200))


def test_fronts_and_backs_lose_equally_often() -> None:
    # 400,000 tokens: a standard deviation is 0.08 points.
    assert abs(share_z(removed_in_front(bits_of(1), pairs=200), 400_000, 0.5)) < FIVE_SIGMA
    assert share_z(removed_in_front(SkewedBits(1, coin=True), pairs=200), 400_000, 0.5) > FIVE_SIGMA


def test_every_token_is_decided_on_its_own() -> None:
    spans = left_of_long_spans(bits_of(2), walks=10_000, length=10, capacity=8)
    assert all(tokens == list(range(tokens[0], tokens[0] + 4)) for tokens in spans)
    fronts = Counter(tokens[0] for tokens in spans)
    # Six coins, not one for all of them.
    expected = [20_000 * comb(6, k) / 64 for k in range(7)]
    assert abs(chi_square_z([fronts[k] for k in range(7)], expected)) < FIVE_SIGMA


@pytest.mark.parametrize("tosses", [1, 63, 64, 65, 127, 128, 129, 1000])
def test_coins_are_tossed_as_often_as_asked(tosses: int) -> None:
    heads = bits_of(4).coins(np.full(20_000, tosses))
    assert heads.min() >= 0
    assert heads.max() <= tosses
    assert abs(share_z(int(heads.sum()), 20_000 * tosses, 0.5)) < FIVE_SIGMA
    # Their variance is that of independent coins: to 1 % of itself at 20,000 values.
    assert heads.var() == pytest.approx(tosses / 4, rel=0.05)
    assert bits_of(4).coins(np.array([0, 5, 0]))[[0, 2]].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("length_a", "length_b", "capacity", "left"),
    [
        (3, 3, 6, (3, 3)),
        (3, 3, 5, (3, 2)),
        (3, 3, 4, (2, 2)),
        (4, 3, 6, (3, 3)),
        (3, 4, 6, (3, 3)),
        (9, 2, 6, (4, 2)),
        (2, 9, 6, (2, 4)),
        (50, 1, 2, (1, 1)),
        (1, 50, 2, (1, 1)),
        (50, 50, 21, (11, 10)),
        (2, 2, 9, (2, 2)),
    ],
)
def test_the_longer_one_is_cut_and_the_second_of_equals(
    length_a: int, length_b: int, capacity: int, left: tuple[int, int]
) -> None:
    lengths = truncated_lengths(np.array([length_a]), np.array([length_b]), capacity)
    assert (int(lengths[0][0]), int(lengths[1][0])) == left


def test_what_is_left_is_what_token_by_token_cutting_leaves() -> None:
    rng = random.Random(3)
    for capacity in (2, 3, 4, 7, 10, 21, 60):
        sizes = [(a, b) for a in range(1, 41) for b in range(1, 41)]
        left_a, left_b = truncated_lengths(*(np.array(column) for column in zip(*sizes, strict=True)), capacity)
        for (a, b), *left in zip(sizes, left_a.tolist(), left_b.tolist(), strict=True):
            spans = [[*range(a)], [*range(b)]]
            plain_truncate(spans[0], spans[1], capacity, rng)
            assert left == list(map(len, spans))
