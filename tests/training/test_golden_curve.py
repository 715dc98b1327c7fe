"""Fifty steps of a tiny model give the losses that they gave when the golden file was written.

A change that should not alter numbers leaves the file as it is. One that should writes it anew
(``pytest --update-golden``) and says in its description why and that training still converges.

Tolerances: on one thread and on two, and with ATen, oneDNN and MKL held to older instruction sets, losses
differed by 2e-7 and gradient norms by 2e-6, relatively, at most; the bounds leave room for other processors.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from in_process import progress_records, train
from tiny_run import TWO_LAYERS, pretrain_stage, run_config, write_dataset

GOLDEN = Path(__file__).parents[1] / "golden" / "loss" / "tiny-50-steps.txt"
STEPS = 50
LOSS_TOLERANCE, NORM_TOLERANCE = 1e-5, 5e-5

HEADER = f"""\
# Loss of {STEPS} steps of a tiny BERT on the toy data set of tests/support/tiny_run.py, on a CPU in fp32.
# Written by: pytest tests/training/test_golden_curve.py --update-golden
# With: torch {torch.__version__.split("+")[0]}, numpy {np.__version__}
# Compared with a relative tolerance of {LOSS_TOLERANCE} (losses) and {NORM_TOLERANCE} (gradient norm).
# step loss mlm_loss nsp_loss gradient_norm
"""


def curve(folder: Path) -> str:
    """Train and return the table."""
    schedule = {"learning_rate": 0.1, "warmup": {"steps": 10}, "decay": "poly"}
    stage = pretrain_stage(global_batch_size=32, length={"steps": STEPS}, **schedule)
    dataset = write_dataset(folder / "data")
    train(run_config(folder / "run", dataset, model=TWO_LAYERS, stages=[stage], checkpoint={"keep": 1}))
    names = ("loss", "mlm_loss", "nsp_loss", "gradient_norm")
    return "".join(
        f"{record['step']} {' '.join(f'{record[name]:.7f}' for name in names)}\n"
        for record in progress_records(folder / "run")
    )


def table(text: str) -> np.ndarray:
    return np.array([line.split() for line in text.splitlines() if not line.startswith("#")], dtype=np.float64)


def test_the_loss_curve_is_the_golden_one(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = curve(tmp_path)
    if request.config.getoption("--update-golden"):
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        GOLDEN.write_text(HEADER + text)
    found, expected = table(text), table(GOLDEN.read_text())
    assert found.shape == expected.shape == (STEPS, 5)
    np.testing.assert_array_equal(found[:, 0], expected[:, 0])
    np.testing.assert_allclose(found[:, 1:4], expected[:, 1:4], rtol=LOSS_TOLERANCE)
    np.testing.assert_allclose(found[:, 4], expected[:, 4], rtol=NORM_TOLERANCE)


def test_the_golden_curve_is_one_of_a_model_that_learns() -> None:
    """It starts at guessing (ln 61 + ln 2 = 4.80) and ends far below; both losses add up to the first."""
    losses = table(GOLDEN.read_text())
    assert losses[0, 1] == pytest.approx(4.80, abs=0.05)
    assert losses[-5:, 1].mean() < 3.5
    np.testing.assert_allclose(losses[:, 1], losses[:, 2] + losses[:, 3], atol=3e-7)
