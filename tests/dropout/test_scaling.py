"""What is kept is scaled up, so that dropout changes no mean; gradients are those of what was computed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import dropout_bits
from bert_trainer.model.batch import Batch
from random_rows import model_config, random_batch, random_model


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_elements_are_zero_or_scaled_by_one_over_the_share_that_is_kept(probability: float) -> None:
    x = torch.randn(64, 768, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    dropped = dropout_bits.keys(7, 3, [0], 64).hidden(x, probability, 1)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], x[kept] / (1 - probability), rtol=1e-15, atol=0)
    assert 0 < float(kept.double().mean()) < 1


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_the_mean_stays(probability: float) -> None:
    """Within 5 standard deviations of the sum over four million independent elements."""
    x = torch.rand(4096, 1024, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    difference = dropout_bits.keys(7, 3, range(32), 128).hidden(x, probability, 1) - x
    deviation = math.sqrt(float((x**2).sum()) * probability / (1 - probability))
    assert abs(float(difference.sum())) < 5 * deviation


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_does_not_bias_what_is_kept(dtype: torch.dtype) -> None:
    """1 / 0.9 is no number of bf16: a scale rounded to 1.109 would make everything 0.16 % too small."""
    x = (1 + torch.rand(512, 768, generator=torch.Generator().manual_seed(1))).to(dtype)
    dropped = dropout_bits.keys(7, 3, range(8), 64).hidden(x, 0.1, 1)
    kept = dropped != 0
    ratio = float(dropped[kept].double().sum() / (x[kept].double().sum() / 0.9))
    assert dropped.dtype == dtype
    assert ratio == pytest.approx(1, abs=1e-4)


def test_attention_weights_sum_to_1_on_average() -> None:
    """Rows of a softmax do not sum to 1 after dropout, but their mean does, within 5 standard deviations."""
    weights = torch.rand(8, 4, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).softmax(-1)
    sums = dropout_bits.keys(7, 3, range(8), 64).attention(weights, 0.1, 1).sum(-1)
    deviation = math.sqrt(float((weights**2).sum()) / 9) / sums.numel()
    assert abs(float(sums.mean()) - 1) < 5 * deviation
    assert float(sums.std()) > 0.01


def test_gradients_of_hidden_dropout_are_numerically_right() -> None:
    x = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    keys = dropout_bits.keys(7, 3, [0, 1], 3)
    assert torch.autograd.gradcheck(lambda x: keys.hidden(x, 0.4, 1), (x,))


def test_gradients_of_attention_dropout_are_numerically_right() -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 2, 4, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    keys = dropout_bits.keys(7, 3, [0, 1], 4)
    assert torch.autograd.gradcheck(lambda x: keys.attention(x.softmax(-1), 0.4, 1), (scores,))


def loss_of(model: torch.nn.Module, batch: Batch) -> Tensor:
    sums = model(batch, batch.dropout_keys(seed=3, step=9))
    total: Tensor = sums.masked_lm / batch.num_masked + sums.next_sentence / batch.num_rows
    return total


def test_gradients_of_a_whole_model_with_dropout_are_numerically_right() -> None:
    """Along a random direction in every tensor, against central differences in fp64."""
    config = model_config(16, hidden_dropout=0.3, attention_dropout=0.3)
    model = random_model(config, 29, seed=1, dtype=torch.float64)
    batch = random_batch([9, 4, 7], sequence_length=9, predictions=3, vocabulary_size=29, seed=1)
    loss_of(model, batch).backward()
    generator = torch.Generator().manual_seed(2)
    step = 1e-5
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        expected = float((parameter.grad * direction).sum())
        with torch.no_grad():
            parameter.add_(step * direction)
            above = float(loss_of(model, batch))
            parameter.sub_(2 * step * direction)
            below = float(loss_of(model, batch))
            parameter.add_(step * direction)
        assert (above - below) / (2 * step) == pytest.approx(expected, rel=1e-5, abs=1e-8), name


def test_dropout_changes_the_loss_from_step_to_step_but_not_within_one() -> None:
    config = model_config(16, hidden_dropout=0.1, attention_dropout=0.0)
    model = random_model(config, 29, seed=1, dtype=torch.float64)
    batch = random_batch([9, 4, 7], sequence_length=9, predictions=3, vocabulary_size=29, seed=1)
    losses = [
        float(model(batch, keys).masked_lm.detach())
        for keys in (batch.dropout_keys(1, 1), batch.dropout_keys(1, 1), batch.dropout_keys(1, 2), None)
    ]
    assert losses[0] == losses[1]
    assert len(set(losses)) == 3
