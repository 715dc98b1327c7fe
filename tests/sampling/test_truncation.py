"""Pairs that do not fit lose tokens of the longer span, at either end with equal chances."""

from __future__ import annotations

import random
from collections import Counter
from math import comb

import pytest

from bert_trainer.dataset.sentence_pairs import truncate_pair
from confidence import FIVE_SIGMA, SkewedRandom, chi_square_z, share_z
from plain_sampling import plain_truncate


def removed_in_front(rng: random.Random, *, pairs: int) -> int:
    """Tokens taken from the front of A and of B, of 2,000 that go from each pair."""
    fronts = 0
    for _ in range(pairs):
        tokens_a, tokens_b = list(range(1100)), list(range(1100))
        truncate_pair(tokens_a, tokens_b, 200, rng)
        fronts += tokens_a[0] + tokens_b[0]
    return fronts


def test_fronts_and_backs_lose_equally_often() -> None:
    # 400,000 tokens: a standard deviation is 0.08 points.
    assert abs(share_z(removed_in_front(random.Random(1), pairs=200), 400_000, 0.5)) < FIVE_SIGMA
    assert share_z(removed_in_front(SkewedRandom(1, chance=0.5), pairs=200), 400_000, 0.5) > FIVE_SIGMA


def test_every_token_is_decided_on_its_own() -> None:
    rng = random.Random(2)
    fronts: Counter[int] = Counter()
    for _ in range(20_000):
        tokens_a, tokens_b = list(range(10)), [99]
        truncate_pair(tokens_a, tokens_b, 5, rng)
        assert tokens_a == list(range(tokens_a[0], tokens_a[0] + 4))
        fronts[tokens_a[0]] += 1
    # Six coins, not one for all of them.
    expected = [20_000 * comb(6, k) / 64 for k in range(7)]
    assert abs(chi_square_z([fronts[k] for k in range(7)], expected)) < FIVE_SIGMA


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
    for seed in range(20):
        tokens_a, tokens_b = list(range(length_a)), list(range(length_b))
        truncate_pair(tokens_a, tokens_b, capacity, random.Random(seed))
        assert (len(tokens_a), len(tokens_b)) == left


def test_what_is_left_is_what_token_by_token_cutting_leaves() -> None:
    sizes = random.Random(3)
    for seed in range(2000):
        capacity = sizes.randint(2, 60)
        spans = [[*range(sizes.randint(1, 70))] for _ in range(2)]
        ours, plain = ([list(span) for span in spans] for _ in range(2))
        ours_rng, plain_rng = random.Random(seed), random.Random(seed)
        truncate_pair(ours[0], ours[1], capacity, ours_rng)
        front, back = plain_truncate(plain[0], plain[1], capacity, plain_rng)
        assert ours == plain
        assert front + back == max(0, sum(map(len, spans)) - capacity)
        assert ours_rng.getstate() == plain_rng.getstate()
