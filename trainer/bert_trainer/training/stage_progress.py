"""Where a pretraining stage is: what a checkpoint stores of it, and what it begins with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bert_job.run_stages import PretrainStage
from bert_trainer.checkpoints.checkpoint import Position
from bert_trainer.errors import TrainerError
from bert_trainer.model.bert import Bert
from bert_trainer.optim.optimizer import Optimizer
from bert_trainer.training.data_loader import LeftOut
from bert_trainer.training.learner import Learner
from bert_trainer.training.run_data import StageData
from bert_trainer.training.run_writer import RunWriter


@dataclass(slots=True)
class StageProgress:
    """Position in a pretraining stage."""

    index: int
    """Of the stage."""
    stage: PretrainStage
    data: StageData
    step: int
    sample_hash: str
    """Chained SHA-256 of all sample numbers so far: two runs that agree on it have seen the same samples in the same
    order. On rank 0; elsewhere that of the checkpoint."""

    @property
    def samples(self) -> int:
        """Sequences of the stage so far."""
        return self.step * self.stage.global_batch_size

    def advance(self, writer: RunWriter, *, skipped: str | None = None) -> None:
        """Count a step; rank 0 also hashes its sample numbers. skipped: as ``RunWriter.chain_samples``."""
        first, behind = self.samples, self.samples + self.stage.global_batch_size
        order = self.data.order
        self.sample_hash = writer.chain_samples(
            self.stage.name,
            self.step,
            self.sample_hash,
            lambda: order.sample_numbers(first, behind),
            skipped=skipped,
        )
        self.step += 1

    def position(self, learner: Learner[Bert], *, at_end: bool = False) -> Position:
        """Return what a checkpoint records. at_end: the stage is over, whatever its length was meant to be."""
        optimizer, scaler = learner.optimizer, learner.scaler
        return Position(
            stage_index=self.index,
            stage=self.stage.name,
            step=self.step,
            # A stage that met its target has as many steps as it took: so every release sees that it is finished.
            total_steps=self.step if at_end else self.data.total_steps,
            num_applied=optimizer.num_applied,
            samples_seen=self.samples,
            sample_hash=self.sample_hash,
            loss_scale=scaler.scale,
            finite_steps=scaler.finite_steps,
            # Only where it differs, which keeps manifests short.
            moment_steps=None if optimizer.moment_steps == optimizer.num_applied else optimizer.moment_steps,
            left_out={self.data.folder.paths[it.shard].name: it.place for it in self.data.order.left_out} or None,
        )

    def leave_out(self, shard: int) -> None:
        """Go on without a shard: none of its samples comes from the next step on."""
        self.data = replace(self.data, order=self.data.order.leave_out(shard, self.samples))


def start_or_resume(
    optimizer: Optimizer, index: int, stage: PretrainStage, data: StageData, at: Position | None
) -> StageProgress | None:
    """Return where a stage begins or goes on; None if it is finished.

    Args:
        optimizer: Told that a stage begins, where one does.
        index: Of the stage.
        stage: Begins or goes on.
        data: What it reads.
        at: Of the checkpoint that the stage goes on from; None where it begins.

    Raises:
        TrainerError: the stage has another number of steps than its checkpoint says.
    """
    if at is None:
        keeps, keeps_count = stage.optimizer_state != "reset", stage.optimizer_state == "keepWithStepCount"
        optimizer.start_stage(keep_moments=keeps, keep_step_count=keeps_count)
        return StageProgress(index, stage, data, 0, "")
    if at.stage_finished and (stage.target is not None or at.total_steps == data.total_steps):
        return None  # a stage that met its target has fewer steps than its length
    if at.total_steps != data.total_steps:
        raise TrainerError(
            f"{stage.name}: the checkpoint counts {at.total_steps} steps in this stage, now there are "
            f"{data.total_steps}",
            hint="the dataset has changed; restore it or start over (output.ifExists: New)",
        )
    return StageProgress(index, stage, _without(data, at.left_out or {}), at.step, at.sample_hash)


def _without(data: StageData, left_out: dict[str, int]) -> StageData:
    """Return what a stage reads without the shards that its checkpoint says."""
    numbers = {path.name: number for number, path in enumerate(data.folder.paths)}
    if unknown := sorted(left_out.keys() - numbers.keys()):
        raise TrainerError(
            f"{data.folder.paths[0].parent}: lacks {', '.join(unknown)}, which the checkpoint leaves out",
            hint="restore the dataset, or start over (output.ifExists: New)",
        )
    if not left_out:
        return data
    order = data.order.without(tuple(LeftOut(numbers[name], place) for name, place in left_out.items()))
    return replace(data, order=order)
