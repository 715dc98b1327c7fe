"""What a precision needs of a GPU; no GPU is needed to know it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bert_trainer.errors import InputError, UnsupportedPrecision
from bert_trainer.model.backends.gpu.capability import check_build, check_capability
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.device import choose_device
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
        choose_device(config, SingleRank())


CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 3), (12, 0)])
def test_code_for_a_card_serves_newer_ones_of_its_generation(capability: tuple[int, int]) -> None:
    check_build(CUDA_13, capability, "card")


@pytest.mark.parametrize(
    ("architectures", "capability"),
    [
        (CUDA_13, (7, 0)),
        (["sm_86"], (8, 0)),
        (["sm_80"], (9, 0)),
        (["sm_90a"], (10, 0)),
        (["sm_100a"], (10, 3)),
        ([], (8, 0)),
    ],
)
def test_a_build_without_code_for_the_card_is_refused_by_name(
    architectures: list[str], capability: tuple[int, int]
) -> None:
    with pytest.raises(InputError, match=rf"Tesla V100 \(sm_{capability[0]}{capability[1]}\)") as caught:
        check_build(architectures, capability, "Tesla V100")
    assert all(name in str(caught.value) for name in architectures)
    assert "images/README.md" in str(caught.value)


@pytest.mark.parametrize(
    ("capability", "older_one_helps"), [((3, 7), False), ((5, 0), True), ((7, 0), True), ((9, 0), False)]
)
def test_a_card_that_newer_torches_have_left_behind_is_sent_to_the_image_with_an_older_one(
    capability: tuple[int, int], older_one_helps: bool
) -> None:
    with pytest.raises(InputError) as caught:
        check_build(["sm_75", "sm_120"], capability, "card")
    assert ("with torch 2.7" in (caught.value.hint or "")) is older_one_helps


@pytest.mark.parametrize(
    ("architectures", "capability"),
    [(["sm_70", "compute_70"], (9, 0)), (["compute_90"], (12, 0)), (["sm_90a"], (9, 0))],
)
def test_ptx_serves_everything_newer_and_code_for_one_card_that_card(
    architectures: list[str], capability: tuple[int, int]
) -> None:
    check_build(architectures, capability, "card")
