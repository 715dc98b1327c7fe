"""A rank takes no more of its GPU than it may."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import InputError
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.device import choose_device, memory_fraction
from tiny_run import run_config, run_document

GIB = 2**30


def test_the_limit_becomes_a_share_of_the_device() -> None:
    assert memory_fraction(8, 16 * GIB, "cuda:0") == 0.5
    assert memory_fraction(16, 16 * GIB, "cuda:0") == 1.0
    assert memory_fraction(0.5, 80 * GIB, "cuda:0") == 0.00625


def test_more_than_the_device_has_is_refused() -> None:
    words = r"gpu_memory_limit_gib: got 16.1; allowed: at most the 15.99 GiB of cuda:3"
    with pytest.raises(InputError, match=words) as error:
        memory_fraction(16.1, int(15.99 * GIB), "cuda:3")
    assert error.value.exit_code == 2


@pytest.mark.parametrize("limit", [0, -1, "all"])
def test_a_limit_is_a_positive_number(tmp_path: Path, limit: object) -> None:
    with pytest.raises(InputError, match="gpu_memory_limit_gib"):
        parse_run_config(run_document(tmp_path, tmp_path, gpu_memory_limit_gib=limit))


@pytest.mark.parametrize(("rank", "lines"), [(0, 1), (1, 0)])
def test_without_a_gpu_one_line_says_that_it_has_no_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rank: int, lines: int
) -> None:
    config = run_config(tmp_path, tmp_path, gpu_memory_limit_gib=4)
    with caplog.at_level(logging.WARNING):
        assert choose_device(config, SingleRank(rank=rank, size=2)) == torch.device("cpu")
    assert caplog.text.count("gpu_memory_limit_gib has no effect") == lines


@pytest.mark.skipif(not torch.cuda.is_available(), reason="requires a CUDA device")
def test_on_a_gpu_the_allocator_keeps_to_it(tmp_path: Path) -> None:
    config = run_config(tmp_path, tmp_path, device="cuda", gpu_memory_limit_gib=0.25)
    device = choose_device(config, SingleRank())
    try:
        torch.empty(2**27, dtype=torch.uint8, device=device)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(2**29, dtype=torch.uint8, device=device)
        too_much = run_config(tmp_path, tmp_path, device="cuda", gpu_memory_limit_gib=1e6)
        with pytest.raises(InputError, match="gpu_memory_limit_gib: got 1e"):
            choose_device(too_much, SingleRank())
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
