"""BERT's sampling written a second time, from the published description alone: slow, plain, nothing shared.

One `random.Random` and lists, in the order in which the original draws. It is what tests compare the package's
sampling with, by statistics: the two do not draw in the same order, so no sample is expected to be equal.
It does NOT read text, tokenise, or write shards: documents come as lists of sentences of token numbers.

Source: Devlin et al. 2018, appendix A.2, and the description of `create_pretraining_data` that every published
pipeline follows; the label of a partner that could only come from the same document is NVIDIA's correction.
"""

import random
from dataclasses import dataclass, field

Sentence = list[int]
Document = list[Sentence]


@dataclass
class PlainSettings:
    """What a run of the plain sampling is asked for."""

    sequence_length: int = 128
    max_predictions: int = 20
    vocabulary: list[int] = field(default_factory=lambda: list(range(1000)))
    cls_id: int = 2
    sep_id: int = 3
    mask_id: int = 4
    short_probability: float = 0.1
    masked_share: float = 0.15
    passes: int = 1


@dataclass
class PlainPair:
    """Two spans of sentences after truncation, and what was dropped to get there."""

    first: list[int]
    second: list[int]
    is_random_next: bool
    dropped_front: int
    dropped_back: int
    target: int


@dataclass
class PlainSample:
    """One training sample."""

    tokens: list[int]
    original_tokens: list[int]
    segment_ids: list[int]
    is_random_next: bool
    masked_positions: list[int]
    masked_labels: list[int]


def plain_target(settings: PlainSettings, rng: random.Random) -> int:
    """The token count that one pass over one document aims at."""
    capacity = settings.sequence_length - 3
    if rng.random() < settings.short_probability:
        return rng.randint(2, capacity)
    return capacity


def plain_pairs(documents: list[Document], index: int, settings: PlainSettings, rng: random.Random) -> list[PlainPair]:
    """Walk one document once and pair its sentences."""
    document = documents[index]
    capacity = settings.sequence_length - 3
    target = plain_target(settings, rng)
    pairs: list[PlainPair] = []
    chunk: list[Sentence] = []
    chunk_tokens = 0
    i = 0
    while i < len(document):
        chunk.append(document[i])
        chunk_tokens += len(document[i])
        if i == len(document) - 1 or chunk_tokens >= target:
            a = 1
            if len(chunk) >= 2:
                a = rng.randint(1, len(chunk) - 1)
            first: list[int] = []
            for sentence in chunk[:a]:
                first.extend(sentence)
            second: list[int] = []
            if len(chunk) == 1 or rng.random() < 0.5:
                second, is_random = random_second(documents, index, target - len(first), rng)
                i -= len(chunk) - a
            else:
                is_random = False
                for sentence in chunk[a:]:
                    second.extend(sentence)
            front, back = plain_truncate(first, second, capacity, rng)
            pairs.append(PlainPair(first, second, is_random, front, back, target))
            chunk = []
            chunk_tokens = 0
        i += 1
    return pairs


def random_second(documents: list[Document], index: int, wanted: int, rng: random.Random) -> tuple[list[int], bool]:
    """A span of another document, and whether ten draws found another document."""
    other = index
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != index:
            break
    start = rng.randint(0, len(documents[other]) - 1)
    second: list[int] = []
    for sentence in documents[other][start:]:
        second.extend(sentence)
        if len(second) >= wanted:
            break
    return second, other != index


def plain_truncate(first: list[int], second: list[int], capacity: int, rng: random.Random) -> tuple[int, int]:
    """Drop tokens of the longer list, in place, until both fit; returns how many went in front and at the back."""
    front = 0
    back = 0
    while len(first) + len(second) > capacity:
        longer = first if len(first) > len(second) else second
        if rng.random() < 0.5:
            del longer[0]
            front += 1
        else:
            longer.pop()
            back += 1
    return front, back


def plain_prediction_count(length: int, max_predictions: int, masked_share: float = 0.15) -> int:
    """How many of `length` tokens, [CLS] and [SEP] included, are predicted: Python's own rounding, half to even."""
    return min(max_predictions, max(1, round(length * masked_share)))


def plain_sample(pair: PlainPair, settings: PlainSettings, rng: random.Random) -> PlainSample:
    """Assemble and mask one pair."""
    original = [settings.cls_id, *pair.first, settings.sep_id, *pair.second, settings.sep_id]
    segments = [0] * (len(pair.first) + 2) + [1] * (len(pair.second) + 1)
    separators = (0, len(pair.first) + 1, len(original) - 1)
    candidates = [position for position in range(len(original)) if position not in separators]
    rng.shuffle(candidates)
    count = plain_prediction_count(len(original), settings.max_predictions, settings.masked_share)
    tokens = list(original)
    chosen = sorted(candidates[:count])
    for position in candidates[:count]:
        if rng.random() < 0.8:
            tokens[position] = settings.mask_id
        elif rng.random() < 0.5:
            tokens[position] = original[position]
        else:
            tokens[position] = settings.vocabulary[rng.randint(0, len(settings.vocabulary) - 1)]
    labels = [original[position] for position in chosen]
    return PlainSample(tokens, original, segments, pair.is_random_next, chosen, labels)


def plain_samples(documents: list[Document], settings: PlainSettings, seed: int) -> list[PlainSample]:
    """All samples of one shard: documents shuffled, every pass over every document, samples shuffled."""
    rng = random.Random(seed)
    shard = [document for document in documents if document]
    rng.shuffle(shard)
    samples: list[PlainSample] = []
    for _ in range(settings.passes):
        for index in range(len(shard)):
            samples.extend(plain_sample(pair, settings, rng) for pair in plain_pairs(shard, index, settings, rng))
    rng.shuffle(samples)
    return samples
