"""Which tokens are masked, and by what, has the chances of BERT's rule; every bound is shown to catch one point.

Labels, [MASK] and replacements cannot be mistaken for one another here: labels and [MASK] are no entries of the
vocabulary, so that what happened to a token is seen and not inferred.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations
from math import comb

import numpy as np
import pytest
from numpy.typing import NDArray

from bert_trainer.dataset.sampling import masking
from bert_trainer.dataset.sampling.masking import MaskingRule
from bert_trainer.system.random_bits import RandomBits
from confidence import FIVE_SIGMA, chi_square_z, share_z
from plain_sampling import PlainPair, PlainSettings, plain_sample
from walks import bits_of, mask_copies

Tokens = NDArray[np.int32]

LABEL, MASK = 5000, 6000
# Replacements may be 2 and 3 as well, which are [CLS] and [SEP].
VOCABULARY_SIZE = 1000


def rule(probability: float = 0.15, max_predictions: int = 2000) -> MaskingRule:
    return MaskingRule(
        probability=probability,
        max_predictions=max_predictions,
        vocabulary_size=VOCABULARY_SIZE,
        cls_id=2,
        sep_id=3,
        mask_id=MASK,
    )


def row(num_tokens: int) -> list[int]:
    """[CLS], a third of the words, [SEP], the other words, [SEP]."""
    first = num_tokens // 3
    return [2, *[LABEL] * first, 3, *[LABEL] * (num_tokens - 3 - first), 3]


def shown_tokens(bits: RandomBits, *, num_tokens: int, rows: int, probability: float) -> Tokens:
    """What stands at all selected positions."""
    masked = mask_copies(row(num_tokens), rows, rule(probability, num_tokens), bits)
    return np.take_along_axis(masked.tokens, masked.positions, axis=1)[masked.positions > 0]


def treatment_z(shown: Tokens) -> tuple[float, float]:
    """z-values of [MASK] being 80 % of all, and of unchanged tokens being 50 % of the rest."""
    masks, kept = count(shown, MASK), count(shown, LABEL)
    return share_z(masks, len(shown), 0.8), share_z(kept, len(shown) - masks, 0.5)


def count(shown: Tokens, token: int) -> int:
    return int((shown == token).sum())


def test_eighty_percent_become_mask_and_half_of_the_rest_stays() -> None:
    shown = shown_tokens(bits_of(1), num_tokens=128, rows=16_000, probability=0.15)
    assert len(shown) == 16_000 * 19
    # Standard deviations at 304,000 positions: 0.07 points of the 80 %, 0.20 points of the 50 %.
    assert max(map(abs, treatment_z(shown))) < FIVE_SIGMA
    for hits in (count(shown, LABEL), int((shown < VOCABULARY_SIZE).sum())):
        assert abs(share_z(hits, len(shown), 0.1)) < FIVE_SIGMA


def dense(bits: RandomBits, rows: int) -> Tokens:
    # What becomes of a position does not depend on how many there are; this gives the most of them at once.
    return shown_tokens(bits, num_tokens=1003, rows=rows, probability=0.99)


@pytest.fixture(scope="module")
def dense_tokens() -> Tokens:
    return dense(bits_of(2), rows=800)


def test_one_point_more_or_less_of_any_treatment_would_be_seen(
    dense_tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert max(map(abs, treatment_z(dense_tokens))) < FIVE_SIGMA
    # 81 % [MASK]: 11 standard deviations at 198,600 positions; 51 % kept: 8 at the 159,000 that 800 rows leave.
    with monkeypatch.context() as patch:
        patch.setattr(masking, "MASK_SHARE", 0.81)
        assert treatment_z(dense(bits_of(2), rows=200))[0] > FIVE_SIGMA
    with monkeypatch.context() as patch:
        patch.setattr(masking, "KEEP_SHARE", 0.2 * 0.51)
        assert treatment_z(dense(bits_of(2), rows=800))[1] > FIVE_SIGMA


def replaced(shown: Tokens) -> list[int]:
    """How often each entry of the vocabulary replaced a token."""
    counts = np.bincount(shown[~np.isin(shown, (MASK, LABEL))], minlength=VOCABULARY_SIZE)
    assert len(counts) == VOCABULARY_SIZE
    return list(map(int, counts))


def tenths_z(counts: list[int]) -> float:
    return chi_square_z([sum(counts[k : k + 100]) for k in range(0, 1000, 100)], [sum(counts) / 10] * 10)


def test_replacements_are_spread_evenly_over_the_whole_vocabulary(dense_tokens: Tokens) -> None:
    counts = replaced(dense_tokens)
    # About 79 of each, give or take 9: a single entry left out would be a count of 0.
    assert min(counts) > 79 - FIVE_SIGMA * 9
    assert max(counts) < 79 + FIVE_SIGMA * 9
    assert abs(chi_square_z(counts, [sum(counts) / 1000] * 1000)) < FIVE_SIGMA
    assert abs(tenths_z(counts)) < FIVE_SIGMA
    # The first tenth gets 0.9 points too many: 8 standard deviations of its count at the 79,000 that 800 rows replace.
    moved = sum(counts) // 100
    skewed = [count + moved // 100 if token < 100 else count for token, count in enumerate(counts)]
    assert tenths_z(skewed) > FIVE_SIGMA


def test_treatments_of_one_row_are_independent() -> None:
    masked = mask_copies(row(128), 10_000, rule(max_predictions=20), bits_of(4))
    assert ((masked.positions > 0).sum(axis=1) == 19).all()
    masks_per_row = (masked.tokens == MASK).sum(axis=1).tolist()
    # Of 19 tokens, k become [MASK] with the binomial chance; rows with 9 or fewer count as one cell.
    binomial = [comb(19, k) * 0.8**k * 0.2 ** (19 - k) for k in range(20)]
    counts = Counter(max(9, masks) for masks in masks_per_row)
    expected = [10_000 * sum(binomial[:10]), *(10_000 * chance for chance in binomial[10:])]
    assert abs(chi_square_z([counts[k] for k in range(9, 20)], expected)) < FIVE_SIGMA


def position_z(counts: Counter[int], rows: int, candidates: list[int], chosen: int) -> tuple[float, float]:
    """z-values of all candidates being equally likely, together and for the most unusual one.

    ``chosen`` of the candidates are drawn without putting back, which makes counts less spread than by chance.
    """
    assert set(counts) <= set(candidates)
    chance = chosen / len(candidates)
    values = [counts[position] for position in candidates]
    scale = (1 - chance) * len(candidates) / (len(candidates) - 1)
    together = chi_square_z(values, [rows * chance] * len(candidates), scale=scale)
    return together, max((share_z(value, rows, chance) for value in values), key=abs)


@pytest.mark.parametrize(("num_tokens", "rows", "chosen"), [(20, 60_000, 3), (128, 12_000, 19), (512, 3_000, 77)])
def test_every_word_of_a_row_is_equally_likely_and_separators_are_never_chosen(
    num_tokens: int, rows: int, chosen: int
) -> None:
    tokens = row(num_tokens)
    positions = mask_copies(tokens, rows, rule(max_predictions=80), bits_of(5)).positions
    counts = Counter(positions[positions > 0].tolist())
    candidates = [position for position in range(num_tokens) if tokens[position] == LABEL]
    assert len(candidates) == num_tokens - 3
    assert max(map(abs, position_z(counts, rows, candidates, chosen))) < FIVE_SIGMA


def test_one_point_more_for_a_single_word_would_be_seen() -> None:
    rng = random.Random(6)
    candidates = list(range(1, 18))
    counts: Counter[int] = Counter()
    for _ in range(60_000):
        chosen = rng.sample(candidates, 3)
        # With chance 3/17 the first word is there already; taking it in 1.2 % of the other rows adds a point.
        if 1 not in chosen and rng.random() < 0.0122:
            chosen[0] = 1
        counts.update(chosen)
    assert position_z(counts, 60_000, candidates, 3)[1] > FIVE_SIGMA


def test_every_set_of_positions_is_equally_likely() -> None:
    tokens = [2, LABEL, LABEL, LABEL, 3, LABEL, LABEL, LABEL, 3]
    rows = mask_copies(tokens, 40_000, rule(probability=0.34, max_predictions=6), bits_of(7)).positions
    assert ((rows > 0).sum(axis=1) == 3).all()
    sets = Counter(map(tuple, rows[:, :3].tolist()))
    expected = list(combinations((1, 2, 3, 5, 6, 7), 3))
    assert set(sets) == set(expected)
    assert abs(chi_square_z([sets[chosen] for chosen in expected], [40_000 / 20] * 20)) < FIVE_SIGMA


def test_the_plain_implementation_passes_the_same_bounds() -> None:
    rng = random.Random(8)
    settings = PlainSettings(vocabulary=list(range(VOCABULARY_SIZE)), mask_id=MASK, max_predictions=20)
    shown: list[int] = []
    counts: Counter[int] = Counter()
    for _ in range(6_000):
        sample = plain_sample(PlainPair([LABEL] * 42, [LABEL] * 83, False, 0, 0, 125), settings, rng)
        shown += [sample.tokens[position] for position in sample.masked_positions]
        counts.update(sample.masked_positions)
    assert max(map(abs, treatment_z(np.array(shown)))) < FIVE_SIGMA
    candidates = [position for position in range(128) if position not in (0, 43, 127)]
    assert max(map(abs, position_z(counts, 6_000, candidates, 19))) < FIVE_SIGMA
