"""Where the gradient of a parameter is added up, for code that can do it better than autograd.

Autograd would turn a bf16 gradient into fp32 first and add it then, in two more passes over memory. Whoever adds it
here returns none to autograd, which still runs the parameter's hooks when the last of its uses is through.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_ATTRIBUTE = "gradient_sum"


def attach_sum(parameter: nn.Parameter, values: Tensor) -> None:
    """Say where a parameter's gradients are added up, if it is where kernels can do it: contiguous, in fp32, on a CPU.

    values: of the parameter's shape, and its ``grad``.
    """
    if values.dtype == torch.float32 and values.device.type == "cpu":
        setattr(parameter, _ATTRIBUTE, values)


def sum_of(parameter: Tensor) -> Tensor | None:
    """Return where a parameter's gradients are added up; None: only autograd knows."""
    return getattr(parameter, _ATTRIBUTE, None)
