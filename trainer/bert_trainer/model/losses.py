"""What a pass of pretraining returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over one micro-batch, to be divided by whatever the step's normalisation says."""

    masked_lm: Tensor
    """Cross-entropy in nats, summed over masked positions; scalar, differentiable."""
    next_sentence: Tensor
    """Cross-entropy in nats, summed over rows; scalar, differentiable, 0 without that objective."""
    masked_lm_correct: Tensor
    """Masked positions whose most likely token is the right one; int64 scalar."""
    next_sentence_correct: Tensor
    """Rows whose pair was classified rightly; int64 scalar."""
