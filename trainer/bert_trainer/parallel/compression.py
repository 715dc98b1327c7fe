"""Gradients in half the bytes: fp16 on the wire, scaled so that no sum can overflow.

A chunk travels times a power of two that all ranks derive from the same number, the sum over ranks of each one's
largest absolute value: no partial sum can exceed it. The scaled sum stays below 2**14, a quarter of fp16's largest
number, which leaves room for rounding upwards on the way. So nothing overflows, whatever the size of gradients
or of a loss scale; elements down to 2**-27 of the bound keep fp16's 11 bits, and what is smaller than 2**-38 of
it becomes 0. Every conversion and every addition rounds: with n ranks an element of the sum is off by at most
n * 2**-11 of the sum of the ranks' absolute values, plus n * 2**-38 of the bound. Gradients that are not finite
travel unscaled and stay so.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIRE_DTYPE = torch.float16
_LARGEST_EXPONENT = 14
_SMALLEST_BOUND_EXPONENT = -100  # of a chunk below 2**-100 nothing need arrive: its scale must fit fp32


def largest(chunk: Tensor) -> Tensor:
    """Return the largest absolute value of a chunk, shape (1,); NaN or infinite if an element is."""
    return chunk.abs().amax().reshape(1)


def scale_for(bound: Tensor) -> Tensor:
    """Return the power of two that a chunk travels with; fp32 (1,). bound: sum over ranks of ``largest``."""
    _, exponent = torch.frexp(bound)
    power = _LARGEST_EXPONENT - exponent.clamp(min=_SMALLEST_BOUND_EXPONENT)
    # Built from its bits: a library's power of two may differ in the last one between processors.
    scale = ((power.to(torch.int32) + 127) << 23).view(torch.float32)
    return torch.where(bound.isfinite(), scale, 1.0)


def pack(chunk: Tensor, scale: Tensor) -> Tensor:
    """Return a chunk as it travels."""
    return (chunk * scale).to(WIRE_DTYPE)


def unpack_(packed: Tensor, scale: Tensor, into: Tensor) -> None:
    """Write a sum of packed chunks back."""
    into.copy_(packed)
    into.div_(scale)
