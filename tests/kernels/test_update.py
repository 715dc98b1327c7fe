"""The optimizer's kernels do what its plain operations do, to fp32's rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bert_trainer.optim import update
from bert_trainer.parallel.flat_parameters import ROW
from whole_configs import optimizer_settings

pytestmark = pytest.mark.usefixtures("flavour")
ROWS, DECAYED = 7, 5


def draw(seed: int, scale: float) -> Tensor:
    return scale * torch.randn(ROWS, ROW, generator=torch.Generator().manual_seed(seed))


def steps(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, *, kernels: bool, decayed: int) -> list[Tensor]:
    """Take three steps; return values, moments and the last norms."""
    if not kernels:
        monkeypatch.setattr(update, "usable", lambda *_: None)
    values, first, second = (
        draw(1, 0.02).to(dtype),
        torch.zeros(ROWS, ROW, dtype=dtype),
        torch.zeros(ROWS, ROW, dtype=dtype),
    )
    norms = torch.empty(0)
    for step in (1, 2, 3):
        gradients = draw(1 + step, 1e-3).to(dtype)
        gradients[3] = 0.0  # as of a row of padding
        numbers = update.Coefficients.of(optimizer_settings(), step, 0.5)
        norms = update.gradients_to_update_(gradients, first, second, values, numbers, decayed)
        ratios = torch.linspace(0.5, 2.0, decayed, dtype=dtype) if decayed else None
        update.apply_update_(values, gradients, 1e-2, ratios)
    return [values, first, second, norms]


@pytest.mark.parametrize("decayed", [0, DECAYED, ROWS])
def test_three_steps_end_where_plain_operations_end_in_fp64(monkeypatch: pytest.MonkeyPatch, decayed: int) -> None:
    found = steps(monkeypatch, torch.float32, kernels=True, decayed=decayed)
    expected = steps(monkeypatch, torch.float64, kernels=False, decayed=decayed)
    for mine, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), reference, rtol=2e-5, atol=1e-7)
    # The second moment is of the size of 1e-9: the bound above says nothing of it.
    torch.testing.assert_close(found[2].double(), expected[2], rtol=1e-5, atol=0)


def test_what_is_not_finite_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    values, first, second = draw(1, 0.02), torch.zeros(ROWS, ROW), torch.zeros(ROWS, ROW)
    gradients = draw(2, 1e-3)
    gradients[2, 17] = float("nan")
    norms = update.gradients_to_update_(
        gradients, first, second, values, update.Coefficients.of(optimizer_settings(), 1, 1.0), DECAYED
    )
    assert norms[2, 1].isnan()
    assert gradients.isnan().sum() == 1
