"""The kernels as differentiable functions of tensors.

Activations are fp32 or bf16 and share one type; parameters and their gradients are fp32, products of weights run in
the activations' type, and whatever is summed inside a kernel is summed in fp32.

Letters: N tokens, B rows, D features, H heads, E = D / H, F features of the inner layer, P positions of a table,
M masked positions, V logits of a position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from bert_trainer.model.backends.cpu.library import Library


@dataclass(frozen=True, slots=True)
class Drop:
    """Dropout at one site: ``keys`` for its vectors, int32, as ``dropout.DropoutKeys`` derives them."""

    keys: Tensor
    probability: float

    @property
    def arguments(self) -> tuple[Tensor, int, float]:
        """What kernels take: keys, the lowest signed bits that stay, the scale of what stays."""
        return self.keys, round(self.probability * 2**32) - 2**31, 1.0 / (1.0 - self.probability)


_NO_DROP = (None, 0, 1.0)


def _arguments(drop: Drop | None) -> tuple[Tensor | None, int, float]:
    return _NO_DROP if drop is None else drop.arguments


class _AddBias(Function):
    @staticmethod
    def forward(ctx: Any, library: Library, x: Tensor, *biases: Tensor) -> Tensor:
        ctx.library, ctx.sizes = library, [bias.numel() for bias in biases]
        # In place: x is a fresh product, which no backward pass needs.
        ctx.mark_dirty(x)
        library.call("add_bias", x.dtype, x, biases[0] if len(biases) == 1 else torch.cat(biases), *x.shape)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        # (N, D) summed over N in fp32: a bias gradient added up in bf16 would stop growing.
        sums = torch.zeros(grad.shape[1], dtype=torch.float32)
        ctx.library.call("column_sums", grad.dtype, grad, sums, *grad.shape)
        return None, grad, *sums.split(ctx.sizes)  # type: ignore[no-untyped-call]


def add_bias(library: Library, x_ND: Tensor, *biases: Tensor) -> Tensor:
    """Add biases, laid side by side, in place."""
    return _AddBias.apply(library, x_ND, *biases)  # type: ignore[no-any-return]


class _Dropout(Function):
    @staticmethod
    def forward(ctx: Any, library: Library, x: Tensor, drop: Drop) -> Tensor:
        ctx.library, ctx.drop = library, drop
        return _dropped(library, x, drop)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # The bits are hashed again from the keys; no mask is kept.
        return None, _dropped(ctx.library, grad.contiguous(), ctx.drop), None


def _dropped(library: Library, x: Tensor, drop: Drop) -> Tensor:
    out = torch.empty_like(x)
    library.call("drop", x.dtype, x, *drop.arguments, out, *x.shape)
    return out


def dropout(library: Library, x_ND: Tensor, drop: Drop) -> Tensor:
    """Drop features."""
    return _Dropout.apply(library, x_ND, drop)  # type: ignore[no-any-return]


class _DropAddNorm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        library: Library,
        y: Tensor,
        bias: Tensor,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        eps: float,
        drop: Drop | None,
    ) -> Tensor:
        # total: x + dropout(y + bias), all that the backward pass needs of x and y; statistics in fp32, (N,) each.
        total, out = torch.empty_like(y), torch.empty_like(y)
        mean, deviation = torch.empty(2, y.shape[0])
        arguments = (y, bias, x, gamma, beta, *_arguments(drop), eps, total, out, mean, deviation)
        library.call("drop_add_norm", y.dtype, *arguments, *y.shape)
        ctx.save_for_backward(total, mean, deviation, gamma)
        ctx.library, ctx.drop = library, drop
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        total, mean, deviation, gamma = ctx.saved_tensors
        grad = grad.contiguous()
        grad_y, grad_x = torch.empty_like(grad), torch.empty_like(grad)
        sums = torch.zeros(3, grad.shape[1])
        saved = (grad, total, mean, deviation, gamma, *_arguments(ctx.drop))
        ctx.library.call("drop_add_norm_gradient", grad.dtype, *saved, grad_y, grad_x, *sums, *grad.shape)
        bias, to_gamma, to_beta = sums
        return None, grad_y, bias, grad_x, to_gamma, to_beta, None, None


def drop_add_norm(
    library: Library, y_ND: Tensor, bias_D: Tensor, x_ND: Tensor, norm: torch.nn.LayerNorm, drop: Drop | None
) -> Tensor:
    """Return LayerNorm(x + dropout(y + bias)), (N, D)."""
    return _DropAddNorm.apply(library, y_ND, bias_D, x_ND, norm.weight, norm.bias, norm.eps, drop)  # type: ignore[no-any-return]


class _AddNorm(Function):
    @staticmethod
    def forward(
        ctx: Any, library: Library, y: Tensor, x: Tensor, gamma: Tensor, eps: float, drop: Drop | None
    ) -> tuple[Tensor, Tensor]:
        total, out = torch.empty_like(y), torch.empty_like(y)
        mean, deviation = torch.empty(2, y.shape[0])
        library.call("add_norm", y.dtype, y, x, gamma, *_arguments(drop), eps, total, out, mean, deviation, *y.shape)
        ctx.save_for_backward(total, mean, deviation, gamma)
        ctx.library, ctx.drop = library, drop
        return total, out

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad, grad_total = grad.contiguous(), grad_total.contiguous()
        grad_x, to_gamma = torch.empty_like(grad), torch.zeros(grad.shape[1])
        # Where nothing is dropped, y's gradient is x's.
        grad_y = grad_x if ctx.drop is None else torch.empty_like(grad)
        saved = (grad, grad_total, *ctx.saved_tensors, *_arguments(ctx.drop))
        ctx.library.call("add_norm_gradient", grad.dtype, *saved, grad_y, grad_x, to_gamma, *grad.shape)
        return None, grad_y, grad_x, to_gamma, None, None


def add_norm(
    library: Library, y_ND: Tensor, x_ND: Tensor, norm: torch.nn.LayerNorm, drop: Drop | None
) -> tuple[Tensor, Tensor]:
    """Return total = x + dropout(y) and LayerNorm(total), (N, D) each. norm: a gain alone."""
    return _AddNorm.apply(library, y_ND, x_ND, norm.weight, norm.eps, drop)  # type: ignore[no-any-return]


class _Norm(Function):
    @staticmethod
    def forward(ctx: Any, library: Library, x: Tensor, gamma: Tensor, eps: float) -> Tensor:
        out = torch.empty_like(x)
        mean, deviation = torch.empty(2, x.shape[0])
        library.call("norm", x.dtype, x, gamma, eps, out, mean, deviation, *x.shape)
        ctx.save_for_backward(x, mean, deviation, gamma)
        ctx.library = library
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        grad_x, to_gamma = torch.empty_like(grad), torch.zeros(grad.shape[1])
        ctx.library.call("norm_gradient", grad.dtype, grad, *ctx.saved_tensors, grad_x, to_gamma, *grad.shape)
        return None, grad_x, to_gamma, None


def norm(library: Library, x_ND: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    """Return LayerNorm(x), (N, D). norm: a gain alone."""
    return _Norm.apply(library, x_ND, norm.weight, norm.eps)  # type: ignore[no-any-return]


class _BiasGelu(Function):
    @staticmethod
    def forward(ctx: Any, library: Library, y: Tensor, bias: Tensor, by_tanh: bool) -> Tensor:
        out = torch.empty_like(y)
        library.call("bias_gelu", y.dtype, y, bias, out, *y.shape, by_tanh)
        # What goes into GELU, not its slope: (N, F) once instead of twice, for one more exponential per element.
        ctx.save_for_backward(y, bias)
        ctx.library, ctx.by_tanh = library, by_tanh
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, bias = ctx.saved_tensors
        grad = grad.contiguous()
        grad_y, grad_bias = torch.empty_like(y), torch.zeros_like(bias)
        ctx.library.call("bias_gelu_gradient", y.dtype, grad, y, bias, grad_y, grad_bias, *y.shape, ctx.by_tanh)
        return None, grad_y, grad_bias, None


def bias_gelu(library: Library, y_NF: Tensor, bias_F: Tensor, *, by_tanh: bool) -> Tensor:
    """Return GELU(y + bias), exact or by its tanh approximation."""
    return _BiasGelu.apply(library, y_NF, bias_F, by_tanh)  # type: ignore[no-any-return]


class _GatedGelu(Function):
    @staticmethod
    def forward(ctx: Any, library: Library, y: Tensor, by_tanh: bool) -> Tensor:
        out = y.new_empty(y.shape[0], y.shape[1] // 2)
        library.call("gated_gelu", y.dtype, y, out, *out.shape, by_tanh)
        ctx.save_for_backward(y)
        ctx.library, ctx.by_tanh = library, by_tanh
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (y,) = ctx.saved_tensors
        grad, grad_y = grad.contiguous(), torch.empty_like(y)
        ctx.library.call("gated_gelu_gradient", y.dtype, grad, y, grad_y, *grad.shape, ctx.by_tanh)
        return None, grad_y, None


def gated_gelu(library: Library, y_N2F: Tensor, *, by_tanh: bool) -> Tensor:
    """Return GELU(first half) times second half, (N, F); exact or by its tanh approximation."""
    return _GatedGelu.apply(library, y_N2F, by_tanh)  # type: ignore[no-any-return]


class _Rotate(Function):
    @staticmethod
    def forward(
        ctx: Any, library: Library, qkv: Tensor, cosines: Tensor, sines: Tensor, positions: Tensor, num_heads: int
    ) -> Tensor:
        ctx.library, ctx.tables, ctx.num_heads = library, (cosines, sines, positions), num_heads
        # In place: a fresh product, as for ``add_bias``.
        ctx.mark_dirty(qkv)
        return _rotated(library, qkv, ctx.tables, num_heads, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # In place again: ``attention`` has made it for nobody else.
        return None, _rotated(ctx.library, grad.contiguous(), ctx.tables, ctx.num_heads, -1.0), None, None, None, None


def _rotated(library: Library, qkv: Tensor, tables: Sequence[Tensor], num_heads: int, direction: float) -> Tensor:
    tokens, row = qkv.shape
    # Heads of q and of k lie side by side.
    library.call("rotate", qkv.dtype, qkv, *tables, direction, tokens, row, 2 * num_heads, row // 3 // num_heads)
    return qkv


def rotate(
    library: Library,
    qkv_N3D: Tensor,
    cosines_PE2: Tensor,
    sines_PE2: Tensor,
    positions_N: Tensor,
    num_heads: int,
) -> Tensor:
    """Rotate queries and keys by the angles of their positions, in place, for ``attention`` and nothing else.

    Feature i of a head and feature i + E / 2 make a pair. cosines_PE2, sines_PE2: fp32, (P, E / 2). positions_N: int64.
    """
    return _Rotate.apply(library, qkv_N3D, cosines_PE2, sines_PE2, positions_N, num_heads)  # type: ignore[no-any-return]


class _Attention(Function):
    @staticmethod
    def forward(
        ctx: Any, library: Library, qkv: Tensor, starts: Tensor, num_heads: int, drop: Drop | None, reach: int | None
    ) -> Tensor:
        tokens, size = qkv.shape[0], qkv.shape[1] // 3
        out = torch.empty(tokens, size, dtype=qkv.dtype)
        # Of each query's softmax, in fp32: with it and the output the backward pass makes the weights again.
        logsum = torch.empty(tokens, num_heads)
        ctx.shape = (tokens if reach is None else reach, 3 * size, len(starts), tokens, num_heads, size // num_heads)
        ctx.constants = (starts, *_arguments(drop), 1.0 / math.sqrt(size // num_heads))
        library.call("attention", qkv.dtype, *_parts(qkv), *ctx.constants, out, logsum, *ctx.shape)
        ctx.save_for_backward(qkv, out, logsum)
        ctx.library = library
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        qkv, out, logsum = ctx.saved_tensors
        grad, grad_qkv = grad.contiguous(), torch.empty_like(qkv)
        saved = (grad, out, logsum, *_parts(qkv), *ctx.constants)
        ctx.library.call("attention_gradient", qkv.dtype, *saved, *_parts(grad_qkv), *ctx.shape)
        return None, grad_qkv, None, None, None, None


def _parts(qkv: Tensor) -> Sequence[Tensor]:
    return qkv.chunk(3, dim=1)  # views: their rows lie 3 * D apart


def attention(
    library: Library,
    qkv_N3D: Tensor,
    starts_B: Tensor,
    num_heads: int,
    drop: Drop | None,
    reach: int | None = None,
) -> Tensor:
    """Return softmax attention inside each row, (N, D).

    starts_B: int64, the place of every row's first token. drop: keys of rows at this site, int32 (B,). reach: how many
    places away a token sees others of its row, on both sides; None for all of them.
    """
    return _Attention.apply(library, qkv_N3D, starts_B, num_heads, drop, reach)  # type: ignore[no-any-return]


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, library: Library, logits: Tensor, labels: Tensor, entries: int) -> tuple[Tensor, Tensor]:
        losses, best = torch.empty(logits.shape[0]), torch.empty(logits.shape[0], dtype=torch.int64)
        library.call(
            "cross_entropy", logits.dtype, logits, labels, losses, best, *logits.shape, entries, ctx.needs_input_grad[1]
        )
        # By now they hold the gradient, softmax minus one-hot.
        ctx.save_for_backward(logits)
        correct = (best == labels).sum()
        ctx.mark_non_differentiable(correct)
        return losses.sum(), correct

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (logits,) = ctx.saved_tensors
        # By a number: a tensor of half precision would bias all gradients by its rounding. In place, as all here.
        return None, logits.mul_(grad.item()), None, None


def cross_entropy(library: Library, logits_MV: Tensor, labels_M: Tensor, entries: int) -> tuple[Tensor, Tensor]:
    """Return the sum of losses in nats, fp32, and how many best entries are the labels. Uses the logits up.

    entries: columns that stand for something; the others count as minus infinity.
    """
    return _CrossEntropy.apply(library, logits_MV, labels_M, entries)  # type: ignore[no-any-return]
