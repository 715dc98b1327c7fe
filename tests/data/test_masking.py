"""Masks follow BERT's count, never touch [CLS] and [SEP], and can be undone; their rates are tested in sampling."""

from __future__ import annotations

import numpy as np
import pytest

from bert_trainer.dataset.sampling.masking import MaskingRule, choose_smallest, count_predictions
from bert_trainer.system.random_bits import mix64
from sampling_cases import masking_rule
from walks import bits_of, mask_many

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
    assert len(mask_many([[2, 7, 3, 8, 3]], rule, bits_of(0))[0].positions) == 1


def test_no_more_are_masked_than_there_are_candidates() -> None:
    rule = MaskingRule(probability=0.99, max_predictions=9, vocabulary_size=9, cls_id=2, sep_id=3, mask_id=4)
    assert mask_many([[2, 7, 3, 8, 3]], rule, bits_of(0))[0].positions == [1, 3]


def test_labels_put_back_give_the_input() -> None:
    for masked in mask_many([TOKENS] * 50, masking_rule(), bits_of(1)):
        assert masked.positions == sorted(set(masked.positions))
        restored = list(masked.tokens)
        for position, label in zip(masked.positions, masked.labels, strict=True):
            restored[position] = label
        assert restored == TOKENS
        assert len(masked.positions) == 19
        assert not {0, 61, 126} & set(masked.positions)


def whole_words(max_predictions: int, probability: float = 0.15) -> MaskingRule:
    """Entries from 500 on go on with a word."""
    return MaskingRule(
        probability=probability,
        max_predictions=max_predictions,
        vocabulary_size=1000,
        cls_id=2,
        sep_id=3,
        mask_id=4,
        continuations=np.arange(1000) >= 500,
    )


def test_words_are_never_masked_in_part() -> None:
    # Words of one to four pieces; the second span begins inside a word, as truncation leaves it.
    spans = [[10, 11, 501, 12, 502, 503, 13, 504, 505, 506], [507, 508, 20, 21, 509]]
    row = [2, *spans[0], 3, *spans[1], 3]
    words = [{1}, {2, 3}, {4, 5, 6}, {7, 8, 9, 10}, {12, 13}, {14}, {15, 16}]
    taken = [0] * len(words)
    for masked in mask_many([row] * 4000, whole_words(9, probability=0.28), bits_of(2)):
        chosen = set(masked.positions)
        assert 1 <= len(chosen) <= 5
        whole = [word for word in words if word <= chosen]
        assert set().union(*whole) == chosen
        for number, word in enumerate(words):
            taken[number] += word <= chosen
    # Every word is taken now and then, short ones more often: they fit where others do not.
    assert min(taken) > 300
    assert taken[0] > taken[3]


def test_a_word_beyond_the_number_wanted_is_skipped() -> None:
    row = [2, 10, 501, 502, 503, 3, 11, 3]
    # One prediction: the only word that fits is the last.
    assert {tuple(masked.positions) for masked in mask_many([row] * 50, whole_words(1), bits_of(3))} == {(6,)}


def test_words_of_one_piece_are_masked_as_often_as_tokens_are() -> None:
    masked = mask_many([[2, *[10] * 60, 3, *[11] * 65, 3]] * 20, whole_words(20), bits_of(4))
    assert {len(one.positions) for one in masked} == {19}


def test_a_row_of_words_that_are_all_too_long_gets_one() -> None:
    row = [2, 10, 501, 502, 3, 11, 503, 3]
    masked = mask_many([row] * 200, whole_words(20), bits_of(5))
    assert {tuple(one.positions) for one in masked} == {(1, 2, 3), (5, 6)}
    assert {tuple(one.positions) for one in mask_many([row] * 200, whole_words(1), bits_of(5))} == {(1,), (5,)}


@pytest.mark.parametrize("words", [False, True])
def test_rows_without_tokens_get_no_prediction_wherever_they_are(words: bool) -> None:
    rule = whole_words(20) if words else masking_rule()
    row = [2, *range(10, 40), 3, 41, 3]
    masked = mask_many([[], row, [], row, []], rule, bits_of(5))
    assert [len(one.positions) for one in masked] == [0, 5, 0, 5, 0]
    assert [len(one.tokens) for one in masked] == [0, 34, 0, 34, 0]
    assert mask_many([[]], rule, bits_of(5))[0].positions == []


def test_draws_whose_upper_halves_are_equal_are_told_apart() -> None:
    half = 1 << 32
    rows = [[5 * half + 9, 5 * half + 2, 7, 5 * half + 4], [9, 7, 6], [], [2**64 - 1, 2**64 - 2]]
    draws = np.array(sum(rows, []), dtype=np.uint64)
    chosen = choose_smallest(draws, np.array(list(map(len, rows))), np.array([2, 2, 1, 1]))
    assert chosen.tolist() == [1, 2, 5, 6, 8]
    # More are wanted than there are.
    assert choose_smallest(draws, np.array([4, 3, 0, 2]), np.array([4, 9, 1, 3])).tolist() == list(range(9))


def plain_words(row: list[int], key: int, rule: MaskingRule) -> list[int]:
    """The chosen positions, one word after the other as in ``create_pretraining_data``."""
    words = words_of(row, rule)
    places = np.array([word[0] for word in words], dtype=np.uint64)
    draws = mix64(np.uint64(key) + 2 * places).tolist()
    # Half of the bits, but for the lowest ones, which hold the number of the word.
    keys = [draw >> 32 >> len(words).bit_length() for draw in draws]
    in_order = [words[number] for _, number in sorted(zip(keys, range(len(words)), strict=True))]
    wanted = count_predictions(len(row), rule)
    chosen: list[int] = []
    for word in in_order:
        if len(chosen) + len(word) <= wanted:
            chosen += word
    return sorted(chosen or in_order[0][: rule.max_predictions])


def words_of(row: list[int], rule: MaskingRule) -> list[list[int]]:
    assert rule.continuations is not None
    words: list[list[int]] = []
    for position, token in enumerate(row):
        if token in (rule.cls_id, rule.sep_id):
            continue
        if words and words[-1][-1] == position - 1 and rule.continuations[token]:
            words[-1].append(position)
        else:
            words.append([position])
    return words


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_whole_words_are_chosen_as_one_after_the_other_would(share: float) -> None:
    rng = np.random.default_rng(3)
    rule = whole_words(8)
    rows = []
    for length in rng.integers(20, 90, 300).tolist():
        row = np.where(rng.random(length) < share, rng.integers(500, 1000, length), rng.integers(10, 500, length))
        row[[0, rng.integers(1, length - 1), -1]] = 2, 3, 3
        rows.append(row.tolist())
    keys = bits_of(6).words(len(rows))
    masked = mask_many(rows, rule, bits_of(6))
    expected = [plain_words(row, int(key), rule) for row, key in zip(rows, keys, strict=True)]
    assert [it.positions for it in masked] == expected
    # Among long words there are rows with no word for what is left.
    full = [len(it) == count_predictions(len(row), rule) for it, row in zip(expected, rows, strict=True)]
    assert all(full) == (share == 0.1)
