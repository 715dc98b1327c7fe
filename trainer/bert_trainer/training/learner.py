"""What every optimizer step does, whatever is trained: accumulate, reduce once, update; and its state on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from bert_trainer.checkpoints.checkpoint import Position
from bert_trainer.checkpoints.store import CheckpointStore
from bert_trainer.config.stages import CheckpointTimes
from bert_trainer.errors import InputError, TrainerError
from bert_trainer.model.encoder import Encoder
from bert_trainer.optim.optimizer import LossScaler, Optimizer, StepResult
from bert_trainer.parallel.flat_parameters import FlatParameters
from bert_trainer.parallel.reduction import GradientReduction, ReductionTimes
from bert_trainer.training.profiling import Profiler

T = TypeVar("T")


class Learner(Protocol):
    """A model's parameters with what changes them."""

    @property
    def model(self) -> Encoder:
        """Its backend computes the steps."""

    parameters: FlatParameters
    optimizer: Optimizer
    reduction: GradientReduction
    scaler: LossScaler


def take_step(
    learner: Learner,
    batches: Sequence[T],
    loss_of: Callable[[T], Tensor],
    learning_rate: float,
    *,
    overlap: bool,
    profiler: Profiler,
) -> tuple[StepResult, ReductionTimes]:
    """Accumulate gradients over micro-batches, reduce them once, update.

    Args:
        learner: What is trained.
        batches: This rank's micro-batches, on the device; perhaps none.
        loss_of: A micro-batch's part of the step's loss: ranks add their gradients, they don't average them.
        learning_rate: Of this step.
        overlap: Whether buckets may be reduced while the last backward pass runs.
        profiler: Times the parts.
    """
    learner.parameters.gradients.zero_()
    with learner.model.backend.step_context():
        for number, batch in enumerate(batches, start=1):
            with profiler.part("forward"):
                loss = loss_of(batch)
            # Gradients are final during the last backward pass alone: only then may buckets be all-reduced while
            # backward still runs.
            if number == len(batches) and overlap:
                learner.reduction.watch()
            with profiler.part("backward"):
                (loss * learner.scaler.scale).backward()  # type: ignore[no-untyped-call]
    with profiler.part("reduction"):
        times = learner.reduction.finish()
    with profiler.part("optimizer"):
        result = learner.optimizer.step(learning_rate, loss_scale=learner.scaler.scale)
    learner.scaler.update(applied=result.applied)
    return result, times


def not_finite(learner: Learner, stage: str, step: int, result: StepResult) -> TrainerError | None:
    """Return the error that ends a run whose gradients are not finite, if it has to end.

    step: counted from 1.
    """
    # fp16: an overflow skips the update and halves the loss scale; only below 1 has the loss itself diverged.
    if result.applied or learner.scaler.scale >= 1.0 and learner.scaler.enabled:
        return None
    return TrainerError(
        f"{stage}: the gradients of step {step} are not finite (norm {result.gradient_norm})",
        hint="lower the learning rate or lengthen the warm-up; with fp16, use bf16 or fp32",
    )


def check_finite(learner: Learner, stage: str, step: int, result: StepResult) -> None:
    """Raise what ``not_finite`` returns."""
    if (error := not_finite(learner, stage, step, result)) is not None:
        raise error


def save_interval_is_over(times: CheckpointTimes, saved_at_s: float) -> bool:
    """Return whether this rank's clock asks for a checkpoint."""
    return times.every_seconds is not None and time.monotonic() - saved_at_s >= times.every_seconds


def state_by_name(learner: Learner, moments: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return what a checkpoint holds of a learner, as views. moments: from ``Optimizer.gather_moments``, whole."""
    flats = {"model": learner.parameters.values, **moments}
    return {part: learner.parameters.named(flat) for part, flat in flats.items()}


def save_state(store: CheckpointStore, learner: Learner, position: Position, moments: Mapping[str, Tensor]) -> None:
    """Write a learner's checkpoint in the background. Rank 0 only. moments: as ``state_by_name`` takes them."""
    # ZeRO-1's moments were gathered into fresh tensors for this checkpoint alone: they need no second copy. Without it
    # they are the optimizer's own, which the next step updates in place.
    owned = frozenset(moments) if learner.optimizer.partition.is_split else frozenset[str]()
    store.save(position, state_by_name(learner, moments), owned=owned)


@torch.no_grad()
def copy_state(path: Path, loaded: Mapping[str, Mapping[str, Tensor]], wanted: dict[str, dict[str, Tensor]]) -> None:
    """Copy what a checkpoint holds into views of flat buffers.

    Args:
        path: Of the checkpoint, for the message.
        loaded: From ``Checkpoint.load``.
        wanted: From ``state_by_name``.

    Raises:
        InputError: they are another model's.
    """
    for part, views in wanted.items():
        found = loaded[part]
        if {name: view.shape for name, view in views.items()} != {name: it.shape for name, it in found.items()}:
            raise InputError(
                f"{path}: its tensors are not this model's",
                hint="restore the vocabulary and the model section that it was trained with, or start over "
                "(output.ifExists: New)",
            )
        for name, view in views.items():
            view.copy_(found[name])
