"""A run that asks for a GPU and finds none ends by name, with what is missing and what to do: no GPU needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from bert_trainer.errors import DeviceUnusable
from bert_trainer.model.backends.gpu.driver import Driver, explain_missing_gpu
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.device import choose_device
from tiny_run import run_config


@pytest.mark.parametrize(
    ("built_for", "driver", "environment", "why", "next_step"),
    [
        (None, Driver(0, 13_020), {}, "this image's PyTorch was made without CUDA", "ACCELERATOR=cuda"),
        ("13.2", None, {}, "the container has no NVIDIA driver (libcuda.so.1)", "runtimeClassName: nvidia"),
        (
            "13.2",
            Driver(35, 12_040),
            {},
            "the node's driver runs CUDA up to 12.4, and this PyTorch was made for 13.2",
            "update the driver",
        ),
        # It starts, but PyTorch refuses it: another major version.
        ("13.2", Driver(0, 12_080), {}, "the node's driver runs CUDA up to 12.8", "an image made for CUDA 12.8"),
        ("13.2", Driver(100, 13_020), {}, "the driver shows no device", "kubectl describe node"),
        ("13.2", Driver(0, 13_000), {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES is ''", "spec.env"),
        ("13.2", Driver(803, 13_020), {}, "error 803 (the driver's library and its kernel module have", "nvidia"),
        ("13.2", Driver(46, 13_020), {}, "the driver reports error 46 (see cuda.h)", "nvidia"),
    ],
)
def test_the_reason_is_the_driver_s_and_the_next_step_fits(
    built_for: str | None, driver: Driver | None, environment: Mapping[str, str], why: str, next_step: str
) -> None:
    got, hint = explain_missing_gpu(built_for, environment, lambda: driver)
    assert why in got
    assert next_step in hint


def test_a_run_for_a_gpu_is_refused_where_there_is_none(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("requires a machine without a GPU")
    with pytest.raises(DeviceUnusable, match="^device: got 'cuda'; PyTorch finds no GPU on "):
        choose_device(run_config(tmp_path, tmp_path, device="cuda"), SingleRank())
