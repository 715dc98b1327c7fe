"""The arithmetic of one optimizer step on rows of flat buffers, by kernels or by plain operations.

R rows of ``flat_parameters.ROW`` elements, of which the first ``decayed`` belong to decayed tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from bert_job.run_config import UpdateRule
from bert_trainer.model.backends.cpu.library import Library, usable
from bert_trainer.model.backends.gpu.compilation import compile_function, why_not_compiled


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Numbers of one step."""

    gradient_factor: float
    """Takes the loss scale out of gradients and clips them."""
    beta1: float
    beta2: float
    correction1: float
    """What the first moment is divided by; 1 without bias correction."""
    correction2: float
    epsilon: float
    weight_decay: float

    @classmethod
    def of(cls, config: UpdateRule, step: int, gradient_factor: float) -> Coefficients:
        """step: updates that the moments hold, this one included."""
        corrected = config.bias_correction
        return cls(
            gradient_factor=gradient_factor,
            beta1=config.beta1,
            beta2=config.beta2,
            correction1=1 - config.beta1**step if corrected else 1.0,
            correction2=1 - config.beta2**step if corrected else 1.0,
            epsilon=config.epsilon,
            weight_decay=config.weight_decay,
        )


def gradients_to_update_(
    gradients: Tensor, first: Tensor, second: Tensor, values: Tensor, numbers: Coefficients, decayed: int
) -> Tensor:
    """Take gradients into both moments, then write u = m_hat / (sqrt(v_hat) + epsilon) + lambda * w over them.

    All (R, ROW). The weight decay goes to the first ``decayed`` rows alone. Returns the 2-norms of values and update of
    those rows, (decayed, 2).
    """
    library = _kernels(gradients)
    if library is None:
        # What changes from step to step is a tensor, what does not is a constant of the compiled function.
        changing = _on_device([numbers.gradient_factor, numbers.correction1, numbers.correction2], gradients)
        constant = (numbers.beta1, numbers.beta2, numbers.epsilon, numbers.weight_decay)
        return _functions(gradients.device)[0](gradients, first, second, values, changing, constant, decayed)
    norms = torch.empty(decayed, 2)
    # Reciprocals and square roots of the step's numbers are taken once here, in fp64, not once per element.
    library.call(
        "gradients_to_update",
        gradients.dtype,
        *(gradients, first, second, values),
        *(numbers.gradient_factor, 1 - numbers.beta1, numbers.beta2, 1 - numbers.beta2),
        *(1 / numbers.correction1, 1 / math.sqrt(numbers.correction2), numbers.epsilon, numbers.weight_decay),
        *(norms, decayed, *gradients.shape),
    )
    return norms


def _kernels(rows: Tensor) -> Library | None:
    # On CPUs and in fp32, ``native/update.cpp``: two passes over memory in place of a dozen. On GPUs the plain
    # operations below are compiled to as many.
    return usable(rows.device, rows.dtype) if rows.dtype == torch.float32 else None


def _on_device(numbers: list[float], like: Tensor) -> Tensor:
    """Return numbers that differ from step to step as a tensor, for which nothing is compiled anew or waited for."""
    tensor = torch.tensor(numbers, dtype=like.dtype)
    return tensor.pin_memory().to(like.device, non_blocking=True) if like.device.type == "cuda" else tensor


def plain_gradients_to_update_(
    gradients: Tensor,
    first: Tensor,
    second: Tensor,
    values: Tensor,
    changing: Tensor,
    constant: tuple[float, float, float, float],
    decayed: int,
) -> Tensor:
    """Do what ``gradients_to_update_`` says. changing: factor and both corrections; constant: the others."""
    factor, correction1, correction2 = changing.unbind()
    beta1, beta2, epsilon, weight_decay = constant
    # In place throughout: buffers of BERT-large are 1.3 GB each in fp32, and the gradients become the update.
    gradients.mul_(factor)
    first.lerp_(gradients, 1 - beta1)
    second.mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
    update = gradients.copy_(second).div_(correction2).sqrt_().add_(epsilon).reciprocal_().mul_(first).div_(correction1)
    update[:decayed].add_(values[:decayed], alpha=weight_decay)
    return torch.stack([row_norms(values[:decayed]), row_norms(update[:decayed])], dim=1)


def plain_apply_update_(values: Tensor, update: Tensor, rate: Tensor, ratios: Tensor | None) -> None:
    """Do what ``apply_update_`` says. rate: a scalar."""
    update.mul_(rate)
    if ratios is not None:
        update[: len(ratios)].mul_(ratios[:, None])
    values.sub_(update)


@cache
def _functions(device: torch.device) -> tuple[Callable[..., Tensor], Callable[..., None]]:
    """Return both functions, compiled where the device is a GPU for which that works."""
    if device.type == "cuda" and why_not_compiled(device) is None:
        return compile_function(plain_gradients_to_update_), compile_function(plain_apply_update_)
    return plain_gradients_to_update_, plain_apply_update_


def apply_update_(values: Tensor, update: Tensor, rate: float, ratios: Tensor | None) -> None:
    """Subtract the update, (R, ROW), times the learning rate and the ratio of its row. Uses the update up.

    ratios: of the first rows, in the values' type; the others, or all where it is None, have 1.
    """
    library = _kernels(values)
    if library is not None:
        decayed = 0 if ratios is None else len(ratios)
        library.call("apply_update", values.dtype, values, update, ratios, rate, decayed, *values.shape)
        return
    _functions(values.device)[1](values, update, _on_device([rate], values)[0], ratios)


def row_norms(x_RC: Tensor) -> Tensor:
    """Return the 2-norm of every row, in the rows' type; (R,)."""
    # Norms of long tensors are put together from these in fp64. On a CPU torch adds all squares of a flat fp32 tensor
    # up in a few lanes: the norm of BERT-large's 336 million gradients comes out 5.8 % too low, that of BERT-base's 110
    # million 1.2 %.
    norms: Tensor = torch.linalg.vector_norm(x_RC, dim=1)
    return norms
