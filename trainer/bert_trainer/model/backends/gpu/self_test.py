"""Whether a way of attention computes what it should on the card at hand: tried on a few rows before it is used.

Kernels differ between cards, drivers and releases of PyTorch. A wrong one would train a worse model without any error;
one that is missing would end the run in its first step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import Tensor

from bert_trainer.model.backends.gpu.attention import WAYS, Attention, Rows, seed_generator

# A few tokens, a tile of 64, single tokens, one more than two tiles.
_LENGTHS = (3, 64, 1, 129, 40, 1)
_HEADS = 2
_TOLERANCES = {torch.bfloat16: 3e-2, torch.float16: 5e-3, torch.float32: 5e-3, torch.float64: 1e-9}
"""Of the largest value."""
_DROPOUT = 0.25


def find_fault(name: Attention, device: torch.device, dtype: torch.dtype, head_size: int) -> str | None:
    """Return in one line what an attention implementation computes wrong; None if it passes."""
    try:
        return _compare(name, device, dtype, head_size)
    except torch.OutOfMemoryError:
        # Says nothing about the kernel: another attention, which needs more memory, would not help.
        raise
    except (RuntimeError, NotImplementedError, TypeError) as error:
        return f"attention {name} does not run: {str(error).strip().splitlines()[0]}"


def make_rows(lengths: tuple[int, ...], device: torch.device) -> Rows:
    """Return the places of rows of some lengths."""
    counts = torch.tensor(lengths)
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    row_N = torch.repeat_interleave(torch.arange(len(lengths)), counts)
    longest = max(lengths)
    padded_N = torch.arange(int(counts.sum())) - bounds[row_N] + row_N * longest
    mask_BT = torch.arange(longest) < counts[:, None]
    return Rows(bounds.int().to(device), padded_N.to(device), mask_BT.to(device))


def attend_row_by_row(qkv: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Return softmax attention without dropout, spelled out: (N, 3, H, E) to (N, H, E)."""
    found = []
    for row in torch.split(qkv, list(lengths)):
        q, k, v = (part.transpose(0, 1) for part in row.unbind(1))
        found.append((F.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, -1) @ v).transpose(0, 1))
    return torch.cat(found)


def _compare(name: Attention, device: torch.device, dtype: torch.dtype, head_size: int) -> str | None:
    rows = make_rows(_LENGTHS, device)
    generator = torch.Generator().manual_seed(1)
    shape = (sum(_LENGTHS), 3, _HEADS, head_size)
    qkv = torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()
    weights = torch.randn(shape[0], *shape[2:], generator=generator).to(device)
    found, gradient = _attend(name, qkv, rows, weights, 0.0)
    exact = qkv.detach().double().requires_grad_()
    expected = attend_row_by_row(exact, _LENGTHS)
    (expected_gradient,) = torch.autograd.grad((expected * weights).sum(), exact)
    for what, got, wanted in (("values", found, expected), ("gradients", gradient, expected_gradient)):
        error = _share((got - wanted).abs().amax(), wanted.abs().amax())
        if not error <= _TOLERANCES[dtype]:
            return f"attention {name} failed its self-test: {what} differ by {error:.1e} of the largest from fp64"
    seed_generator(device, 1)
    found, gradient = _attend(name, qkv, rows, weights, _DROPOUT)
    # No reference has the operator's random bits. But with given bits the result is linear in the values: sum(dL/dv *
    # v) is L, unless the two passes drop otherwise.
    loss, by_values = (found * weights).sum(), (gradient[:, 2] * qkv[:, 2].double()).sum()
    error = _share((loss - by_values).abs(), (found * weights).abs().sum())
    if not error <= _TOLERANCES[dtype]:
        return f"attention {name} failed its self-test: its backward pass drops other weights than its forward pass"
    return None


def _attend(name: Attention, qkv: Tensor, rows: Rows, weights: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    """Return the values, and the gradient of their weighted sum; in fp64."""
    y = WAYS[name](qkv, rows, max(_LENGTHS), dropout, None)
    (gradient,) = torch.autograd.grad((y.double() * weights).sum(), qkv)
    return y.detach().double(), gradient.double()


def _share(part: Tensor, whole: Tensor) -> float:
    return float((part / whole).detach())
