"""Self-attention inside the rows of a flat micro-batch on GPUs: three ways, and which of them a card takes.

All three compute the same. They drop attention weights with the bits of the device's own generator: a mask hashed for
every pair of tokens, as the CPU's kernels do, would have to be written to memory, which is what these kernels avoid.

Letters: N tokens of a micro-batch with padding, B rows, T longest row, H heads, E features of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import Tensor

from bert_trainer.model.operations import inside_window

Attention = Literal["flash", "efficient", "padded"]
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)

_FLASH_FROM = (8, 0)
"""Compute capability; the kernels are made of instructions that came with Ampere."""
_MAX_FLASH_HEAD = 128
"""It goes up to 256, on some cards and without dropout on others; models of that kind are not BERT."""
_ALIGNMENT = 8
"""Features: 16 bytes in half precision, which is what both kernels load at a time."""
_NO_MASK = 0  # of the memory-efficient operator: neither causal nor given


class Rows(NamedTuple):
    """Where the rows of a padding-free micro-batch are, as each of the three takes it."""

    bounds: Tensor
    """int32 (B + 1,): where rows begin, and the end."""
    # Of the padded way alone: the others read no more than the bounds.
    padded_index_N: Tensor | None = None
    """int64: the place of every token in rows padded to T and laid end to end."""
    mask_BT: Tensor | None = None
    """bool: where a padded row has a token."""


Attend = Callable[[Tensor, Rows, int, float, int | None], Tensor]
"""(qkv (N, 3, H, E), rows, T or more, share of weights that are dropped, and how many tokens on either side a token
attends to or None for its whole row) to (N, H, E)."""


def choose_attention(capability: tuple[int, int], dtype: torch.dtype, head_size: int) -> Attention:
    """Return the fastest way that a card has for activations of a type and heads of a size.

    capability: major and minor, (7, 0) for a V100. ``capability.check_capability`` has refused what the card cannot
    compute at all.
    """
    half = dtype in (torch.float16, torch.bfloat16)
    if head_size % _ALIGNMENT or not (half or dtype == torch.float32):
        return "padded"
    if half and capability >= _FLASH_FROM and head_size <= _MAX_FLASH_HEAD:
        return "flash"
    return "efficient"


def attend_flash(qkv: Tensor, rows: Rows, longest: int, dropout: float, reach: int | None = None) -> Tensor:
    """FlashAttention (Dao 2023) as PyTorch brings it: the operator that its nested tensors call.

    The public ``torch.nn.attention.varlen.varlen_attn`` is the same without dropout.
    """
    q, k, v = qkv.unbind(1)
    bounds = rows.bounds
    forward = torch.ops.aten._flash_attention_forward
    window = {} if reach is None else {"window_size_left": reach, "window_size_right": reach}
    return forward(q, k, v, bounds, bounds, longest, longest, dropout, False, False, **window)[0]  # type: ignore[no-any-return]


def attend_efficient(qkv: Tensor, rows: Rows, longest: int, dropout: float, reach: int | None = None) -> Tensor:
    """Memory-efficient attention (Rabe and Staats 2021) as PyTorch brings it, for older cards and for fp32.

    It too is what nested tensors call, and takes rows from their bounds. Its windows are causal alone: none here.
    """
    assert reach is None, "way_of takes another one"
    q, k, v = (part.unsqueeze(0) for part in qkv.unbind(1))
    bounds = rows.bounds
    forward = torch.ops.aten._efficient_attention_forward
    # The batch has one element, N tokens long; bounds make rows of it.
    y_1NHE = forward(q, k, v, None, bounds, bounds, longest, longest, dropout, _NO_MASK, True)[0]
    return y_1NHE.squeeze(0)  # type: ignore[no-any-return]


def attend_padded(qkv: Tensor, rows: Rows, longest: int, dropout: float, reach: int | None = None) -> Tensor:
    """Rows padded to the longest, through the public function of PyTorch: on any device, in any type."""
    assert rows.mask_BT is not None, "where it pads"
    assert rows.padded_index_N is not None, "where tokens go"
    num_rows, length = rows.mask_BT.shape
    # (B * T, 3, H, E), zeros where a row has no token.
    padded = qkv.new_zeros(num_rows * length, *qkv.shape[1:]).index_copy(0, rows.padded_index_N, qkv)
    q, k, v = padded.view(num_rows, length, *qkv.shape[1:]).permute(2, 0, 3, 1, 4).unbind(0)
    mask = inside_window(rows.mask_BT[:, None, None, :], reach)
    y_BHTE = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return y_BHTE.transpose(1, 2).flatten(0, 1)[rows.padded_index_N]


WAYS: dict[Attention, Attend] = {"flash": attend_flash, "efficient": attend_efficient, "padded": attend_padded}


def way_of(attention: Attention, reach: int | None) -> Attention:
    """Return the way that a card takes for a layer: where its own knows no windows, the padded one for layers with."""
    return "padded" if reach is not None and attention == "efficient" else attention


def seed_generator(device: torch.device, seed: int) -> None:
    """Have the attention that is computed next draw the bits of this seed, 64 bits; the device is not waited for."""
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
