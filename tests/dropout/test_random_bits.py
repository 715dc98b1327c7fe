"""The generator behind dropout: what it computes, and that its bits look random.

Bounds are 5 standard deviations of what independent bits would give, that is one false alarm in 1.7 million
for each number looked at; with the seeds fixed, the outcome never changes.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import dropout_bits
from bert_trainer.model.dropout import mix, row_keys

MASK_32, MASK_64 = (1 << 32) - 1, (1 << 64) - 1
SIGMAS = 5.0


def lowbias32(bits: int) -> int:
    """The published mixer in plain integers."""
    bits = ((bits ^ bits >> 16) * 0x7FEB352D) & MASK_32
    bits = ((bits ^ bits >> 15) * 0x846CA68B) & MASK_32
    return bits ^ bits >> 16


def splitmix64(state: int) -> int:
    """The published generator's output for one state, in plain integers."""
    state = (state + 0x9E3779B97F4A7C15) & MASK_64
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & MASK_64
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & MASK_64
    return state ^ state >> 31


def row_key(seed: int, step: int, sample: int) -> int:
    """One row's 32 bits."""
    return splitmix64((sample + splitmix64((seed * 0x9E3779B97F4A7C15 + step) & MASK_64)) & MASK_64) >> 32


def uint32(values: torch.Tensor) -> np.ndarray:
    return values.numpy().view(np.uint32)


def chi_square_sigmas(counts: np.ndarray, expected: float | np.ndarray) -> float:
    """Return how many standard deviations a chi-square statistic lies above its mean."""
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


def test_splitmix64_gives_its_published_numbers() -> None:
    """Test vector of the reference implementation for the seed 1234567."""
    state = 1234567
    assert splitmix64(state) == 6457827717110365317
    assert splitmix64(state + 0x9E3779B97F4A7C15) == 3203168211198807973


def test_the_mixer_is_the_published_one() -> None:
    numbers = [0, 1, 2, 3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xDEADBEEF, *range(1000, 2000)]
    signed = torch.tensor(np.array(numbers, dtype=np.uint32).view(np.int32))
    assert uint32(mix(signed)).tolist() == [lowbias32(number) for number in numbers]


@pytest.mark.parametrize("seed", [0, 42, 2**63 - 1])
@pytest.mark.parametrize("step", [0, 1, 70_000, (1 << 32) + 5])
def test_row_keys_are_the_upper_half_of_a_64_bit_hash(seed: int, step: int) -> None:
    samples = [0, 1, 2, 461_242_367]
    found = uint32(row_keys(seed, step, np.array(samples))).tolist()
    assert found == [row_key(seed, step, sample) for sample in samples]


def test_one_element_computed_by_hand_in_plain_integers() -> None:
    golden = 0x9E3779B1
    dropped = dropout_bits.hidden(seed=11, step=5, samples=[123], positions=9, site=4, features=50, probability=0.3)
    site_key = lowbias32(row_key(11, 5, 123) ^ lowbias32(4))
    for position in (0, 1, 8):
        token_key = lowbias32((site_key + position * golden) & MASK_32)
        for feature in range(50):
            bits = lowbias32((token_key + feature * golden) & MASK_32)
            signed = bits - (1 << 32) if bits >> 31 else bits
            assert bool(dropped[0, position, feature]) == (signed < 0.3 * 2**32 - 2**31)


@pytest.mark.parametrize("kind", ["hidden", "attention"])
@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5, 0.9])
def test_the_rate_is_the_probability(kind: str, probability: float) -> None:
    """At 2 million elements 5 standard deviations are 0.001 for a probability of 0.1."""
    if kind == "hidden":
        dropped = dropout_bits.hidden(samples=range(8), positions=256, features=1024, probability=probability)
    else:
        dropped = dropout_bits.attention(samples=range(8), heads=4, length=256, probability=probability)
    deviation = math.sqrt(probability * (1 - probability) / dropped.numel())
    assert abs(float(dropped.double().mean()) - probability) < SIGMAS * deviation


def test_a_probability_of_0_drops_nothing() -> None:
    assert not dropout_bits.hidden(positions=64, probability=0.0).any()


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("axis", ["per feature", "per token"])
def test_no_feature_and_no_token_is_favoured(probability: float, axis: str) -> None:
    dropped = dropout_bits.hidden(samples=range(32), positions=64, features=768, probability=probability)
    counts = dropped.flatten(0, 1).sum(0 if axis == "per feature" else 1).double().numpy()
    trials = dropped.numel() / counts.size
    statistic = ((counts - trials * probability) ** 2).sum() / (trials * probability * (1 - probability))
    assert abs(statistic - counts.size) / math.sqrt(2 * counts.size) < SIGMAS


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_every_byte_of_the_mixer_is_uniform_over_a_counter(shift: int) -> None:
    counter = torch.arange(1 << 20, dtype=torch.int32) * (0x9E3779B1 - (1 << 32))
    bytes_ = (uint32(mix(counter)) >> shift) & 0xFF
    counts = np.bincount(bytes_, minlength=256)
    assert abs(chi_square_sigmas(counts, (1 << 20) / 256)) < SIGMAS


def test_every_input_bit_of_the_mixer_changes_every_output_bit_half_the_time() -> None:
    """The mixer's authors give a bias below 0.2 %; that of 2 ** 16 trials has a deviation of 0.2 %, too."""
    start = torch.arange(1 << 16, dtype=torch.int32) * 0x2545F491
    mixed = uint32(mix(start))
    for bit in range(32):
        flip = (1 << bit) - (1 << 32) if bit == 31 else 1 << bit
        changed = mixed ^ uint32(mix(start ^ flip))
        shares = ((changed[:, None] >> np.arange(32, dtype=np.uint32)) & 1).mean(axis=0)
        assert abs(shares - 0.5).max() < 0.015, bit


def test_the_mixer_maps_no_two_numbers_to_one() -> None:
    assert len(np.unique(uint32(mix(torch.arange(-(1 << 19), 1 << 19, dtype=torch.int32))))) == 1 << 20


@pytest.mark.parametrize("stride", [1, 65_536])
def test_rows_share_a_key_as_rarely_as_32_bits_allow(stride: int) -> None:
    """Of a million random 32-bit keys 116 pairs are equal by chance (birthday), give or take 11.

    That is across a million rows of one step; the largest published batch has 65,536, where half a pair
    is to be expected. Two rows of a step that share a key drop the same features, and nothing worse.
    """
    rows = 1_000_000
    distinct = len(np.unique(row_keys(42, 17, np.arange(rows) * stride).numpy()))
    expected = rows**2 / 2**33
    assert abs(rows - distinct - expected) < SIGMAS * math.sqrt(expected)


def test_tokens_share_shifted_bits_as_rarely_as_32_bits_allow() -> None:
    """A token's features are a stretch of one sequence of 2 ** 32 numbers, so two stretches may overlap.

    Of 16,384 tokens with 768 features 48 pairs overlap by chance, shifted against each other. Nothing in a
    model ties a feature of one token to another feature of another one; more than chance would be a flaw.
    """
    tokens, features = 128 * 128, 768
    step_inverse = pow(0x9E3779B1, -1, 1 << 32)
    keys = np.array(
        [
            lowbias32((lowbias32(row_key(7, 3, sample) ^ lowbias32(1)) + position * 0x9E3779B1) & MASK_32)
            for sample in range(128)
            for position in range(128)
        ],
        dtype=np.uint64,
    )
    places = np.sort((keys * np.uint64(step_inverse)) & np.uint64(MASK_32)).astype(np.int64)
    pairs = sum(int((places[gap:] - places[:-gap] < features).sum()) for gap in range(1, 8))
    expected = tokens**2 * features / 2**32
    assert abs(pairs - expected) < SIGMAS * math.sqrt(expected)
