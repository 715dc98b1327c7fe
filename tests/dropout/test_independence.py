"""What is dropped in one place says nothing about any other place.

Every axis that the bits depend on is laid out as a matrix of 512 places by 768 features (or keys), and
searched for structure in three ways:

* correlations of elements a given distance apart, along the axis, along the features, and along both;
* chi-square of the patterns that small blocks of neighbours form;
* the largest singular value: a low-rank pattern, such as favoured rows, columns or stripes, sticks out above
  the edge of the spectrum of independent entries (Marchenko and Pastur), sqrt(rows) + sqrt(columns).

Bounds are 5 standard deviations: one false alarm in 1.7 million for each of some 4,000 numbers. Seeds are
fixed, so the outcome never changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

import dropout_bits

SIGMAS = 5.0
PLACES, FEATURES = 512, 768


def positions(probability: float) -> Tensor:
    return dropout_bits.hidden(positions=PLACES, probability=probability)[0]


def samples(probability: float) -> Tensor:
    return dropout_bits.hidden(samples=range(PLACES), probability=probability)[:, 0]


def distant_samples(probability: float) -> Tensor:
    return dropout_bits.hidden(samples=range(0, PLACES * 4096, 4096), probability=probability)[:, 0]


def steps(probability: float) -> Tensor:
    return torch.cat([dropout_bits.hidden(step=n, probability=probability)[0] for n in range(PLACES)])


def stages(probability: float) -> Tensor:
    """The number of the stage is in the upper 32 bits of the step."""
    return torch.cat([dropout_bits.hidden(step=n << 32, probability=probability)[0] for n in range(PLACES)])


def sites(probability: float) -> Tensor:
    return torch.cat([dropout_bits.hidden(site=n, probability=probability)[0] for n in range(PLACES)])


def seeds(probability: float) -> Tensor:
    return torch.cat([dropout_bits.hidden(seed=n, probability=probability)[0] for n in range(PLACES)])


def queries(probability: float) -> Tensor:
    dropped = dropout_bits.attention(heads=1, queries=PLACES, length=FEATURES, probability=probability)
    return dropped[0, 0]


def heads(probability: float) -> Tensor:
    dropped = dropout_bits.attention(heads=PLACES, queries=1, length=FEATURES, probability=probability)
    return dropped[0, :, 0]


def attention_samples(probability: float) -> Tensor:
    dropped = dropout_bits.attention(
        samples=range(PLACES), heads=1, queries=1, length=FEATURES, probability=probability
    )
    return dropped[:, 0, 0]


def attention_layers(probability: float) -> Tensor:
    rows = [
        dropout_bits.attention(heads=1, queries=1, length=FEATURES, site=1 + 3 * layer, probability=probability)[0, 0]
        for layer in range(PLACES)
    ]
    return torch.cat(rows)


AXES = {
    axis.__name__: axis
    for axis in (
        positions, samples, distant_samples, steps, stages, sites, seeds,
        queries, heads, attention_samples, attention_layers
    )
}  # fmt: skip
each_axis = pytest.mark.parametrize("axis", AXES.values(), ids=AXES)
each_probability = pytest.mark.parametrize("probability", [0.1, 0.5])
Axis = Callable[[float], Tensor]


@cache
def drawn(axis: Axis, probability: float) -> Tensor:
    return axis(probability)


@cache
def standardized(axis: Axis, probability: float) -> Tensor:
    """Return fp64 (places, features) of mean 0 and variance 1 if the rate is right."""
    return (drawn(axis, probability).double() - probability) / math.sqrt(probability * (1 - probability))


@each_axis
@each_probability
def test_elements_any_distance_apart_are_uncorrelated(axis: Axis, probability: float) -> None:
    x = standardized(axis, probability)
    distances = (0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 64, 128, 256)
    # Sums of x[i, j] * x[i + down, j + right] for all distances at once, with zeros behind the longest.
    padded = (PLACES + max(distances), FEATURES + max(distances))
    sums = torch.fft.irfft2(torch.fft.rfft2(x, s=padded).abs() ** 2, s=padded)
    assert float(sums[5, 31]) == pytest.approx(float((x[:-5, :-31] * x[5:, 31:]).sum()), abs=1e-6)
    for down, right in product(distances, distances):
        if down == right == 0:
            continue
        sigmas = float(sums[down, right]) / math.sqrt((PLACES - down) * (FEATURES - right))
        assert abs(sigmas) < SIGMAS, f"{down} places and {right} features apart"


@each_axis
@pytest.mark.parametrize("block", [(1, 8), (2, 4), (4, 2), (8, 1)], ids=str)
def test_patterns_of_neighbours_are_equally_frequent(axis: Axis, block: tuple[int, int]) -> None:
    """Blocks of eight neighbours at probability 1/2 have 256 patterns, each as likely as the others."""
    bits = drawn(axis, 0.5).to(torch.int64)
    tall, wide = block
    pattern = torch.zeros(PLACES // tall, FEATURES // wide, dtype=torch.int64)
    for down, right in product(range(tall), range(wide)):
        pattern = 2 * pattern + bits[down::tall, right::wide]
    counts = np.bincount(pattern.flatten().numpy(), minlength=256)
    expected = pattern.numel() / 256
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert abs(statistic - 255) < SIGMAS * math.sqrt(2 * 255)


@each_axis
@each_probability
def test_there_is_no_low_rank_pattern(axis: Axis, probability: float) -> None:
    largest = float(torch.linalg.svdvals(standardized(axis, probability))[0])
    edge = math.sqrt(PLACES) + math.sqrt(FEATURES)
    # That of independent entries spreads by about 0.5 % around the edge (Tracy and Widom).
    assert 0.97 < largest / edge < 1.025


@each_probability
def test_the_search_would_find_a_weak_pattern(probability: float) -> None:
    """A feature in fifty that copies the one before it, and rows whose rate is up to 3 % off."""
    x = standardized(positions, probability).clone()
    x[:, 50::50] = x[:, 49:-1:50]
    sigmas = float((x[:, :-1] * x[:, 1:]).sum()) / math.sqrt(PLACES * (FEATURES - 1))
    assert sigmas > SIGMAS
    x = standardized(positions, probability) + 0.1 * torch.linspace(-1, 1, PLACES)[:, None]
    assert float(torch.linalg.svdvals(x)[0]) / (math.sqrt(PLACES) + math.sqrt(FEATURES)) > 1.025


@each_probability
def test_attention_does_not_drop_pairs_of_tokens_in_both_directions(probability: float) -> None:
    dropped = dropout_bits.attention(heads=8, length=128, probability=probability)[0].double() - probability
    upper = torch.triu(torch.ones(128, 128), diagonal=1).bool()
    products = (dropped * dropped.transpose(-1, -2))[:, upper]
    sigmas = float(products.sum()) / (probability * (1 - probability) * math.sqrt(products.numel()))
    assert abs(sigmas) < SIGMAS


@each_probability
def test_hidden_features_and_attention_weights_of_a_layer_are_dropped_independently(
    probability: float,
) -> None:
    weights = dropout_bits.attention(heads=1, length=PLACES, site=1, probability=probability)[0, 0].double()
    for site in (0, 2, 3):
        features = dropout_bits.hidden(positions=PLACES, features=PLACES, site=site, probability=probability)[0]
        products = (weights - probability) * (features.double() - probability)
        assert abs(float(products.sum())) < SIGMAS * math.sqrt(products.numel()), site
