"""Gradients all-reduced in fp16, half the bytes of fp32, scaled so that no sum can overflow.

A bucket is sent times a power of two that all ranks derive from the same number, the sum over ranks of each one's
largest absolute value: no partial sum can exceed it. Nothing overflows, whatever the size of gradients or of a loss
scale; elements down to 2**-27 of the bound keep fp16's 11 bits, and what is smaller than 2**-38 of it becomes 0. Every
conversion and every addition rounds: with n ranks an element of the sum is off by at most n * 2**-11 of the sum of the
ranks' absolute values, plus n * 2**-38 of the bound. Gradients that are not finite are sent unscaled and stay so.
"""

from __future__ import annotations

import torch
from torch import Tensor

COMPRESSED_DTYPE = torch.float16
# Scaled sums stay below 2**14, a quarter of fp16's largest number: sums of n numbers that were each rounded upwards
# may exceed the exact bound on the way.
_MAX_EXPONENT = 14
_MIN_BOUND_EXPONENT = -100  # the scale of a bucket below 2**-100 would not fit fp32; such a bucket becomes 0


def largest(bucket: Tensor) -> Tensor:
    """Return the largest absolute value of a bucket, shape (1,); NaN or infinite if an element is."""
    return bucket.abs().amax().reshape(1)


def scale_for(bound: Tensor) -> Tensor:
    """Return the power of two that a bucket is sent with; fp32 (1,). bound: sum over ranks of ``largest``."""
    _, exponent = torch.frexp(bound)
    power = _MAX_EXPONENT - exponent.clamp(min=_MIN_BOUND_EXPONENT)
    # Built from its bits, biased exponent in front of an empty mantissa: a library's power of two may differ in the
    # last bit between processors, and ranks must agree.
    scale = ((power.to(torch.int32) + 127) << 23).view(torch.float32)
    return torch.where(bound.isfinite(), scale, 1.0)


def compress(bucket: Tensor, scale: Tensor) -> Tensor:
    """Return a bucket as it is sent."""
    return (bucket * scale).to(COMPRESSED_DTYPE)


def decompress_(compressed: Tensor, scale: Tensor, into: Tensor) -> None:
    """Write a sum of compressed buckets back."""
    # Converted first, so that the division is one of fp32 and, by a power of two, exact.
    into.copy_(compressed)
    into.div_(scale)
