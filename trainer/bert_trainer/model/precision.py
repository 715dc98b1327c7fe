"""Types of floating-point numbers: the one that forward passes run in, and the one that sums need at least."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context in which forward passes of a run's precision run on a device."""
    return torch.autocast(device.type, dtype=_HALF[precision]) if precision in _HALF else nullcontext()


def at_least_fp32(x: Tensor) -> Tensor:
    """Convert half precision to fp32 for sums over a vocabulary or row; fp64 stays."""
    return x if x.dtype == torch.float64 else x.float()
