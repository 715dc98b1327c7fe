"""The package's sampling and a plain implementation of the published description give the same samples.

Nothing is drawn in the original's order, so walks and shards are compared as two samples of one distribution.
Samples of one walk share its target length, so walks and shards are the independent units here.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, stdev

import pytest

from bert_trainer.dataset.sampling.shard_samples import random_bits
from confidence import FIVE_SIGMA, difference_z, smirnov_z, two_sample_chi_square_z
from plain_sampling import PlainPair, PlainSettings, plain_pairs, plain_samples
from sampling_cases import MASK, SEP, VOCABULARY_SIZE, Document, mixed_documents, original_rows, place, shard_task
from walks import Pair, bits_of, samples_of, walk_many

T = 64
DOCUMENTS = mixed_documents(31, documents=12, max_sentences=40, max_tokens=20)
SEEDS, PASSES = 100, 4


def settings(sequence_length: int = T, short: float = 0.1) -> PlainSettings:
    return PlainSettings(sequence_length=sequence_length, short_probability=short, passes=PASSES)


def as_pair(pair: PlainPair) -> Pair:
    return Pair(pair.first, pair.second, pair.is_random_next)


@dataclass
class Shard:
    """One shard's samples, seen alike whoever made them."""

    originals: list[list[int]]
    shown: list[list[int]]
    segments: list[list[int]]
    labels: list[bool]
    positions: list[list[int]]

    def first_lengths(self) -> list[int]:
        """Tokens of A."""
        return [row.index(SEP) - 1 for row in self.originals]

    def second_lengths(self) -> list[int]:
        """Tokens of B."""
        return [len(row) - row.index(SEP) - 2 for row in self.originals]

    def summary(self) -> dict[str, float]:
        """One number per question."""
        lengths = [len(row) for row in self.originals]
        predictions = sum(map(len, self.positions))
        treatments: Counter[str] = Counter()
        for original, shown, positions in zip(self.originals, self.shown, self.positions, strict=True):
            treatments.update(
                "mask" if shown[p] == MASK else "kept" if shown[p] == original[p] else "other" for p in positions
            )
        per_document = Counter(place(row[1])[0] for row in self.originals)
        return {
            "samples": len(lengths),
            "length": fmean(lengths),
            "tokens of A": fmean(self.first_lengths()),
            "tokens of B": fmean(self.second_lengths()),
            "tokens in segment 1": fmean(map(sum, self.segments)),
            "random next": fmean(self.labels),
            "full rows": fmean(length == T for length in lengths),
            "rows of at most half": fmean(length <= T // 2 for length in lengths),
            "predictions": predictions / len(lengths),
            "first place of a prediction": fmean(positions[0] / T for positions in self.positions),
            **{name: treatments[name] / predictions for name in ("mask", "kept", "other")},
            **{f"samples of document {d}": per_document[d] for d in range(len(DOCUMENTS))},
        }


def our_shard(seed: int, short: float = 0.1) -> Shard:
    task = shard_task(sequence_length=T, passes=PASSES, short=short)
    samples = samples_of(DOCUMENTS, task, random_bits(seed, T, "training", 0))
    originals = original_rows(samples)
    return Shard(
        originals,
        [ids[: len(row)].tolist() for ids, row in zip(samples.input_ids, originals, strict=True)],
        [ids[: len(row)].tolist() for ids, row in zip(samples.segment_ids, originals, strict=True)],
        [bool(label) for label in samples.next_sentence_labels],
        [positions[positions > 0].tolist() for positions in samples.masked_lm_positions],
    )


def plain_shard(seed: int) -> Shard:
    samples = plain_samples(DOCUMENTS, settings(), seed)
    return Shard(
        [sample.original_tokens for sample in samples],
        [sample.tokens for sample in samples],
        [sample.segment_ids for sample in samples],
        [sample.is_random_next for sample in samples],
        [sample.masked_positions for sample in samples],
    )


@pytest.fixture(scope="module")
def plain_summaries() -> list[dict[str, float]]:
    return [plain_shard(seed).summary() for seed in range(SEEDS)]


def test_shards_agree_with_plain_ones_in_every_mean(plain_summaries: list[dict[str, float]]) -> None:
    ours = [our_shard(seed).summary() for seed in range(SEEDS)]
    names = list(ours[0])
    assert len(names) == 13 + len(DOCUMENTS)
    z = {name: difference_z([s[name] for s in ours], [s[name] for s in plain_summaries]) for name in names}
    assert {name: value for name, value in z.items() if abs(value) >= FIVE_SIGMA} == {}
    # How sharp that is: a mean that is off by this share of itself is 7 standard deviations away.
    sharpness = {
        name: 7 * stdev(s[name] for s in plain_summaries) * (2 / SEEDS) ** 0.5 / fmean(s[name] for s in plain_summaries)
        for name in names
    }
    assert sharpness["length"] < 0.05
    assert sharpness["random next"] < 0.08
    assert sharpness["samples"] < 0.08
    assert sharpness["mask"] < 0.015


def test_shards_with_more_short_walks_would_be_told_apart(plain_summaries: list[dict[str, float]]) -> None:
    ours = [our_shard(seed, short=0.2).summary() for seed in range(SEEDS // 2)]
    for name in ("length", "full rows"):
        assert difference_z([s[name] for s in ours], [s[name] for s in plain_summaries]) < -FIVE_SIGMA


def one_pair_per_walk(seed: int, *, plain: bool, capacity: int = T - 3, walks: int = 6000) -> Iterator[Pair]:
    """A random pair of every walk, over the documents in turn: pairs that are independent of one another."""
    rng, choice = random.Random(seed), random.Random(-seed)
    documents: list[Document] = DOCUMENTS
    indexes = [number % len(documents) for number in range(walks)]
    if plain:
        for index in indexes:
            yield as_pair(choice.choice(plain_pairs(documents, index, settings(capacity + 3), rng)))
    else:
        for pairs in walk_many(documents, indexes, bits_of(seed), capacity=capacity, short=0.1):
            yield choice.choice(pairs)


def test_lengths_have_the_plain_distribution() -> None:
    ours, plain = (list(one_pair_per_walk(seed, plain=seed == 42)) for seed in (41, 42))
    measures = {
        "A": lambda pair: len(pair.tokens_a),
        "B": lambda pair: len(pair.tokens_b),
        "both": lambda pair: len(pair.tokens_a) + len(pair.tokens_b),
    }
    for measure in measures.values():
        first, second = list(map(measure, ours)), list(map(measure, plain))
        # Distances of 0.051 between the cumulative distributions are 5 standard deviations here.
        assert smirnov_z(first, second) < FIVE_SIGMA
        counts = [Counter(length // 6 for length in lengths) for lengths in (first, second)]
        assert abs(two_sample_chi_square_z(*([count[cell] for cell in range(11)] for count in counts))) < FIVE_SIGMA
    labels = [[float(pair.is_random_next) for pair in pairs] for pairs in (ours, plain)]
    assert abs(difference_z(*labels)) < FIVE_SIGMA


def test_rows_one_token_shorter_would_be_told_apart() -> None:
    ours = one_pair_per_walk(41, plain=False, capacity=T - 4)
    plain = one_pair_per_walk(42, plain=True)
    lengths = [[len(pair.tokens_a) + len(pair.tokens_b) for pair in pairs] for pairs in (ours, plain)]
    assert smirnov_z(*lengths) > FIVE_SIGMA


def test_tokens_are_the_vocabulary_s_or_the_document_s() -> None:
    shard = our_shard(7)
    own = {token for document in DOCUMENTS for sentence in document for token in sentence}
    for original, shown, positions in zip(shard.originals, shard.shown, shard.positions, strict=True):
        assert set(original) <= own | {2, SEP}
        for position, token in enumerate(shown):
            if position not in positions:
                assert token == original[position]
            else:
                assert token in (MASK, original[position]) or token in range(VOCABULARY_SIZE)
