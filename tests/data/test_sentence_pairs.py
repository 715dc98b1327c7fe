"""Documents of any sizes give pairs that the published walk could have made; rates are tested in sampling."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_trainer.dataset.sampling.sentence_pairs import Walks, draw_pairs
from walks import Documents, Pair, bits_of, flat, walk, walk_many


def numbered(sizes: list[list[int]]) -> Documents:
    """Documents of sentences of these lengths; every token is unique, so that its place is known."""
    token = 10
    documents: list[list[list[int]]] = []
    for document in sizes:
        documents.append([])
        for length in document:
            documents[-1].append(list(range(token, token + length)))
            token += length
    return documents


def check_walk(documents: Documents, index: int, pairs: list[Pair], capacity: int) -> None:
    """Follow the published walk and see that every pair is one that it could make at this point."""
    owner = {token: (d, s) for d, ds in enumerate(documents) for s, tokens in enumerate(ds) for token in tokens}
    position = 0
    for pair in pairs:
        assert pair.tokens_a
        assert pair.tokens_b
        assert len(pair.tokens_a) + len(pair.tokens_b) <= capacity
        for tokens in (pair.tokens_a, pair.tokens_b):
            assert tokens == list(range(tokens[0], tokens[0] + len(tokens)))
        first, last = owner[pair.tokens_a[0]], owner[pair.tokens_a[-1]]
        b_first = owner[pair.tokens_b[0]]
        assert {first[0], last[0]} == {index}
        assert first[1] >= position
        assert pair.is_random_next == (b_first[0] != index)
        # The next A begins behind this one: sentences of an unused B come again, those of A never.
        position = last[1] + 1
    # A first sentence may be cut away whole: what is too long is cut at the front as often as at the end.
    assert {owner[token][0] for pair in pairs for token in pair.tokens_a} == {index}


sizes = st.lists(
    st.lists(st.one_of(st.integers(1, 30), st.sampled_from([1, 10_000])), min_size=1, max_size=20),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60)
@given(sizes=sizes, seed=st.integers(0, 1000), capacity=st.sampled_from([2, 5, 29, 125, 509]))
def test_documents_of_any_sizes_give_pairs_of_the_published_walk(
    sizes: list[list[int]], seed: int, capacity: int
) -> None:
    documents = numbered(sizes)
    walks = walk_many(documents, range(len(documents)), bits_of(seed), capacity=capacity, short=0.3)
    assert len(walks) == len(documents)
    for index, pairs in enumerate(walks):
        assert pairs
        check_walk(documents, index, pairs, capacity)


def test_a_walk_depends_on_nothing_but_the_bits() -> None:
    documents = numbered([[random.Random(d).randint(1, 20) for _ in range(30)] for d in range(9)])
    first, second = (walk_many(documents, range(9), bits_of(5), capacity=40, short=0.1) for _ in range(2))
    assert first == second
    assert first != walk_many(documents, range(9), bits_of(6), capacity=40, short=0.1)


def test_pairs_come_walk_by_walk_and_in_the_order_of_the_text() -> None:
    documents = flat(numbered([[7] * 20] * 5))
    pairs = draw_pairs(documents.bounds, Walks.over([5]), bits_of(1), capacity=29, short_sequence_probability=0.1)
    assert (np.diff(pairs.walks) >= 0).all()
    for number in range(5):
        assert (np.diff(pairs.first_a[pairs.walks == number]) > 0).all()


def test_walks_know_their_pools() -> None:
    walks = Walks.over([2, 3])
    assert walks.documents.tolist() == [0, 1, 2, 3, 4]
    assert walks.pool_first.tolist() == [0, 0, 2, 2, 2]
    assert walks.pool_size.tolist() == [2, 2, 3, 3, 3]


def test_no_documents_give_no_pairs() -> None:
    pairs = draw_pairs(flat([]).bounds, Walks.over([]), bits_of(1), capacity=29, short_sequence_probability=0.1)
    assert len(pairs) == 0


@pytest.mark.parametrize("seed", range(5))
def test_every_sentence_is_used_as_its_own_document_at_least_once(seed: int) -> None:
    rng = random.Random(seed)
    documents = numbered([[rng.randint(1, 30) for _ in range(rng.randint(1, 15))] for _ in range(6)])
    for index, document in enumerate(documents):
        used = {
            token for pair in walk(documents, index, seed, capacity=10**6) for token in pair.tokens_a + pair.tokens_b
        }
        assert {token for sentence in document for token in sentence} <= used
