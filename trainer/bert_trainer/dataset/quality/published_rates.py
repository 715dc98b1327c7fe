"""Compares rates of samples with published ones, with standard errors. Pure functions of counts.

Published are the rates of masking and of random next sentences (Devlin et al. 2019 and
``create_pretraining_data``), and the lengths of rows: for English Wikipedia Graphcore's histogram of 16 million samples
at 512 tokens (its code for packed BERT), for Wikipedia and books the padding (openreview.net, 3nzKUh9a4M). Lengths
depend on the documents' lengths, and pairs on how many documents end with a single sentence, so for another corpus
they are only shown beside the published ones; the other rates must agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from bert_trainer.dataset.quality.sample_statistics import SampleStatistics

PADDING = {128: 0.17, 512: 0.48}
LENGTHS_AT_512 = {"<= 64 tokens": (64, 0.176), "<= 128 tokens": (128, 0.369), "<= 256 tokens": (256, 0.566),
                  "<= 384 tokens": (384, 0.684), "512 tokens": (-1, 0.234)}  # fmt: skip
MEAN_AT_512 = 255.83
# Chance alone exceeds it once in 1.7 million rates.
# Distance from the published rate beyond which a rate is wrong.
_MAX_STANDARD_ERRORS = 5.0


@dataclass(frozen=True, slots=True)
class Rate:
    """One line of a table."""

    what: str
    ours: float
    error: float
    """One standard error, assuming independent samples; 0 if the figure must be exact. Repetitions of a document are
    not quite independent: lengths and pairs vary somewhat more."""
    published: float | None
    """None if nothing is published."""
    depends_on_corpus: bool = False

    @property
    def distance(self) -> float | None:
        """Distance from the published rate in standard errors; None if nothing is published."""
        if self.published is None:
            return None
        off = self.ours - self.published
        return off / self.error if self.error else off and float("inf")

    @property
    def is_wrong(self) -> bool:
        """Whether the difference is too large for chance."""
        return not self.depends_on_corpus and self.distance is not None and abs(self.distance) > _MAX_STANDARD_ERRORS


def describe_rates(rates: Sequence[Rate]) -> list[str]:
    """Return a table as lines of text."""
    lines = [f"  {'':<30} {'ours':>10} {'':<12} {'published':>9} {'off by':>8}  up to the corpus"]
    for rate in rates:
        published = "-" if rate.published is None else f"{rate.published:.5g}"
        off = "" if rate.distance is None or rate.depends_on_corpus else f"{rate.distance:+.1f} se"
        error = f"+- {rate.error:.2g}" if rate.error else ""
        corpus = "yes" if rate.depends_on_corpus else "no"
        lines.append(f"  {rate.what:<30} {rate.ours:10.5g} {error:<12} {published:>9} {off:>8}  {corpus}")
    return lines


def published_rates(counted: SampleStatistics, vocabulary_size: int) -> list[Rate]:
    """Return the rates of at least one masked sample, with 15 % of the tokens predicted and no whole-word masking."""
    sequence_length = len(counted.lengths) - 1
    # A random replacement is [MASK], or the original token, with this chance; both then count for another row.
    by_chance = 0.1 / vocabulary_size
    return [
        _predicted(counted),
        _share("predictions shown as [MASK]", counted.masked, counted.num_predictions, 0.8 + by_chance),
        _share("predictions as they were", counted.unchanged, counted.num_predictions, 0.1 + by_chance),
        _share(
            "predictions as another token",
            counted.num_predictions - counted.masked - counted.unchanged,
            counted.num_predictions,
            0.1 - 2 * by_chance,
        ),
        Rate("rows with another count", _wrong_counts(counted), 0.0, 0.0),
        _share("random next sentence", counted.random_next, counted.rows, 0.5, corpus=True),
        *_length_rows(counted, sequence_length),
    ]


def _predicted(counted: SampleStatistics) -> Rate:
    """Return the share of predicted tokens. Rounding at these lengths makes it differ from 15 %."""
    ratio, rows = counted.predicted_share, counted.rows
    # The delta method's variance of a ratio of two sums over samples.
    spread = counted.sum_pp - 2 * ratio * counted.sum_pn + ratio**2 * counted.sum_nn
    error = sqrt(max(0.0, spread) / rows) / (counted.tokens / rows) / sqrt(rows)
    return Rate("tokens predicted", ratio, error, 0.15, depends_on_corpus=True)


def _wrong_counts(counted: SampleStatistics) -> float:
    """Return a lower bound of the samples whose predictions are not 15 % of their tokens, rounded.

    Only the histograms of lengths and predictions are known, not which length has which number of predictions.
    """
    lengths, most = np.arange(len(counted.lengths)), len(counted.predictions) - 1
    # As ``masking.count_predictions``: at least one, at most P, .5 rounds to even.
    wanted = np.clip(np.rint(0.15 * lengths).astype(np.int64), 1, most)
    expected = np.bincount(wanted, weights=counted.lengths, minlength=most + 1)
    return float(np.abs(expected - counted.predictions).sum() / 2)


def _length_rows(counted: SampleStatistics, sequence_length: int) -> Iterator[Rate]:
    rows, values = counted.rows, np.arange(len(counted.lengths))
    mean = counted.tokens / rows
    deviation = sqrt(float((counted.lengths * (values - mean) ** 2).sum()) / rows)
    error = deviation / sqrt(rows)
    published = PADDING.get(sequence_length)
    yield Rate("padding", counted.padding_share, error / sequence_length, published, depends_on_corpus=True)
    at_512 = sequence_length == 512
    yield Rate("mean tokens", mean, error, MEAN_AT_512 if at_512 else None, depends_on_corpus=True)
    if not at_512:
        yield _share(f"{sequence_length} tokens", int(counted.lengths[-1]), rows, None, corpus=True)
        return
    for what, (most, share) in LENGTHS_AT_512.items():
        hits = counted.lengths[-1] if most < 0 else counted.lengths[: most + 1].sum()
        yield _share(what, int(hits), rows, share, corpus=True)


def _share(what: str, hits: int, total: int, published: float | None, *, corpus: bool = False) -> Rate:
    share = hits / total
    return Rate(what, share, sqrt(share * (1 - share) / total), published, depends_on_corpus=corpus)
