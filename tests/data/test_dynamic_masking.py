"""Masks drawn by the loader depend on seed, epoch and sample number alone, and have BERT's shares."""

from __future__ import annotations

import numpy as np
import pytest

from bert_trainer.dataset.sampling.dynamic_masking import DynamicMasking
from bert_trainer.dataset.sampling.masking import MaskingRule
from bert_trainer.dataset.shards.ragged import RaggedSamples
from walks import unmasked_rows

N, LENGTH, P = 400, 103, 20


def rule(whole_words: bool = False) -> DynamicMasking:
    going_on = np.arange(1000) % 2 == 1
    masking = MaskingRule(
        probability=0.15,
        max_predictions=P,
        vocabulary_size=1000,
        cls_id=2,
        sep_id=3,
        mask_id=4,
        continuations=going_on if whole_words else None,
    )
    return DynamicMasking(seed=7, rule=masking)


def bare() -> RaggedSamples:
    rng = np.random.default_rng(1)
    tokens = rng.integers(10, 1000, (N, LENGTH)).astype(np.uint16)
    tokens[:, 0], tokens[:, 50], tokens[:, -1] = 2, 3, 3
    none = np.zeros(0, np.uint16)
    counts = np.full(N, LENGTH)
    return RaggedSamples(tokens.ravel(), counts, counts // 2, np.zeros(N, np.int8), np.zeros(N, np.int64), none, none)


@pytest.mark.parametrize("whole_words", [False, True])
def test_any_split_of_the_rows_gives_the_same_masks(whole_words: bool) -> None:
    numbers = np.arange(N) * 3
    lengths = np.random.default_rng(3).integers(5, LENGTH, N)
    rows_of_any_length = unmasked_rows([[*row[: length - 1], 3] for row, length in zip(
        bare().tokens.reshape(N, LENGTH).tolist(), lengths.tolist(), strict=True
    )])  # fmt: skip
    whole = rule(whole_words).mask(rows_of_any_length, 2, numbers)
    order = np.random.default_rng(2).permutation(N)
    parts = [
        rule(whole_words).mask(rows_of_any_length.take(rows), 2, numbers[rows]) for rows in np.array_split(order, 150)
    ]
    joined, wanted = RaggedSamples.concatenate(parts), whole.take(order)
    np.testing.assert_array_equal(joined.tokens, wanted.tokens)
    np.testing.assert_array_equal(joined.masked_lm_positions, wanted.masked_lm_positions)
    assert (rule(whole_words).mask(rows_of_any_length, 3, numbers).tokens != whole.tokens).any()


def test_masks_have_bert_s_numbers_and_shares() -> None:
    masked = rule().mask(bare(), 0, np.arange(N))
    assert set(masked.prediction_counts.tolist()) == {15}
    np.testing.assert_array_equal(masked.unmasked().tokens, bare().tokens)
    shown = masked.tokens[masked.prediction_places()]
    # 6,000 predictions: 4 standard deviations are below 0.021.
    assert abs((shown == 4).mean() - 0.8) < 0.021
    assert abs((shown == masked.masked_lm_ids).mean() - 0.1) < 0.021
    assert not np.isin(masked.masked_lm_ids, (2, 3)).any()


def test_whole_words_are_masked_together() -> None:
    masked = rule(whole_words=True).mask(bare(), 0, np.arange(N))
    assert masked.prediction_counts.max() <= 15
    chosen = np.zeros(len(masked.tokens), np.bool_)
    chosen[masked.prediction_places()] = True
    tokens = bare().tokens
    plain = ~np.isin(tokens, (2, 3))
    goes_on = (tokens[1:] % 2 == 1) & plain[1:] & plain[:-1]
    assert (chosen[1:] == chosen[:-1])[goes_on].all()
    assert masked.prediction_counts.mean() > 12


def test_a_row_whose_longest_word_no_row_can_take_has_predictions_all_the_same() -> None:
    # 30 rows of one word of 25 pieces, more than P, and twenty single ones.
    word = [10, *[11] * 24, *[12, 14] * 10]
    tokens = np.array([[2, *word, 3]] * 30).astype(np.uint16)
    counts = np.full(30, tokens.shape[1])
    none = np.zeros(0, np.uint16)
    rows = RaggedSamples(tokens.ravel(), counts, counts, np.zeros(30, np.int8), np.zeros(30, np.int64), none, none)
    masked = rule(whole_words=True).mask(rows, 0, np.arange(30))
    assert masked.prediction_counts.min() >= 1
    assert masked.masked_lm_positions.min() > 25


def test_masks_are_those_of_release_0_1() -> None:
    # A run that resumes with another release goes on with the same masks; 10**10 takes more than 32 bits.
    counts = np.array([12, 20, 31])
    rows = [[2, *range(100, 105), 3, *range(200, 200 + count - 8), 3] for count in counts]
    masking = MaskingRule(
        probability=0.15, max_predictions=20, vocabulary_size=1000, cls_id=2, sep_id=3, mask_id=4, unk_id=101
    )
    masked = DynamicMasking(seed=7, rule=masking).mask(unmasked_rows(rows), 3, np.array([5, 1, 10**10]))
    assert masked.prediction_counts.tolist() == [2, 3, 5]
    assert masked.masked_lm_positions.tolist() == [1, 8, 9, 16, 18, 10, 15, 19, 20, 26]
    assert masked.masked_lm_ids.tolist() == [100, 201, 202, 209, 211, 203, 208, 212, 213, 219]
    assert masked.tokens[masked.prediction_places()].tolist() == [4, 4, 4, 4, 4, 4, 4, 212, 4, 4]
