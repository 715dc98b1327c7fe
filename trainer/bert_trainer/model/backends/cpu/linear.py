"""Products with weights: converted to the compute type once a step, with bf16 gradients added to ``main_grad``.

Letters: N tokens, D input features, F output features.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from bert_trainer.model.backends.cpu.library import Library, prefers_onednn

_MAIN_GRAD = "main_grad"
"""Attribute of a parameter: the fp32 tensor in which kernels accumulate its gradient; Megatron's name for it."""


def attach_main_grad(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Let kernels accumulate a parameter's gradient in place, where they can: in fp32 on a CPU.

    gradient: the parameter's ``grad``, contiguous.
    """
    if gradient.dtype == torch.float32 and gradient.device.type == "cpu":
        setattr(parameter, _MAIN_GRAD, gradient)


def main_grad(parameter: Tensor) -> Tensor | None:
    """Return the tensor in which kernels accumulate a parameter's gradient; None where autograd does it."""
    return getattr(parameter, _MAIN_GRAD, None)


_Cache = dict[tuple[torch.dtype, tuple[int, ...]], tuple[Sequence[Tensor], Tensor]]


class _ThreadCache(threading.local):
    """Converted weights of one thread, so that a block that ends does not clear what another thread has cached."""

    weights: _Cache | None = None


_cache = _ThreadCache()


@contextmanager
def cached_weights() -> Iterator[None]:
    """Convert each weight to the type and layout of products once within the block, in which none may change."""
    before, _cache.weights = _cache.weights, {}
    try:
        yield
    finally:
        _cache.weights = before


def _convert(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return weights side by side, in the type of products."""
    key, cache = (dtype, tuple(map(id, weights))), _cache.weights
    if cache is not None and key in cache:
        return cache[key][1]
    converted = (weights[0] if len(weights) == 1 else torch.cat(list(weights))).detach().to(dtype)
    if cache is not None:
        # The weights themselves are held too: the id of one that has been freed could come back as another's.
        cache[key] = weights, converted
    return converted


def _matmul_transposed(a: Tensor, b: Tensor) -> Tensor:
    """Return a times the transposed b."""
    if a.dtype == torch.float32 and prefers_onednn() and a.numel() > 0:  # oneDNN rejects empty operands
        return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")  # type: ignore[no-any-return]
    return a @ b.t()


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, library: Library, x: Tensor, *weights: Tensor) -> Tensor:
        weight = _convert(weights, x.dtype)
        # The converted weight is saved, not converted again in the backward pass.
        ctx.save_for_backward(x, weight)
        ctx.library, ctx.weights = library, weights
        return _matmul_transposed(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        # (F, N) by (N, D): gradients of all weights in one product, split by their rows.
        parts = _matmul_transposed(grad.t(), x.t()).split([one.shape[0] for one in ctx.weights])  # type: ignore[no-untyped-call]
        wanted = ctx.needs_input_grad[2:]
        left = [
            _accumulate(ctx.library, one, part) if is_wanted else None
            for one, part, is_wanted in zip(ctx.weights, parts, wanted, strict=True)
        ]
        return None, _matmul_transposed(grad, weight.t()), *left


def _accumulate(library: Library, weight: Tensor, grad: Tensor) -> Tensor | None:
    """Add a weight's bf16 gradient to its ``main_grad`` in one pass; returns what is left to autograd."""
    total = main_grad(weight)
    if total is None or grad.dtype != torch.bfloat16:
        return grad
    # Autograd would convert the gradient to fp32 and then add it: two more passes over memory. It is given None
    # instead, and still runs the parameter's post-accumulate hooks once all uses of the weight have been through,
    # which is what the overlapped reduction waits for.
    library.call("add_to", grad.dtype, total, grad, grad.numel())
    return None


def linear(library: Library, x_ND: Tensor, *weights: Tensor) -> Tensor:
    """Return x times the transposed weights, laid side by side: (N, sum of their rows). No bias."""
    return _Linear.apply(library, x_ND, *weights)  # type: ignore[no-any-return]
