"""Norms of tensors as long as BERT's, to fp32's precision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bert_trainer.optim.optimizer import Optimizer
from bert_trainer.optim.update import row_norms
from bert_trainer.parallel.flat_parameters import ROW, FlatParameters
from whole_configs import optimizer_settings

ELEMENTS = 1 << 24  # torch's own fp32 norm of as many numbers is 8e-4 too low on a CPU


@pytest.mark.parametrize("length", [1, 4095, 4096, 4097, 100_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_norm_of_gradients_is_their_norm(length: int, dtype: torch.dtype) -> None:
    model = nn.Embedding(length, 1, dtype=dtype)
    parameters = FlatParameters(model)
    drawn = torch.randn(length, dtype=dtype, generator=torch.Generator().manual_seed(1))
    parameters.gradients[:length] = drawn
    found = Optimizer(optimizer_settings(), parameters).step(0.0).gradient_norm
    assert found == pytest.approx(float(drawn.double().square().sum().sqrt()), rel=1e-7)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 5000, -1])
def test_a_norm_of_what_is_not_finite_is_not_finite(poison: float, place: int) -> None:
    x = torch.ones(3, ROW)
    x.view(-1)[place] = poison
    assert row_norms(x).isfinite().tolist().count(False) == 1


def test_a_long_tensor_is_clipped_and_moved_by_its_true_norm() -> None:
    """The clipped gradient has norm 1, and LAMB moves a tensor by the rate times its own norm."""
    model = nn.Embedding(ELEMENTS // 1024, 1024)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        model.weight.normal_(0, 0.02, generator=generator)
    parameters = FlatParameters(model)
    optimizer = Optimizer(optimizer_settings(beta1=0.0), parameters)
    parameters.gradients.normal_(0, 1e-2, generator=generator)

    def norm(x: torch.Tensor) -> float:
        return float(x.double().square().sum().sqrt())

    gradient_norm, weight_norm, before = norm(parameters.gradients), norm(parameters.values), parameters.values.clone()
    result = optimizer.step(1.0)
    assert result.gradient_norm == pytest.approx(gradient_norm, rel=1e-6)
    assert norm(optimizer.first_moment) == pytest.approx(1.0, rel=1e-6)
    assert norm(parameters.values - before) == pytest.approx(weight_norm, rel=1e-6)
