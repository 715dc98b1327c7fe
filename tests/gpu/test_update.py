"""The optimizer's update by Inductor, as GPUs run it: compiled once for all steps, equal to the plain operations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from bert_trainer.model.backends.gpu.compilation import compile_function, why_not_compiled
from bert_trainer.optim import update
from bert_trainer.parallel.flat_parameters import ROW
from whole_configs import optimizer_settings

pytestmark = pytest.mark.usefixtures("compiled_anew")
ROWS, DECAYED = 7, 5
Functions = tuple[Callable[..., Tensor], Callable[..., None]]
PLAIN: Functions = (update.plain_gradients_to_update_, update.plain_apply_update_)


def draw(seed: int, scale: float) -> Tensor:
    return scale * torch.randn(ROWS, ROW, generator=torch.Generator().manual_seed(seed))


def steps(monkeypatch: pytest.MonkeyPatch, functions: Functions) -> list[Tensor]:
    """Take four steps whose factor, corrections and learning rate all differ; return values, moments and last norms."""
    monkeypatch.setattr(update, "usable", lambda *_: None)
    monkeypatch.setattr(update, "_functions", lambda _: functions)
    values, first, second, norms = draw(1, 0.02), torch.zeros(ROWS, ROW), torch.zeros(ROWS, ROW), torch.empty(0)
    for step in (1, 2, 3, 4):
        gradients = draw(1 + step, 1e-3)
        numbers = update.Coefficients.of(optimizer_settings(), step, 1 / step)
        norms = update.gradients_to_update_(gradients, first, second, values, numbers, DECAYED)
        update.apply_update_(values, gradients, 1e-2 / step, torch.linspace(0.5, 2.0, DECAYED))
    return [values, first, second, norms]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_it_is_compiled_once_and_gives_what_the_plain_operations_give(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    reason = why_not_compiled(torch.device("cpu"))
    if reason is not None:
        pytest.skip(f"nothing can be compiled here: {reason}")
    expected = steps(monkeypatch, PLAIN)
    counters.clear()
    found = steps(monkeypatch, (compile_function(PLAIN[0]), compile_function(PLAIN[1])))
    for mine, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-7)
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
