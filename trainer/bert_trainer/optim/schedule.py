"""Learning rates as pure functions of the step. No optimizer, no torch.

Progress p = (step + 1) / total, step counting applied updates from 0, as in NVIDIA's trainer: the last step
has p = 1. Warm-up rises as p / w for p < w. As published, the decay that follows is *not* shifted by the
warm-up, so the rate drops where the warm-up ends (to 84.6 % of the peak in the recipe's phase 1); the
``continuous`` form counts the decay from the end of the warm-up.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal, Protocol

from bert_job.optimization import WarmupSpec
from bert_job.pretraining import LengthSpec


class Schedule(Protocol):
    """What a stage says of its learning rate."""

    @property
    def learning_rate(self) -> float:
        """Peak that the warm-up aims at."""

    @property
    def warmup(self) -> WarmupSpec:
        """Linear rise of the learning rate."""

    @property
    def decay(self) -> Literal["poly", "linear", "constant"]:
        """``poly``: (1 - progress) ** 0.5, NVIDIA's; ``linear``: 1 - progress, Google's and MLPerf's."""

    @property
    def after_warmup(self) -> Literal["published", "continuous"]:
        """What the decay counts from: step 0, or the end of the warm-up."""


# 0 ** 0 is 1: the last step of constant, at which no progress is left, has the peak as well.
_POWER = {"poly": 0.5, "linear": 1.0, "constant": 0.0}


def learning_rate(schedule: Schedule, step: int, total_steps: int) -> float:
    """Return the rate of one update; step: updates applied before it, 0 <= step < total_steps."""
    progress = (step + 1) / total_steps
    warmup = warmup_proportion(schedule.warmup, total_steps)
    # A warm-up as long as the run, or longer, never ends: nothing is left to decay.
    if progress < warmup or warmup >= 1:
        return schedule.learning_rate * progress / warmup
    if schedule.after_warmup == "continuous":
        progress = (progress - warmup) / (1 - warmup)
    # max: rounding may leave the last step a hair below zero.
    return schedule.learning_rate * math.pow(max(0.0, 1 - progress), _POWER[schedule.decay])


def warmup_proportion(warmup: WarmupSpec, total_steps: int) -> float:
    """Return the share of the stage that warms up."""
    if warmup.proportion is not None:
        return warmup.proportion
    return (warmup.steps or 0) / total_steps


def num_steps(length: LengthSpec, *, num_samples: int, global_batch_size: int) -> int:
    """Return the optimizer steps of a stage; a last partial batch is made whole from the next epoch.

    num_samples: samples of one epoch. global_batch_size: sequences per step.
    """
    if length.steps is not None:
        return length.steps
    if length.samples is not None:
        return -(-length.samples // global_batch_size)
    # The decimal as it was written: 8.3 * 1,000,000 in floating point is a hair above 8,300,000 and would
    # cost another step.
    epochs = Fraction(repr(length.epochs or 0.0))
    return max(1, math.ceil(epochs * num_samples / global_batch_size))
