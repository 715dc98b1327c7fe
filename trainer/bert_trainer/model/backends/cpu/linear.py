"""Products with weights, converted to the compute type once a step, and rows of tables; gradients go to ``main_grad``.

Letters: N tokens, D input features, F output features, V rows of a table.
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
    converted = side_by_side(weights).to(dtype)
    if cache is not None:
        # The weights themselves are held too: the id of one that has been freed could come back as another's.
        cache[key] = weights, converted
    return converted


def side_by_side(weights: Sequence[Tensor]) -> Tensor:
    """Return weights of the same width below each other: a view where they lie so already, as in flat buffers."""
    first = weights[0].detach()
    end, storage = first.data_ptr(), first.untyped_storage().data_ptr()
    for weight in weights:
        if weight.data_ptr() != end or weight.untyped_storage().data_ptr() != storage or not weight.is_contiguous():
            return torch.cat([weight.detach() for weight in weights])
        end += weight.nbytes
    return first.as_strided((sum(len(weight) for weight in weights), first.shape[1]), (first.shape[1], 1))


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
        grad_x = _matmul_transposed(grad, weight.t())
        sizes, wanted = [one.shape[0] for one in ctx.weights], ctx.needs_input_grad[2:]
        if _sums_in_place(ctx.weights, wanted, grad.dtype):
            for one, part in zip(ctx.weights, grad.split(sizes, dim=1), strict=True):  # type: ignore[no-untyped-call]
                main_grad(one).addmm_(part.t(), x)  # type: ignore[union-attr]
            return None, grad_x, *[None] * len(sizes)
        # (F, N) by (N, D): gradients of all weights in one product, split by their rows.
        parts = _matmul_transposed(grad.t(), x.t()).split(sizes)  # type: ignore[no-untyped-call]
        left = [
            _accumulate(ctx.library, one, part) if is_wanted else None
            for one, part, is_wanted in zip(ctx.weights, parts, wanted, strict=True)
        ]
        return None, grad_x, *left


def _sums_in_place(weights: Sequence[Tensor], wanted: Sequence[bool], dtype: torch.dtype) -> bool:
    """Return whether products of fp32 add themselves to ``main_grad``."""
    # Without a gradient of its own in between, which is allocated, written and read once more: 18 % of the time of
    # these products, 5 % of a step of BERT-base. oneDNN's products, which AMD's processors want, cannot add.
    return (
        dtype == torch.float32
        and not prefers_onednn()
        and all(wanted)
        and all(main_grad(weight) is not None for weight in weights)
    )


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


class _LookUp(Function):
    @staticmethod
    def forward(ctx: Any, library: Library, table: Tensor, index: Tensor) -> Tensor:
        ctx.library, ctx.table, ctx.index = library, table, index
        return table.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        total = main_grad(ctx.table)
        if total is None:
            return None, torch.ops.aten.embedding_dense_backward(grad, ctx.index, len(ctx.table), -1, False), None
        # Autograd would fill and add a gradient of the whole table, though a micro-batch has few of its rows. The sums
        # are the same to the bit: first those of a row among themselves.
        order = ctx.index.argsort(stable=True)
        rows, counts = ctx.index[order].unique_consecutive(return_counts=True)
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        sizes = len(rows), grad.shape[1]
        ctx.library.call("add_rows", torch.float32, total, grad.contiguous(), order, starts, rows, *sizes)
        return None, None, None


def look_up(library: Library, table_VD: Tensor, index_N: Tensor) -> Tensor:
    """Return rows of a table, (N, D), in its type. index_N: int64."""
    return _LookUp.apply(library, table_VD, index_N)  # type: ignore[no-any-return]


def linear(library: Library, x_ND: Tensor, *weights: Tensor) -> Tensor:
    """Return x times the transposed weights, laid side by side: (N, sum of their rows). No bias."""
    return _Linear.apply(library, x_ND, *weights)  # type: ignore[no-any-return]
