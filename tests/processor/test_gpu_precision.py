"""What a precision needs of a GPU; no GPU is needed to know it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bert_trainer.distributed import Alone
from bert_trainer.errors import UnsupportedPrecision
from bert_trainer.gpu import check_capability
from bert_trainer.session import choose_device
from tiny_run import run_config


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
@pytest.mark.parametrize(("capability", "name"), [((7, 0), "Tesla V100-SXM2-32GB"), ((7, 5), "Tesla T4")])
def test_cards_before_ampere_have_neither_bf16_nor_tf32(precision: str, capability: tuple[int, int], name: str) -> None:
    with pytest.raises(UnsupportedPrecision) as caught:
        check_capability(precision, capability, name)
    message = str(caught.value)
    assert repr(precision) in message
    assert name in message
    assert "allowed: fp16 or fp32" in message
    assert "sm_80" in message


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16", "fp64"])
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (9, 0), (12, 0)])
def test_cards_from_ampere_on_have_everything(precision: str, capability: tuple[int, int]) -> None:
    assert check_capability(precision, capability, "NVIDIA H200") is None


def test_fp16_is_for_tensor_cores_and_older_cards_are_told_so() -> None:
    assert check_capability("fp16", (7, 0), "Tesla V100") is None
    assert "gains nothing" in str(check_capability("fp16", (6, 1), "NVIDIA TITAN Xp"))
    with pytest.raises(UnsupportedPrecision, match="sm_50"):
        check_capability("fp16", (5, 0), "Quadro M2000M")


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_plain_types_run_anywhere(precision: str) -> None:
    assert check_capability(precision, (5, 0), "Quadro M2000M") is None


def test_a_run_is_refused_before_anything_is_put_on_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    config = run_config(tmp_path, tmp_path, precision="bf16", device="cuda")
    with pytest.raises(UnsupportedPrecision, match=r"Tesla V100 \(sm_70\)"):
        choose_device(config, Alone())
