"""What every optimizer step does, whatever is trained: accumulate, reduce once, update; and its state on disk."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from bert_job.optimization import ReductionSpec
from bert_job.run_config import UpdateRule
from bert_trainer.errors import InputError
from bert_trainer.model.batch import Batch
from bert_trainer.model.encoder import Encoder
from bert_trainer.optim.optimizer import LossScaler, Optimizer, StepResult
from bert_trainer.parallel.flat_parameters import FlatParameters
from bert_trainer.parallel.reduction import GradientReduction, ReductionTimes
from bert_trainer.parallel.world import World
from bert_trainer.parallel.zero1 import Zero1Partition
from bert_trainer.training.compute_timer import ComputeTimer
from bert_trainer.training.device import Compute
from bert_trainer.training.profiling import Profiler

ModelT = TypeVar("ModelT", bound=Encoder)


@dataclass(frozen=True, slots=True)
class LearnerState:
    """Checkpointed state of a learner; complete on rank 0."""

    tensors: dict[str, dict[str, Tensor]]
    """By part and name, as ``Checkpoint.load`` returns them; views of what the next step changes."""
    owned: frozenset[str] = frozenset()
    """Parts that were gathered for the checkpoint alone: nobody changes them, so they need no second copy."""


@dataclass(slots=True)
class Learner(Generic[ModelT]):
    """A model with its optimizer, reduction and loss scaler, on one rank."""

    model: ModelT
    parameters: FlatParameters
    optimizer: Optimizer
    reduction: GradientReduction
    scaler: LossScaler
    overlap: bool
    """Whether buckets may be reduced while the last backward pass runs."""
    compute_timer: ComputeTimer
    """Of this rank, in its steps."""

    @classmethod
    def of(
        cls, model: ModelT, compute: Compute, world: World, optimizer: UpdateRule, reduction: ReductionSpec
    ) -> Learner[ModelT]:
        """Place a model and allocate its gradients and moments. world: the ranks that train it together."""
        compute.place(model)
        parameters = FlatParameters(model)
        partition = Zero1Partition(parameters.num_rows, world, split=optimizer.partitioning == "zero1")
        changes = Optimizer(optimizer, parameters, partition)
        compressed = reduction.compression == "fp16"
        return Learner(
            model,
            parameters,
            changes,
            GradientReduction(parameters, changes.gradients, partition, world, compressed=compressed),
            LossScaler(enabled=compute.precision == "fp16"),
            reduction.overlap,
            ComputeTimer(parameters.values.device),
        )

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.parameters.values.device

    def state_views(self, moments: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """Return what a checkpoint holds, as views. moments: from ``Optimizer.gather_moments``, whole."""
        flats = {"model": self.parameters.values, **moments}
        return {part: self.parameters.named(flat) for part, flat in flats.items()}

    def gather_state(self) -> LearnerState:
        """Return what a checkpoint holds. Collective with ZeRO-1; without moments on the ranks that gather none."""
        moments = self.optimizer.gather_moments() or {}
        # ZeRO-1's moments were gathered into fresh tensors for this checkpoint alone. Without it they are the
        # optimizer's own, which the next step updates in place.
        owned = frozenset(moments) if self.optimizer.partition.is_split else frozenset[str]()
        return LearnerState(self.state_views(moments), owned)

    def free_training_buffers(self) -> None:
        """Free gradients and moments of a model that no stage will train any more; weights stay."""
        for span in self.parameters.spans:
            span.parameter.grad = None
        self.model.use(None)
        # By their storage: the optimizer and the reduction hold views of them.
        for flat in (
            self.parameters.gradients,
            self.optimizer.gradients,
            self.optimizer.first_moment,
            self.optimizer.second_moment,
        ):
            flat.untyped_storage().resize_(0)


def take_step(
    learner: Learner[ModelT],
    batches: Sequence[Batch],
    loss_of: Callable[[Batch], Tensor],
    learning_rate: float,
    profiler: Profiler,
    *,
    largest_norm: float = math.inf,
) -> tuple[StepResult, ReductionTimes]:
    """Accumulate gradients over micro-batches, reduce them once, update.

    Args:
        learner: What is trained.
        batches: This rank's micro-batches, on the device; perhaps none.
        loss_of: A micro-batch's part of the step's loss: ranks add their gradients, they don't average them.
        learning_rate: Of this step.
        profiler: Times the parts.
        largest_norm: Gradients of a larger one are not applied.
    """
    learner.parameters.gradients.zero_()
    total = torch.zeros((), device=learner.device)
    with learner.compute_timer.on_device(), learner.model.backend.step_context():
        for number, batch in enumerate(batches, start=1):
            with profiler.part("forward"):
                loss = loss_of(batch)
                total = total + loss.detach()
            # Gradients are final during the last backward pass alone: only then may buckets be all-reduced while
            # backward still runs.
            if number == len(batches) and learner.overlap:
                learner.reduction.watch()
            with profiler.part("backward"):
                (loss * learner.scaler.scale).backward()  # type: ignore[no-untyped-call]
    with profiler.part("reduction"):
        times = learner.reduction.finish()
    with profiler.part("optimizer"):
        result = learner.optimizer.step(
            learning_rate, loss_scale=learner.scaler.scale, largest_norm=largest_norm, loss=total
        )
    learner.scaler.update(finite=result.is_finite)
    return result, times


@torch.no_grad()
def copy_state(path: Path, loaded: Mapping[str, Mapping[str, Tensor]], wanted: dict[str, dict[str, Tensor]]) -> None:
    """Copy what a checkpoint holds into views of flat buffers.

    Args:
        path: Of the checkpoint, for the message.
        loaded: From ``Checkpoint.load``.
        wanted: From ``Learner.state_views``.

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
