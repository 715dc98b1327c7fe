"""Attention inside rows: who takes which way, what each computes, and what is dropped. No GPU is needed for it.

The operators of CUDA have shapes everywhere and values on a GPU alone (test_on_a_gpu.py); values are those of the way
that runs on any device.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bert_trainer.errors import TrainerError
from bert_trainer.model.backends.gpu import attention, encoder, self_test
from bert_trainer.model.backends.gpu.attention import (
    ATTENTIONS,
    Attention,
    Rows,
    attend_padded,
    choose_attention,
    seed_generator,
)
from bert_trainer.model.backends.gpu.self_test import find_fault, make_rows
from confidence import FIVE_SIGMA, share_z

CPU = torch.device("cpu")
V100, T4, A100, L40S, H200 = (7, 0), (7, 5), (8, 0), (8, 9), (9, 0)
FP64, FP32, FP16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16


@pytest.mark.parametrize(
    ("capability", "dtype", "head_size", "expected"),
    [
        (H200, BF16, 64, "flash"),
        (H200, FP16, 64, "flash"),
        (L40S, BF16, 128, "flash"),
        (A100, BF16, 32, "flash"),
        (A100, BF16, 256, "efficient"),
        (A100, FP32, 64, "efficient"),
        (V100, FP16, 64, "efficient"),
        (T4, FP16, 64, "efficient"),
        (V100, FP32, 64, "efficient"),
        ((6, 1), FP32, 64, "efficient"),
        (H200, FP64, 64, "padded"),
        (H200, BF16, 20, "padded"),
        (V100, FP16, 12, "padded"),
    ],
)
def test_every_card_type_and_head_size_has_its_way(
    capability: tuple[int, int], dtype: torch.dtype, head_size: int, expected: Attention
) -> None:
    assert choose_attention(capability, dtype, head_size) == expected


@pytest.mark.parametrize("dtype", [FP64, FP32, FP16, BF16], ids=str)
def test_padded_rows_give_the_values_and_gradients_of_rows_on_their_own(dtype: torch.dtype) -> None:
    assert find_fault("padded", CPU, dtype, 16) is None


def _across_rows(qkv: Tensor, rows: Rows, longest: int, dropout: float, reach: int | None) -> Tensor:
    one = make_rows((len(qkv),), CPU)
    return attend_padded(qkv, one, len(qkv), dropout)


class _OtherBits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, qkv: Tensor) -> Tensor:
        mask = torch.rand(qkv.shape[0], 1, 1) < 0.5
        return qkv[:, 2] * mask

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        mask = torch.rand(gradient.shape[0], 1, 1) < 0.5
        return torch.stack([gradient * 0, gradient * 0, gradient * mask], 1)


def _bits_of_its_own_in_the_backward_pass(
    qkv: Tensor, rows: Rows, longest: int, dropout: float, reach: int | None
) -> Tensor:
    return _OtherBits.apply(qkv) if dropout else attend_padded(qkv, rows, longest, 0.0)


def _missing(qkv: Tensor, rows: Rows, longest: int, dropout: float, reach: int | None) -> Tensor:
    raise NotImplementedError("no kernel image is available\nfor execution on the device")


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (_across_rows, "attention padded failed its self-test: values differ by"),
        (_bits_of_its_own_in_the_backward_pass, "its backward pass drops other weights"),
        (_missing, "attention padded does not run: no kernel image is available"),
    ],
    ids=["across rows", "other bits", "missing"],
)
def test_a_way_that_is_wrong_on_this_card_is_found_out(
    monkeypatch: pytest.MonkeyPatch, way: attention.Attend, words: str
) -> None:
    monkeypatch.setitem(self_test.WAYS, "padded", way)
    fault = find_fault("padded", CPU, FP32, 16)
    assert fault is not None
    assert words in fault
    assert "\n" not in fault


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    ("name", "dtype"), [("flash", BF16), ("flash", FP16), ("efficient", FP16), ("efficient", FP32), ("padded", BF16)]
)
def test_operators_of_cuda_take_and_give_the_shapes_that_layers_have(
    name: Attention, dtype: torch.dtype, dropout: float
) -> None:
    """On the meta device: the schema, types and shapes of the real operators, forward and backward."""
    rows = Rows(*(part.to("meta") for part in make_rows((9, 64, 1), CPU)))
    packed = torch.empty(74, 3 * 2 * 64, dtype=dtype, device="meta", requires_grad=True)
    y = attention.WAYS[name](packed.view(74, 3, 2, 64), rows, 64, dropout)
    assert (y.shape, y.dtype) == ((74, 2, 64), dtype)
    (gradient,) = torch.autograd.grad(y.flatten(1).sum(), packed)
    assert (gradient.shape, gradient.dtype) == (packed.shape, dtype)


def test_all_ways_are_tried_here() -> None:
    assert set(ATTENTIONS) == set(attention.WAYS) == {"flash", "efficient", "padded"}


def dropped_weights(seed: int, dropout: float = 0.1) -> Tensor:
    """Return which attention weights are dropped, bool (heads, 64, 64), by values that name their token."""
    seed_generator(CPU, seed)
    qkv = torch.zeros(64, 3, 4, 64, dtype=FP64)
    qkv[:, 2] = torch.eye(64, dtype=FP64)[:, None]
    return attend_padded(qkv, make_rows((64,), CPU), 64, dropout).transpose(0, 1) == 0


def test_as_many_weights_are_dropped_as_asked_for_and_the_others_scaled() -> None:
    dropped = dropped_weights(3)
    assert abs(share_z(int(dropped.sum()), dropped.numel(), 0.1)) < FIVE_SIGMA
    seed_generator(CPU, 3)
    ones = torch.ones(64, 3, 4, 64, dtype=FP64)
    y = attend_padded(ones, make_rows((64,), CPU), 64, 0.1)
    torch.testing.assert_close(y[:, :, 0].T, (~dropped).sum(-1).double() / 64 / 0.9, rtol=1e-9, atol=0)


def test_bits_are_a_function_of_the_seed() -> None:
    assert torch.equal(dropped_weights(3), dropped_weights(3))
    both = dropped_weights(3) & dropped_weights(4)
    assert abs(share_z(int(both.sum()), both.numel(), 0.01)) < FIVE_SIGMA, "a hundredth, as they are independent"


@pytest.mark.parametrize("faults", [{"flash"}, {"flash", "padded"}])
def test_a_faulty_way_is_replaced_by_padding_which_is_tried_too(
    monkeypatch: pytest.MonkeyPatch, faults: set[str]
) -> None:
    tried: list[str] = []

    def fault_of(attention: Attention, *_: object) -> str | None:
        tried.append(attention)
        return f"{attention} failed" if attention in faults else None

    monkeypatch.setattr(encoder, "choose_attention", lambda *_: "flash")
    monkeypatch.setattr(encoder, "find_fault", fault_of)
    monkeypatch.setattr(encoder, "why_not_compiled", lambda _: "not wanted")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    find = encoder.find.__wrapped__
    if "padded" in faults:
        with pytest.raises(TrainerError, match="padded failed"):
            find(CPU, torch.bfloat16, 64)
    else:
        assert find(CPU, torch.bfloat16, 64).attention == "padded"
    assert tried == ["flash", "padded"]
