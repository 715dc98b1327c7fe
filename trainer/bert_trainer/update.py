"""The arithmetic of one optimizer step on rows of flat buffers: in one pass each by kernels, or by plain operations.

R rows of ``flat_parameters.ROW`` elements, of which the first ``decayed`` belong to decayed tensors. On CPUs and in
fp32 the kernels of ``kernels/native/update.cpp`` do it, in two passes over memory in place of a dozen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bert_trainer.config import OptimizerConfig
from bert_trainer.kernels.library import usable


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
    def of(cls, config: OptimizerConfig, step: int, gradient_factor: float) -> Coefficients:
        """step: counted from 1 within the stage."""
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
    library = usable(gradients) if gradients.dtype == torch.float32 else None
    if library is None:
        return _gradients_to_update_(gradients, first, second, values, numbers, decayed)
    norms = torch.empty(decayed, 2)
    library.call(
        "gradients_to_update",
        gradients.dtype,
        *(gradients, first, second, values),
        *(numbers.gradient_factor, 1 - numbers.beta1, numbers.beta2, 1 - numbers.beta2),
        *(1 / numbers.correction1, 1 / math.sqrt(numbers.correction2), numbers.epsilon, numbers.weight_decay),
        *(norms, decayed, *gradients.shape),
    )
    return norms


def _gradients_to_update_(
    gradients: Tensor, first: Tensor, second: Tensor, values: Tensor, numbers: Coefficients, decayed: int
) -> Tensor:
    if numbers.gradient_factor != 1.0:
        gradients.mul_(numbers.gradient_factor)
    first.lerp_(gradients, 1 - numbers.beta1)
    second.mul_(numbers.beta2).addcmul_(gradients, gradients, value=1 - numbers.beta2)
    update = torch.sqrt(second, out=gradients).div_(math.sqrt(numbers.correction2)).add_(numbers.epsilon)
    torch.div(first, update, out=update).div_(numbers.correction1)
    update[:decayed].add_(values[:decayed], alpha=numbers.weight_decay)
    return torch.stack([row_norms(values[:decayed]), row_norms(update[:decayed])], dim=1)


def apply_update_(values: Tensor, update: Tensor, rate: float, ratios: Tensor | None) -> None:
    """Subtract the update, (R, ROW), times the learning rate and the ratio of its row. Uses the update up.

    ratios: of the first rows, in the values' type; the others, or all where it is None, have 1.
    """
    library = usable(values) if values.dtype == torch.float32 else None
    if library is not None:
        decayed = 0 if ratios is None else len(ratios)
        library.call("apply_update", values.dtype, values, update, ratios, rate, decayed, *values.shape)
        return
    if ratios is not None:
        update[: len(ratios)].mul_(ratios[:, None])
    values.add_(update, alpha=-rate)


def row_norms(x_RC: Tensor) -> Tensor:
    """Return the 2-norm of every row, in the rows' type; (R,).

    Norms of long tensors are put together from these in fp64: torch adds all squares of a flat fp32 tensor up in a
    few lanes on a CPU, and the norm of BERT-large's 336 million gradients would come out 5.8 % too low, that of
    BERT-base's 110 million 1.2 %.
    """
    norms: Tensor = torch.linalg.vector_norm(x_RC, dim=1)
    return norms
