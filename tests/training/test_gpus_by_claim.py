"""A job whose GPUs come by a claim trains on them, one for every rank, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bert_trainer.errors import DeviceUnusable
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.device import check_device_count, choose_device
from tiny_run import run_config


@pytest.mark.parametrize(("devices", "ranks"), [(1, 1), (8, 8), (8, 2)])
def test_a_device_for_every_rank_is_enough(devices: int, ranks: int) -> None:
    check_device_count(devices, ranks)


def test_fewer_devices_than_ranks_are_refused_before_the_first_step() -> None:
    with pytest.raises(DeviceUnusable, match="got 'cuda' and 1 CUDA devices for the 2 ranks of this machine") as caught:
        check_device_count(1, 2)
    assert caught.value.exit_code == 2
    assert "kubectl describe resourceclaim" in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="requires a machine without a CUDA device")
def test_processors_do_not_stand_in_for_gpus(tmp_path: Path) -> None:
    world = SingleRank(size=16, num_hosts=2)
    with pytest.raises(DeviceUnusable, match="PyTorch finds no GPU"):
        choose_device(run_config(tmp_path, tmp_path, device="cuda"), world)
    assert choose_device(run_config(tmp_path, tmp_path), world) == torch.device("cpu")
