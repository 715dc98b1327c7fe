"""Masks follow BERT's 80/10/10 rule, its count, and never touch [CLS] and [SEP]."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from bert_trainer.dataset.masking import MaskingRule, count_predictions, mask_tokens

RULE = MaskingRule(probability=0.15, max_predictions=20, vocabulary_size=1000, cls_id=2, sep_id=3, mask_id=4)
TOKENS = [2, *range(100, 160), 3, *range(200, 264), 3]


@pytest.mark.parametrize(
    ("num_tokens", "max_predictions", "expected"),
    # 10, 30 and 50 tokens give 1.5, 4.5 and 7.5, which Python rounds to the even neighbour.
    [
        (5, 20, 1),
        (10, 20, 2),
        (30, 20, 4),
        (50, 20, 8),
        (128, 20, 19),
        (128, 10, 10),
        (512, 80, 77),
        (512, 76, 76),
    ],
)
def test_the_count_is_the_rounded_share_within_its_limits(num_tokens: int, max_predictions: int, expected: int) -> None:
    rule = MaskingRule(
        probability=0.15, max_predictions=max_predictions, vocabulary_size=9, cls_id=2, sep_id=3, mask_id=4
    )
    assert count_predictions(num_tokens, rule) == expected


def test_one_token_is_masked_however_small_the_probability_is() -> None:
    rule = MaskingRule(probability=0.001, max_predictions=5, vocabulary_size=9, cls_id=2, sep_id=3, mask_id=4)
    assert len(mask_tokens([2, 7, 3, 8, 3], rule, random.Random(0)).positions) == 1


def test_no_more_are_masked_than_there_are_candidates() -> None:
    rule = MaskingRule(probability=0.99, max_predictions=9, vocabulary_size=9, cls_id=2, sep_id=3, mask_id=4)
    assert mask_tokens([2, 7, 3, 8, 3], rule, random.Random(0)).positions == [1, 3]


def test_labels_put_back_give_the_input_which_stays_as_it_was() -> None:
    tokens = list(TOKENS)
    for seed in range(50):
        masked = mask_tokens(tokens, RULE, random.Random(seed))
        assert tokens == TOKENS
        assert masked.positions == sorted(set(masked.positions))
        restored = list(masked.tokens)
        for position, label in zip(masked.positions, masked.labels, strict=True):
            restored[position] = label
        assert restored == TOKENS
        assert not {0, 61, 126} & set(masked.positions)


def test_shares_of_mask_kept_and_random_tokens_are_bert_s() -> None:
    rng = random.Random(1)
    kinds: Counter[str] = Counter()
    replacements: Counter[int] = Counter()
    positions: Counter[int] = Counter()
    for _ in range(4000):
        masked = mask_tokens(TOKENS, RULE, rng)
        positions.update(masked.positions)
        for position, label in zip(masked.positions, masked.labels, strict=True):
            shown = masked.tokens[position]
            kinds["mask" if shown == 4 else "kept" if shown == label else "random"] += 1
            if shown not in (4, label):
                replacements[shown] += 1
    total = sum(kinds.values())
    assert total == 4000 * 19
    assert kinds["mask"] / total == pytest.approx(0.8001, abs=0.005)
    assert kinds["kept"] / total == pytest.approx(0.1001, abs=0.004)
    assert kinds["random"] / total == pytest.approx(0.0998, abs=0.004)
    # Any entry of the vocabulary may stand in, special ones too.
    assert {0, 1, 2, 3, 999} <= set(replacements)
    assert max(replacements) <= 999
    assert max(positions.values()) < 1.25 * min(positions.values())
