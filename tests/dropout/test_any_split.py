"""The same elements of a sample are dropped for any ranks, micro-batches, row order and padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import dropout_bits
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.model.batch import make_batch
from bert_trainer.model.bert import Bert
from random_rows import model_config, random_model, random_samples

LENGTHS = [30, 7, 19, 30, 12, 5]
NUMBERS = np.array([17, 400, 3, 99_999, 5, 18])


@pytest.fixture(scope="module")
def samples() -> Samples:
    return random_samples(LENGTHS, sequence_length=30, predictions=4, vocabulary_size=61, seed=1)


@pytest.fixture(scope="module")
def model() -> Bert:
    config = model_config(32, hidden_dropout=0.2, attention_dropout=0.2)
    return random_model(config, 61, seed=2, dtype=torch.float64)


def hidden_states(model: Bert, samples: Samples, rows: list[int]) -> dict[int, Tensor]:
    """Return the last hidden states of some rows by their place in the whole, computed as one micro-batch."""
    places = np.array(rows)
    batch = make_batch(samples.take(places), NUMBERS[places])
    with torch.no_grad():
        states_ND = model.encode(batch, batch.dropout_keys(seed=42, step=1000))
    return dict(zip(rows, states_ND.split([LENGTHS[row] for row in rows]), strict=True))


@pytest.mark.parametrize(
    "split",
    [
        [[0, 1, 2], [3, 4, 5]],
        [[0, 1], [2, 3, 4, 5]],
        [[0], [1], [2], [3], [4], [5]],
        [[5, 4, 3, 2, 1, 0]],
        [[1, 4, 5], [0], [3, 2]],  # the first without a long row, so that its rows are padded to 12
    ],
    ids=str,
)
def test_hidden_states_are_the_same_for_any_split(model: Bert, samples: Samples, split: list[list[int]]) -> None:
    whole = hidden_states(model, samples, list(range(6)))
    without = model.encode(make_batch(samples, NUMBERS)).detach().split(LENGTHS)
    for rows in split:
        for row, states_TD in hidden_states(model, samples, rows).items():
            torch.testing.assert_close(states_TD, whole[row], rtol=0, atol=1e-13)
            assert float((states_TD - without[row]).norm()) > 1, "something is dropped"


def test_padding_changes_no_bit_of_attention_dropout() -> None:
    short = dropout_bits.attention(samples=[4, 9], heads=3, length=11)
    long = dropout_bits.attention(samples=[1, 9, 4], heads=3, length=64)
    assert torch.equal(short[0], long[2, :, :11, :11])
    assert torch.equal(short[1], long[1, :, :11, :11])


def test_other_rows_change_no_bit_of_hidden_dropout() -> None:
    alone = dropout_bits.hidden(samples=[4], positions=11)
    among_others = dropout_bits.hidden(samples=[1, 9, 4], positions=64)
    assert torch.equal(alone[0], among_others[2, :11])


def test_the_precision_changes_no_bit() -> None:
    keys = dropout_bits.keys(7, 3, [0], 64)
    expected = keys.hidden(torch.ones(64, 768, dtype=torch.float64), 0.1, 1) == 0
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert torch.equal(keys.hidden(torch.ones(64, 768, dtype=dtype), 0.1, 1) == 0, expected)


def test_generators_of_torch_and_numpy_have_no_part_in_it() -> None:
    torch.manual_seed(1)
    first = dropout_bits.hidden(positions=8)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(dropout_bits.hidden(positions=8), first)
    assert torch.equal(torch.get_rng_state(), state)
