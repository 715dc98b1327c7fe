"""Pairs are cut as BERT does, compared here with a plain transcription of the published description."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bert_trainer.dataset.sentence_pairs import draw_pairs, truncate_pair

Documents = list[list[list[int]]]


def plain_pairs(documents: Documents, index: int, rng: random.Random, capacity: int, short: float) -> list[Any]:
    """Steps 4 and 5 of ``create_pretraining_data``, token by token and with NVIDIA's correction."""
    document, pairs = documents[index], []
    target = rng.randint(2, capacity) if rng.random() < short else capacity
    chunk: list[list[int]] = []
    i = 0
    while i < len(document):
        chunk.append(document[i])
        if i == len(document) - 1 or sum(map(len, chunk)) >= target:
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a = [token for sentence in chunk[:a_end] for token in sentence]
            b: list[int] = []
            if len(chunk) == 1 or rng.random() < 0.5:
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != index:
                        break
                label = other != index
                start = rng.randint(0, len(documents[other]) - 1)
                for j in range(start, len(documents[other])):
                    b += documents[other][j]
                    if len(b) >= target - len(a):
                        break
                i -= len(chunk) - a_end
            else:
                label = False
                b = [token for sentence in chunk[a_end:] for token in sentence]
            while len(a) + len(b) > capacity:
                longer = a if len(a) > len(b) else b
                if rng.random() < 0.5:
                    del longer[0]
                else:
                    longer.pop()
            pairs.append((a, b, label))
            chunk = []
        i += 1
    return pairs


def random_documents(seed: int) -> Documents:
    """Every token is unique, so that its place in the text is known."""
    rng = random.Random(seed)
    token = 10
    documents: Documents = []
    for _ in range(rng.randint(1, 6)):
        documents.append([])
        for _ in range(rng.randint(1, 15)):
            length = rng.randint(1, 30)
            documents[-1].append(list(range(token, token + length)))
            token += length
    return documents


@pytest.mark.parametrize("capacity", [5, 29, 125])
def test_pairs_are_those_of_the_published_algorithm(capacity: int) -> None:
    num_pairs = 0
    for seed in range(60):
        documents = random_documents(seed)
        for index in range(len(documents)):
            ours = draw_pairs(documents, index, random.Random(seed), capacity=capacity, short_sequence_probability=0.3)
            expected = plain_pairs(documents, index, random.Random(seed), capacity, 0.3)
            assert [(pair.tokens_a, pair.tokens_b, pair.is_random_next) for pair in ours] == expected
            num_pairs += len(expected)
    assert num_pairs > 300


def test_spans_fit_and_are_never_empty() -> None:
    for seed in range(60):
        documents = random_documents(seed)
        for index in range(len(documents)):
            for pair in draw_pairs(documents, index, random.Random(seed), capacity=20, short_sequence_probability=0.1):
                assert pair.tokens_a
                assert pair.tokens_b
                assert len(pair.tokens_a) + len(pair.tokens_b) <= 20


def test_labels_tell_where_the_second_span_comes_from() -> None:
    documents = [[[100 * d + s] * 6 for s in range(12)] for d in range(1, 6)]
    seen = {True: 0, False: 0}
    for seed in range(50):
        for pair in draw_pairs(documents, 2, random.Random(seed), capacity=40, short_sequence_probability=0):
            same = pair.tokens_b[0] // 100 == 3
            assert same is not pair.is_random_next
            if same:
                assert pair.tokens_b[0] in (pair.tokens_a[-1], pair.tokens_a[-1] + 1)
            seen[pair.is_random_next] += 1
    assert min(seen.values()) > 50


def test_a_single_document_is_never_labelled_random() -> None:
    documents = [[[s] * 6 for s in range(1, 30)]]
    pairs = [
        pair
        for seed in range(20)
        for pair in draw_pairs(documents, 0, random.Random(seed), capacity=40, short_sequence_probability=0)
    ]
    assert len(pairs) > 50
    assert not any(pair.is_random_next for pair in pairs)


def test_every_sentence_is_used_as_its_own_document_at_least_once() -> None:
    documents = random_documents(7)
    for index, document in enumerate(documents):
        tokens = {token for sentence in document for token in sentence}
        used: set[int] = set()
        for pair in draw_pairs(documents, index, random.Random(3), capacity=10**6, short_sequence_probability=0):
            used |= set(pair.tokens_a) | set(pair.tokens_b)
        assert tokens <= used


def test_the_longer_list_is_cut_at_both_ends() -> None:
    fronts = 0
    for seed in range(200):
        tokens_a, tokens_b = list(range(30)), list(range(100, 110))
        truncate_pair(tokens_a, tokens_b, 21, random.Random(seed))
        assert tokens_b in (list(range(100, 110)), list(range(100, 110))[1:], list(range(100, 110))[:-1])
        assert len(tokens_a) + len(tokens_b) == 21
        assert tokens_a == list(range(tokens_a[0], tokens_a[0] + len(tokens_a)))
        fronts += tokens_a[0]
    assert fronts / 200 == pytest.approx(9.5, abs=0.7)


def test_the_second_list_is_cut_where_both_are_equal() -> None:
    tokens_a, tokens_b = [1, 2, 3], [4, 5, 6]
    truncate_pair(tokens_a, tokens_b, 5, random.Random(0))
    assert len(tokens_a) == 3
    assert len(tokens_b) == 2
