"""Pairs of text spans for next-sentence prediction, as pure functions of token ids and a random stream.

The walk over a document is BERT's ``create_pretraining_data``, with NVIDIA's correction: where ten draws
found no other document, the pair is labelled as not random. Span A always comes first in the text when B
follows it; there is no swapping (that is ALBERT's task). No masking and no special tokens here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Sentence = Sequence[int]
TokenDocument = Sequence[Sentence]

_DRAWS_OF_OTHER_DOCUMENT = 10
_RANDOM_NEXT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class SentencePair:
    """Two non-empty spans of token ids whose lengths add up to the capacity at most."""

    tokens_a: list[int]
    tokens_b: list[int]
    is_random_next: bool
    """B comes from another document; label 1."""


def draw_pairs(
    documents: Sequence[TokenDocument],
    index: int,
    rng: random.Random,
    *,
    capacity: int,
    short_sequence_probability: float,
) -> Iterator[SentencePair]:
    """Walk once over ``documents[index]`` and yield its pairs.

    documents: at least one; no document and no sentence is empty. B is drawn from them.
    capacity: tokens of A and B together, that is the sequence length less 3; at least 2.
    """
    document = documents[index]
    target = capacity
    if rng.random() < short_sequence_probability:
        target = rng.randint(2, capacity)
    chunk: list[Sentence] = []
    chunk_tokens = 0
    position = 0
    while position < len(document):
        chunk.append(document[position])
        chunk_tokens += len(document[position])
        position += 1
        if position < len(document) and chunk_tokens < target:
            continue
        num_a = 1 if len(chunk) == 1 else rng.randint(1, len(chunk) - 1)
        tokens_a = _join(chunk[:num_a])
        if len(chunk) == 1 or rng.random() < _RANDOM_NEXT_SHARE:
            other = _draw_other_document(len(documents), index, rng)
            tokens_b = _draw_span(documents[other], target - len(tokens_a), rng)
            is_random_next = other != index
            # The sentences meant for B were not used: they come again.
            position -= len(chunk) - num_a
        else:
            tokens_b = _join(chunk[num_a:])
            is_random_next = False
        truncate_pair(tokens_a, tokens_b, capacity, rng)
        yield SentencePair(tokens_a, tokens_b, is_random_next)
        chunk, chunk_tokens = [], 0


def truncate_pair(tokens_a: list[int], tokens_b: list[int], capacity: int, rng: random.Random) -> None:
    """Shorten two lists in place to ``capacity`` tokens together.

    Tokens go one by one from the longer list (B where both are equal), from the front or the back with equal
    chances, so that the two are cut at both ends alike.
    """
    lengths = [len(tokens_a), len(tokens_b)]
    fronts = [0, 0]
    for _ in range(sum(lengths) - capacity):
        longer = 0 if lengths[0] > lengths[1] else 1
        lengths[longer] -= 1
        fronts[longer] += rng.random() < 0.5
    for tokens, front, length in zip((tokens_a, tokens_b), fronts, lengths, strict=True):
        tokens[:] = tokens[front : front + length]


def _draw_other_document(num_documents: int, index: int, rng: random.Random) -> int:
    """Draw until it is not ``index``, ten times at most; so the answer may be ``index``."""
    other = index
    for _ in range(_DRAWS_OF_OTHER_DOCUMENT):
        other = rng.randrange(num_documents)
        if other != index:
            break
    return other


def _draw_span(document: TokenDocument, wanted: int, rng: random.Random) -> list[int]:
    """Return sentences from a random one on until ``wanted`` tokens are there or the document ends."""
    span: list[int] = []
    for position in range(rng.randrange(len(document)), len(document)):
        span.extend(document[position])
        if len(span) >= wanted:
            break
    return span


def _join(sentences: Sequence[Sentence]) -> list[int]:
    return [token for sentence in sentences for token in sentence]
