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

from bert_trainer.checkpoints.checkpoint import Checkpoint, Position
from bert_trainer.config.finetuning import FinetuneStage
from bert_trainer.config.optimization import Schedule
from bert_trainer.model.backends.choice import choose_backend
from bert_trainer.model.task_model import Head, TaskModel
from bert_trainer.optim.optimizer import LossScaler, Optimizer
from bert_trainer.parallel.flat_parameters import FlatParameters
from bert_trainer.parallel.rank_by_rank import from_rank_0_, to_rank_0
from bert_trainer.parallel.reduction import GradientReduction
from bert_trainer.parallel.world import Alone, World, on_rank_0
from bert_trainer.parallel.zero1 import Zero1Partition
from bert_trainer.tasks.catalog import Task
from bert_trainer.training.learner import copy_state, save_state, state_by_name
from bert_trainer.training.session import Session

_COUNTS = "counts"
"""A tensor beside each rank's parameters: updates applied, loss scale, finite steps; fp64."""


@dataclass(slots=True)
class TaskLearner:
    """What a run trains, on one rank."""

    session: Session
    stage: FinetuneStage
    world: World
    """The ranks that train this model together; one alone where gradients are not synchronised."""
    model: TaskModel
    parameters: FlatParameters
    optimizer: Optimizer
    reduction: GradientReduction
    scaler: LossScaler

    @classmethod
    def open(cls, session: Session, stage: FinetuneStage, task: Task) -> TaskLearner:
        """Allocate everything; ``start`` or ``load`` give it values."""
        config = session.config
        world: World = session.world if stage.synchronize_gradients else Alone()
        model = new_model(session, stage, task)
        model.to(device=session.device, dtype=torch.float64 if config.precision == "fp64" else torch.float32)
        model.use(choose_backend(model, config.engine, config.precision))
        parameters = FlatParameters(model)
        partition = Zero1Partition(parameters.num_rows, world, split=stage.optimizer.partitioning == "zero1")
        optimizer = Optimizer(stage.optimizer, parameters, partition)
        compressed = config.reduction.compression == "fp16"
        reduction = GradientReduction(parameters, optimizer.gradients, partition, world, compressed=compressed)
        return cls(
            session, stage, world, model, parameters, optimizer, reduction, LossScaler(enabled=_scales_loss(session))
        )

    def start(self, seed: int) -> None:
        """Begin a run: weights as pretrained or drawn from the seed, moments at 0."""
        self.model.initialize(seed)
        if self.stage.start_from == "pretrained":
            self.model.load_encoder(dict(self.session.model.named_parameters()))
        # What processors of different kinds draw might differ in the last bit.
        self.world.broadcast_(self.parameters.values)
        self.optimizer.start_stage(keep_moments=False)
        self.scaler = LossScaler(enabled=_scales_loss(self.session))

    @property
    def is_split_by_rank(self) -> bool:
        """Whether every rank has a model of its own."""
        return not self.stage.synchronize_gradients and self.session.world.size > 1

    def values_of(self, rank: int) -> dict[str, Tensor] | None:
        """Return one rank's parameters by name on rank 0, None elsewhere. Collective if every rank has its own."""
        if not self.is_split_by_rank:
            return self.parameters.named(self.parameters.values) if self.session.world.rank == 0 else None
        flat = to_rank_0(self.session.world, self.parameters.values, rank)
        return None if flat is None else self.parameters.named(flat)

    def load_values(self, tensors: Mapping[str, Tensor] | None) -> None:
        """Give all ranks the parameters that rank 0 has by name. Collective. tensors: None on other ranks."""
        if tensors is not None:
            with torch.no_grad():
                for name, view in self.parameters.named(self.parameters.values).items():
                    view.copy_(tensors[name])
        self.session.world.broadcast_(self.parameters.values)

    def save(self, position: Position) -> None:
        """Write a checkpoint in the background. Collective."""
        session = self.session
        if self.is_split_by_rank:
            self._save_all_ranks(position)
            return
        moments = self.optimizer.gather_moments()
        if session.writer is not None and moments is not None:
            save_state(session.writer.store, self, position, moments)

    def _save_all_ranks(self, position: Position) -> None:
        world, optimizer = self.session.world, self.optimizer
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
        if self.session.writer is not None:
            # Gathered for this checkpoint alone: they need no second copy.
            self.session.writer.store.save(position, tensors, owned=frozenset(tensors))

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint in the middle of a run. Collective.

        Raises:
            InputError: it is another model's.
        """
        session, optimizer, position = self.session, self.optimizer, checkpoint.position
        if self.is_split_by_rank:
            self._load_all_ranks(checkpoint)
            return
        moments = optimizer.moments_to_load(self.world.rank)

        def read() -> None:
            copy_state(checkpoint.path, checkpoint.load(), state_by_name(self, moments))

        on_rank_0(session.world, read, has_trained=True)
        session.world.broadcast_(self.parameters.values)
        optimizer.scatter_moments(moments, session.world)
        self._set_counts(position.num_applied, position.loss_scale, position.finite_steps)

    def _load_all_ranks(self, checkpoint: Checkpoint) -> None:
        world, optimizer = self.session.world, self.optimizer
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
        self.scaler = LossScaler(enabled=_scales_loss(self.session))
        if self.scaler.enabled:
            self.scaler.scale, self.scaler.finite_steps = loss_scale, finite_steps


def new_model(session: Session, stage: FinetuneStage, task: Task) -> TaskModel:
    """Return a task's model on the CPU, without values."""
    sizes = session.config.sizes
    head = Head.of(task.kind, task.num_outputs, sizes, stage.head_dropout)
    model = TaskModel(sizes, len(session.vocabulary.tokens), head)
    model.activation_checkpointing = session.config.activation_checkpointing
    return model


def scaled_schedule(stage: FinetuneStage, ranks: int) -> Schedule:
    """Return the stage's schedule with its learning rate for a number of ranks."""
    if stage.learning_rate_scaling == "none":
        return stage.schedule
    return stage.schedule.model_copy(update={"learning_rate": stage.schedule.learning_rate * math.sqrt(ranks)})


def _scales_loss(session: Session) -> bool:
    return session.config.precision == "fp16"


def _of_rank(rank: int, name: str) -> str:
    return f"rank{rank}.{name}"


def _only_of_rank(rank: int, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = _of_rank(rank, "")
    return {name.removeprefix(prefix): tensor for name, tensor in named.items() if name.startswith(prefix)}
