"""Rows of a step are dealt to ranks by length: as many rows as an even split, nearly as many tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_trainer.parallel.row_balancing import balance_rows, rank_slice


def deal(tokens: list[int], size: int, cuts: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Deal rows in one call or in several; return every row's rank and every rank's tokens."""
    loads, ranks, dealt = np.zeros(size, np.int64), [], 0
    for part in np.split(np.array(tokens, np.int64), cuts):
        ranks.append(balance_rows(part, dealt, loads))
        dealt += len(part)
    return np.concatenate(ranks), loads


@given(
    tokens=st.lists(st.integers(1, 512), min_size=1, max_size=60),
    size=st.integers(1, 9),
    cuts=st.lists(st.integers(0, 60), max_size=3),
)
@settings(max_examples=200)
def test_every_rank_gets_the_rows_of_an_even_split_and_its_tokens_are_counted(
    tokens: list[int], size: int, cuts: list[int]
) -> None:
    rank_R, loads = deal(tokens, size, tuple(sorted(min(cut, len(tokens)) for cut in cuts)))
    slices = [rank_slice(len(tokens), rank, size) for rank in range(size)]
    assert np.bincount(rank_R, minlength=size).tolist() == [stop - start for start, stop in slices]
    assert np.bincount(rank_R, tokens, size).astype(int).tolist() == loads.tolist()


@pytest.mark.parametrize("size", [2, 8, 64])
def test_tokens_are_balanced_to_a_hundredth_where_an_even_split_is_far_off(size: int) -> None:
    """Lengths as of text: many full rows, the others anywhere."""
    rng = np.random.default_rng(1)
    tokens = np.where(rng.random(16 * size) < 0.3, 512, rng.integers(20, 512, 16 * size))
    _, loads = deal(tokens.tolist(), size)
    contiguous = [tokens[slice(*rank_slice(len(tokens), rank, size))].sum() for rank in range(size)]
    assert loads.max() / loads.mean() < 1.01
    assert loads.max() < max(contiguous)


def test_rows_dealt_in_two_calls_lessen_the_first_calls_difference() -> None:
    _, first = deal([500, 100], 2)
    _, both = deal([500, 100, *range(500, 10, -5)], 2, cuts=(2,))
    assert abs(int(first[0] - first[1])) == 400
    assert abs(int(both[0] - both[1])) < 200


def test_equal_lengths_go_round_the_ranks_in_the_order_of_rows() -> None:
    rank_R, _ = deal([7] * 6, 3)
    assert rank_R.tolist() == [0, 1, 2, 0, 1, 2]


def test_one_rank_gets_everything() -> None:
    rank_R, loads = deal([3, 1, 2], 1)
    assert rank_R.tolist() == [0, 0, 0]
    assert loads.tolist() == [6]
