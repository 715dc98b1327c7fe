"""How many tokens are predicted is a function of the length alone: min(P, max(1, 15 % rounded half to even))."""

from __future__ import annotations

import pytest

from bert_trainer.dataset.sampling.masking import count_predictions
from plain_sampling import plain_prediction_count
from sampling_cases import CLS, SEP, coded_documents, masking_rule, mixed_documents, original_rows, shard_task
from walks import bits_of, mask_many, samples_of

LENGTHS = range(5, 513)


def exact_count(num_tokens: int, max_predictions: int) -> int:
    """15 % in whole numbers: 100ths beyond a half round up, exactly a half to the even neighbour."""
    whole, hundredths = divmod(15 * num_tokens, 100)
    if hundredths > 50 or (hundredths == 50 and whole % 2 == 1):
        whole += 1
    return min(max_predictions, max(1, whole))


@pytest.mark.parametrize("max_predictions", [20, 76, 80])
def test_the_count_is_exact_for_every_length(max_predictions: int) -> None:
    rule = masking_rule(max_predictions)
    rows = []
    for num_tokens in LENGTHS:
        tokens = [CLS, *[500] * (num_tokens // 2 - 1), SEP, *[500] * (num_tokens - num_tokens // 2 - 2), SEP]
        assert len(tokens) == num_tokens
        expected = exact_count(num_tokens, max_predictions)
        assert count_predictions(num_tokens, rule) == expected
        assert plain_prediction_count(num_tokens, max_predictions) == expected
        rows.append(tokens)
    masked = mask_many(rows, rule, bits_of(0))
    assert [len(row.positions) for row in masked] == [exact_count(length, max_predictions) for length in LENGTHS]


def test_halves_are_rounded_to_even_and_not_up_or_down() -> None:
    rule = masking_rule(80)
    halves = [num_tokens for num_tokens in LENGTHS if (15 * num_tokens) % 100 == 50]
    assert halves == list(range(10, 513, 20))
    counts = [count_predictions(num_tokens, rule) for num_tokens in halves]
    assert counts[:6] == [2, 4, 8, 10, 14, 16]
    assert all(count % 2 == 0 for count in counts)


def cut_lengths(max_predictions: int, longest: int) -> dict[int, int]:
    """Lengths that lose predictions to the limit, with how many."""
    full, rule = masking_rule(10**6), masking_rule(max_predictions)
    losses = {length: count_predictions(length, full) - count_predictions(length, rule) for length in LENGTHS}
    return {length: loss for length, loss in losses.items() if loss and length <= longest}


def test_the_published_limits_cut_what_they_are_known_to_cut() -> None:
    # 510 tokens are 76.5, which is 76; 511 and 512 are 77.
    assert cut_lengths(76, 512) == {511: 1, 512: 1}
    assert cut_lengths(80, 512) == {}
    assert cut_lengths(20, 128) == {}
    assert cut_lengths(18, 128) == dict.fromkeys(range(124, 129), 1)


@pytest.mark.parametrize(
    ("sequence_length", "max_predictions", "full_row"), [(128, 20, 19), (128, 76, 19), (512, 76, 76), (512, 80, 77)]
)
def test_rows_of_a_shard_hold_the_count_of_their_length(
    sequence_length: int, max_predictions: int, full_row: int
) -> None:
    documents = mixed_documents(3, documents=8, max_sentences=60, max_tokens=25)
    task = shard_task(sequence_length=sequence_length, max_predictions=max_predictions, passes=5, short=0.4)
    samples = samples_of(documents, task, bits_of(1))
    lengths = samples.input_mask.sum(axis=1).tolist()
    counts = (samples.masked_lm_positions > 0).sum(axis=1).tolist()
    assert counts == [exact_count(length, max_predictions) for length in lengths]
    assert {count for length, count in zip(lengths, counts, strict=True) if length == sequence_length} == {full_row}
    assert len(set(lengths)) > 20


def test_the_shortest_row_has_one_prediction() -> None:
    # At 15 % rounding alone gives that much; the lower limit is for smaller shares.
    assert count_predictions(5, masking_rule(20, probability=0.05)) == 1
    samples = samples_of(coded_documents([[1], [1]]), shard_task(), bits_of(0))
    assert [len(row) for row in original_rows(samples)] == [5, 5]
    assert (samples.masked_lm_positions > 0).sum(axis=1).tolist() == [1, 1]
    assert set(samples.masked_lm_positions[:, 0].tolist()) <= {1, 3}
