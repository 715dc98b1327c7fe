"""torch.compile for the step on a GPU: whether it works here, and how it is set up.

It needs Triton, a C compiler, Python's headers and a folder that programs may be run from, and checks none of them
before the first step. So it is tried on a small function; where that fails the step runs eagerly, and the log says why.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from bert_trainer.model.torch_releases import raise_recompile_limit

SWITCH = "BERT_TRAINER_COMPILE"
"""Environment variable: ``off`` runs the step on GPUs operation by operation."""

_OLDEST_FOR_TRITON = (7, 0)
_RECOMPILE_LIMIT = 16
"""Graphs of one function: with and without gradients and dropout, times a few lengths."""

P = ParamSpec("P")
T = TypeVar("T")


@cache
def why_not_compiled(device: torch.device) -> str | None:
    """Return in one line why torch.compile does not work for a device; None if it does. Takes seconds."""
    if os.environ.get(SWITCH) == "off":
        return f"{SWITCH}=off"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _OLDEST_FOR_TRITON:
        return "Triton needs sm_70 or newer"
    _set_up()
    try:
        # Asked for from the middle of a step, or of an evaluation.
        with torch.enable_grad():
            return _try_out(device)
    except Exception as error:  # noqa: BLE001 - a compiler may fail in any way; the plain functions do not need it
        return _first_line(error)


def compile_function(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function compiled at its first call, once for all sizes of dimensions that ``mark_dynamic`` marks."""
    return torch.compile(function)


def mark_dynamic(tensor: Tensor) -> Tensor:
    """Mark a tensor's first dimension as one that differs between calls, so that no size is compiled for itself."""
    torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return tensor


def _set_up() -> None:
    # A user without a name has no folder by default. torch keeps compiled kernels there for the next attempt.
    folder = os.path.join(tempfile.gettempdir(), f"torchinductor-{os.getuid()}")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)
    import torch._inductor.config as inductor

    # No pool of compiling processes: ranks are many on a machine, and a fork beside MPI's network is not safe.
    inductor.compile_threads = 1
    # Beyond it torch warns and falls back to the plain function: slower, not wrong.
    raise_recompile_limit(_RECOMPILE_LIMIT)
    # Dynamo itself looks at the gradient of a layer's input, which has none.
    warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor", category=UserWarning)


def _try_out(device: torch.device) -> str | None:
    """Compile a normalisation with its gradient and compare."""

    def normalise(x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5)

    found = []
    for function in (normalise, torch.compile(normalise, dynamic=False)):
        x = torch.linspace(-1, 2, 512, device=device).view(4, 128).square().requires_grad_()
        y = function(x)
        found += [y.detach(), *torch.autograd.grad(y.square().sum() + y[0, 1], x)]
    y, gradient, compiled_y, compiled_gradient = found
    agree = torch.allclose(y, compiled_y, atol=1e-4) and torch.allclose(gradient, compiled_gradient, atol=1e-3)
    return None if agree else "a compiled function gave other values than the plain one"


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or "no message"
    return f"{type(error).__name__}: {text.splitlines()[0]}"
