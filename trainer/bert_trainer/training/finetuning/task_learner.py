"""A task's model with its optimizer: the start of a run, and its state in checkpoints.

Without synchronised gradients every rank has a model of its own. A checkpoint then holds all of them, the names of
their tensors beginning with ``rank<number>.``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bert_job.optimization import ReductionSpec
from bert_job.run_stages import FinetuneStage
from bert_trainer.checkpoints.checkpoint import Checkpoint
from bert_trainer.model.bert import Bert
from bert_trainer.model.task_model import Head, TaskModel
from bert_trainer.optim.optimizer import LossScaler
from bert_trainer.parallel.rank_by_rank import from_rank_0_, to_rank_0
from bert_trainer.parallel.world import SingleRank, World, on_rank_0
from bert_trainer.tasks.catalog import Task
from bert_trainer.training.device import Compute
from bert_trainer.training.learner import Learner, LearnerState, copy_state

_COUNTS = "counts"
"""A tensor beside each rank's parameters: updates applied, loss scale, finite steps; fp64."""


@dataclass(slots=True)
class TaskLearner(Learner[TaskModel]):
    """What a run trains, on one rank."""

    stage: FinetuneStage
    pretrained: Bert
    """What runs that start from pretrained weights begin with."""
    all_ranks: World
    world: World
    """The ranks that train this model together; one alone where gradients are not synchronised."""

    @classmethod
    def open(
        cls,
        stage: FinetuneStage,
        task: Task,
        pretrained: Bert,
        *,
        compute: Compute,
        reduction: ReductionSpec,
        all_ranks: World,
    ) -> TaskLearner:
        """Allocate everything; ``start`` or ``load`` give it values."""
        world: World = all_ranks if stage.synchronize_gradients else SingleRank()
        made = Learner.of(new_model(pretrained, stage, task), compute, world, stage.optimizer, reduction)
        return cls(
            made.model,
            made.parameters,
            made.optimizer,
            made.reduction,
            made.scaler,
            made.overlap,
            made.compute_timer,
            stage,
            pretrained,
            all_ranks,
            world,
        )

    def start(self, seed: int) -> None:
        """Begin a run: weights as pretrained or drawn from the seed, moments at 0."""
        self.model.initialize(seed)
        if self.stage.start_from == "pretrained":
            self.model.load_encoder(dict(self.pretrained.named_parameters()))
        # What processors of different kinds draw might differ in the last bit.
        self.world.broadcast_(self.parameters.values)
        self.optimizer.start_stage(keep_moments=False)
        self.scaler = LossScaler(enabled=self.scaler.enabled)

    @property
    def is_split_by_rank(self) -> bool:
        """Whether every rank has a model of its own."""
        return not self.stage.synchronize_gradients and self.all_ranks.size > 1

    def values_of(self, rank: int) -> dict[str, Tensor] | None:
        """Return one rank's parameters by name on rank 0, None elsewhere. Collective if every rank has its own."""
        if not self.is_split_by_rank:
            return self.parameters.named(self.parameters.values) if self.all_ranks.rank == 0 else None
        flat = to_rank_0(self.all_ranks, self.parameters.values, rank)
        return None if flat is None else self.parameters.named(flat)

    def load_values(self, tensors: Mapping[str, Tensor] | None) -> None:
        """Give all ranks the parameters that rank 0 has by name. Collective. tensors: None on other ranks."""
        if tensors is not None:
            with torch.no_grad():
                for name, view in self.parameters.named(self.parameters.values).items():
                    view.copy_(tensors[name])
        self.all_ranks.broadcast_(self.parameters.values)

    def gather_state(self) -> LearnerState:
        """Return what a checkpoint holds, on rank 0; elsewhere a part of it. Collective."""
        # Not super(): slots make a second class, which the zero-argument form does not find.
        return self._gather_all_ranks() if self.is_split_by_rank else Learner.gather_state(self)

    def _gather_all_ranks(self) -> LearnerState:
        world, optimizer = self.all_ranks, self.optimizer
        flats = {
            "model": self.parameters.values,
            "first_moment": optimizer.first_moment,
            "second_moment": optimizer.second_moment,
        }
        tensors: dict[str, dict[str, Tensor]] = {part: {} for part in flats}
        counts = torch.tensor([optimizer.num_applied, self.scaler.scale, self.scaler.finite_steps], dtype=torch.float64)
        for rank in range(world.size):
            for part, own in flats.items():
                whole = to_rank_0(world, own, rank)
                if whole is not None:
                    named = self.parameters.named(whole)
                    tensors[part] |= {_of_rank(rank, name): tensor for name, tensor in named.items()}
            of_rank = to_rank_0(world, counts, rank)
            if of_rank is not None:
                tensors["model"][_of_rank(rank, _COUNTS)] = of_rank
        # Gathered for this checkpoint alone: they need no second copy.
        return LearnerState(tensors, owned=frozenset(tensors))

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint in the middle of a run. Collective.

        Raises:
            InputError: it is another model's.
        """
        world, optimizer, position = self.all_ranks, self.optimizer, checkpoint.position
        if self.is_split_by_rank:
            self._load_all_ranks(checkpoint)
            return
        moments = optimizer.moments_to_load(self.world.rank)

        def read() -> None:
            copy_state(checkpoint.path, checkpoint.load(), self.state_views(moments))

        on_rank_0(world, read, has_trained=True)
        world.broadcast_(self.parameters.values)
        optimizer.scatter_moments(moments, world)
        self._set_counts(position.num_applied, position.loss_scale, position.finite_steps)

    def _load_all_ranks(self, checkpoint: Checkpoint) -> None:
        world, optimizer = self.all_ranks, self.optimizer
        loaded: dict[str, dict[str, Tensor]] = {}
        on_rank_0(world, lambda: loaded.update(checkpoint.load()), has_trained=True)
        targets = {
            "model": self.parameters.values,
            "first_moment": optimizer.first_moment,
            "second_moment": optimizer.second_moment,
        }
        counts = torch.zeros(3, dtype=torch.float64)
        for rank in range(world.size):
            of_rank = {part: _only_of_rank(rank, named) for part, named in loaded.items()}
            found = [of_rank["model"].pop(_COUNTS, counts)] if loaded else []
            flats = {part: torch.zeros(own.shape, dtype=own.dtype) for part, own in targets.items() if loaded}

            def fill(of_rank: dict[str, dict[str, Tensor]] = of_rank, flats: dict[str, Tensor] = flats) -> None:
                wanted = {part: self.parameters.named(flat) for part, flat in flats.items()}
                copy_state(checkpoint.path, of_rank, wanted)

            on_rank_0(world, fill, has_trained=True)
            for part, own in targets.items():
                from_rank_0_(world, flats.get(part), own, rank)
            from_rank_0_(world, found[0] if found else None, counts, rank)
        self._set_counts(int(counts[0]), float(counts[1]), int(counts[2]))

    def _set_counts(self, num_applied: int, loss_scale: float, finite_steps: int) -> None:
        self.optimizer.num_applied = self.optimizer.moment_steps = num_applied
        self.scaler = LossScaler(enabled=self.scaler.enabled)
        if self.scaler.enabled:
            self.scaler.scale, self.scaler.finite_steps = loss_scale, finite_steps


def new_model(pretrained: Bert, stage: FinetuneStage, task: Task) -> TaskModel:
    """Return a task's model on the CPU, without values. pretrained: has the same sizes."""
    head = Head.of(task.kind, task.num_outputs, pretrained.config, stage.head_dropout)
    model = TaskModel(pretrained.config, pretrained.vocabulary_size, head)
    model.activation_checkpointing = pretrained.activation_checkpointing
    return model


def scaled_schedule(stage: FinetuneStage, ranks: int) -> FinetuneStage:
    """Return the stage with its learning rate for a number of ranks."""
    if stage.learning_rate_scaling == "none":
        return stage
    return stage.model_copy(update={"learning_rate": stage.learning_rate * math.sqrt(ranks)})


def _of_rank(rank: int, name: str) -> str:
    return f"rank{rank}.{name}"


def _only_of_rank(rank: int, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = _of_rank(rank, "")
    return {name.removeprefix(prefix): tensor for name, tensor in named.items() if name.startswith(prefix)}
