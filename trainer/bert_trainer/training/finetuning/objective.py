"""Fine-tuning as an objective: one run of a finetune stage, with one seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bert_job.run_stages import FinetuneStage
from bert_trainer.checkpoints.checkpoint import Checkpoint, Position
from bert_trainer.model.batch import Batch
from bert_trainer.model.task_model import TaskModel
from bert_trainer.optim.schedule import Schedule, learning_rate
from bert_trainer.output.metrics import Record
from bert_trainer.training.checkpoint_schedule import CheckpointSchedule
from bert_trainer.training.finetuning.data import StageRows, StepReader
from bert_trainer.training.finetuning.evaluations import Evaluations
from bert_trainer.training.finetuning.run_plan import RunPlan
from bert_trainer.training.finetuning.task_learner import TaskLearner
from bert_trainer.training.health import Health
from bert_trainer.training.objective import Objective
from bert_trainer.training.session import Session


@dataclass(frozen=True, slots=True)
class TaskLoss:
    """Sum of the losses of a micro-batch's rows, ()."""

    loss: Tensor


@dataclass(frozen=True, slots=True)
class OpenStage:
    """What the runs of a finetune stage share, on one rank."""

    index: int
    stage: FinetuneStage
    schedule: Schedule
    """With the learning rate for the ranks that the stage began with."""
    data: StageRows
    plan: RunPlan
    learner: TaskLearner
    evaluations: Evaluations
    saves: CheckpointSchedule


class Finetuning(Objective[TaskModel]):
    """One run, or without synchronized gradients one on every rank, side by side."""

    learner: TaskLearner
    stage: FinetuneStage
    reader: StepReader
    sums = TaskLoss

    def __init__(self, session: Session, opened: OpenStage, number: int, resumed_from: Checkpoint | None) -> None:
        """Begin a run, or go on in it. Collective.

        Args:
            session: Of the attempt.
            opened: The stage.
            number: Of the runs that follow one another.
            resumed_from: A checkpoint in the middle of this run; None: it begins.
        """
        self.session, self.opened = session, opened
        self.index, self.stage, self.plan = opened.index, opened.stage, opened.plan
        self.learner, self.saves = opened.learner, opened.saves
        self.micro_batch_size, self.total_steps = self.stage.micro_batch_size, self.plan.total_steps
        self._runs = opened.evaluations.runs_of(number)
        self._run = self._runs[session.world.rank if self.is_split_by_rank else 0]
        health = session.health
        if self.is_split_by_rank:
            # Its median is in no checkpoint, which holds one rank's: a resumed run would judge otherwise.
            health = health.model_copy(update={"on_gradient_norm": "Report"})
        self.health = Health(health, self.stage.name, finetuning=True)
        if resumed_from is None:
            self.learner.start(self._run.seed)
            self._run_step, self._sample_hash = 0, ""
        else:
            self.learner.load(resumed_from)
            self._run_step = resumed_from.position.step - number * self.plan.steps_per_run
            self._sample_hash = resumed_from.position.sample_hash
            self.health.load(resumed_from.health)
        self.reader = StepReader(opened.data, self.plan, self.learner, self._run.seed, self._run_step)
        self._is_over = self._has_stopped_early()

    def _has_stopped_early(self) -> bool:
        return self.opened.evaluations.is_over(self._run, self.step)

    @property
    def step(self) -> int:  # noqa: D102 - as Objective's, here and below
        # Those included that earlier runs saved by stopping early.
        return self._run.number * self.plan.steps_per_run + self._run_step

    @property
    def samples(self) -> int:  # noqa: D102
        return self.plan.rows_before(self._run_step)

    @property
    def sample_hash(self) -> str:  # noqa: D102
        return self._sample_hash

    @property
    def is_at_end(self) -> bool:  # noqa: D102
        return self._run_step == self.plan.steps_per_run

    @property
    def is_split_by_rank(self) -> bool:  # noqa: D102
        return self.learner.is_split_by_rank

    @property
    def is_over(self) -> bool:  # noqa: D102
        return self._is_over

    def learning_rate(self) -> float:  # noqa: D102
        return learning_rate(self.opened.schedule, self.learner.optimizer.num_applied, self.plan.steps_per_run)

    def loss(self, batch: Batch, masked_tokens: float) -> tuple[Tensor, TaskLoss]:  # noqa: D102
        start, stop = self.plan.rows_of(self._run_step)
        # The stage's index in the high bits keeps the dropout of two stages apart.
        dropout = batch.dropout_keys(self._run.seed, (self.index << 32) + self._run_step)
        with self.session.compute.autocast():
            loss = self.learner.model(batch, batch.targets, dropout)
        return loss / (stop - start), TaskLoss(loss)  # a mean over the rows of all ranks, whose gradients are added

    def advance(self, skipped: str | None) -> None:  # noqa: D102
        step = self._run_step
        self._sample_hash = self.session.writer.chain_samples(
            self.stage.name, self.step, self._sample_hash, lambda: self.reader.numbers_of(step), skipped=skipped
        )
        self._run_step += 1

    def is_evaluated(self) -> bool:  # noqa: D102
        return self.plan.is_evaluated(self._run_step)

    def evaluate(self) -> bool:  # noqa: D102
        evaluations = self.opened.evaluations
        evaluations.run(self._run.number, self._run_step)
        self._is_over = self._has_stopped_early()
        return all(evaluations.is_over(run, self.step) for run in self._runs)

    @property
    def evaluations_left_s(self) -> float:  # noqa: D102
        return self.plan.evaluations_left(self.step) * self.opened.evaluations.last_s

    def losses(self, sums: Sequence[float], rows: float, masked: float) -> Record:  # noqa: D102
        return {
            # Without synchronized gradients the figures are those of several seeds together.
            "seed": None if self.is_split_by_rank else self._run.seed,
            "epoch": self.plan.epochs_after(self._run_step),
            "loss": sums[0] / max(rows, 1),
        }

    def position(self, *, at_end: bool = False) -> Position:  # noqa: D102
        optimizer, scaler = self.learner.optimizer, self.learner.scaler
        return Position(
            stage_index=self.index,
            stage=self.stage.name,
            # A run that is stopped early jumps to the first step of the next one.
            step=(self._run.number + 1) * self.plan.steps_per_run if at_end else self.step,
            total_steps=self.total_steps,
            num_applied=optimizer.num_applied,
            samples_seen=self.samples,
            sample_hash=self.sample_hash,
            loss_scale=scaler.scale,
            finite_steps=scaler.finite_steps,
        )

    @property
    def has_state(self) -> bool:  # noqa: D102
        # Between two runs the end of the one before is on disk, and the next one starts afresh.
        return bool(self._run_step) or not self._run.number

    def health_state(self) -> Mapping[str, Any] | None:  # noqa: D102
        # Of models that ranks have of their own, nothing.
        return None if self.is_split_by_rank else self.health.state()
