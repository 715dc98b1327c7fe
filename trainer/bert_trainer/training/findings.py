"""What follows from a finding: a report, a skipped update, a way back to a checkpoint, or the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bert_trainer.checkpoints.checkpoint import Rollback
from bert_trainer.checkpoints.rollbacks import distrust_reason, num_without_progress, write_rollbacks
from bert_trainer.checkpoints.store import CheckpointStore
from bert_trainer.errors import TrainingUnhealthy
from bert_trainer.optim.optimizer import LossScaler
from bert_trainer.output.metrics import read_metrics
from bert_trainer.output.run_folder import RunFolder
from bert_trainer.training.health import HINT, Finding


class RolledBack(Exception):
    """Raised on every rank at the same step to go back to a checkpoint; caught where stages are run."""

    def __init__(self, stage_index: int, finding: Finding) -> None:
        """stage_index: of the stage with the finding."""
        super().__init__(finding.message)
        self.stage_index, self.finding = stage_index, finding


def unhealthy(finding: Finding) -> TrainingUnhealthy:
    """Return the error that ends a run for a finding."""
    return TrainingUnhealthy(f"{finding.stage}: {finding.message}", hint=HINT)


def apply_remedy(
    finding: Finding | None, stage_index: int, report: Callable[..., None], scaler: LossScaler | None = None
) -> None:
    """Report a finding, if any, and act on its policy; skipped updates have been skipped already.

    Args:
        finding: What ``Health`` returned.
        stage_index: Of its stage.
        report: Writes an event.
        scaler: Of a finding about a step; a skipped one with too low a scale leaves it at the limit.

    Raises:
        RolledBack, TrainingUnhealthy: as the policy says, on every rank alike.
    """
    if finding is None:
        return
    report(
        "unhealthy",
        stage=finding.stage,
        step=finding.last_step,
        finding=finding.name,
        action=finding.action,
        message=finding.message,
    )
    if finding.action == "Rollback":
        raise RolledBack(stage_index, finding)
    if finding.action == "Stop":
        raise unhealthy(finding)
    if finding.name == "lossScale" and scaler is not None:
        scaler.scale *= 2  # what the overflow has halved it from: lower, it would lose more than it saves


def roll_back(
    store: CheckpointStore,
    before: Sequence[Rollback],
    stage_index: int,
    finding: Finding,
    *,
    most: int,
) -> tuple[Rollback, ...]:
    """Find the checkpoint to go back to, and record the rollback; on rank 0.

    Args:
        store: With no write under way.
        before: Earlier rollbacks.
        stage_index: Of the stage with the finding.
        finding: What is left out, and why.
        most: Rollbacks in a row without a new checkpoint.

    Returns:
        All rollbacks.

    Raises:
        TrainingUnhealthy: that was one too many, or no checkpoint is left from before the finding.
    """
    new = Rollback(
        stage_index=stage_index,
        stage=finding.stage,
        first_step=finding.first_step,
        last_step=finding.last_step,
        finding=finding.name,
        message=finding.message,
        to_stage_index=0,
        to_step=0,
    )
    # Nothing is set aside yet: if this ends the run, another attempt goes on from what it had.
    trusted = [found for found in store.valid() if distrust_reason(found, before) is None]
    target = next((found for found in trusted if distrust_reason(found, (new,)) is None), None)
    if target is None and trusted:
        # Not to the start of the run: a day of training is not thrown away unasked.
        raise unhealthy(replace(finding, message=f"{finding.message}; no checkpoint from before that is left"))
    to = (0, 0) if target is None else (target.position.stage_index, target.position.step)
    without_progress = num_without_progress(before, to)
    if without_progress >= most:
        message = (
            f"{finding.message}; {without_progress} rollbacks in a row have led to no new checkpoint, allowed: {most}"
        )
        raise unhealthy(replace(finding, message=message))
    rollbacks = (*before, replace(new, to_stage_index=to[0], to_step=to[1]))
    store.folder.check_fence()
    write_rollbacks(store.folder.path, rollbacks)
    return rollbacks


def announce_rollbacks(folder: RunFolder, rollbacks: Sequence[Rollback], report: Callable[..., None]) -> None:
    """Report rollbacks that are missing in the metrics, such as one that an attempt was killed behind.

    After the record: what was evaluated behind a checkpoint counts until the run has gone back to it.
    """
    if not rollbacks:
        return
    places = ("stage", "first_step", "last_step", "step")
    announced = {
        tuple(record.get(name) for name in places)
        for record in read_metrics(folder.path)
        if record.get("event") == "rolled_back"
    }
    for rollback in rollbacks:
        step = rollback.to_step if rollback.to_stage_index == rollback.stage_index else 0
        if (rollback.stage, rollback.first_step, rollback.last_step, step) in announced:
            continue
        # An attempt that was declared dead writes nothing into what its successor reads.
        folder.check_fence()
        number = rollback.last_step - rollback.first_step + 1
        report(
            "rolled_back",
            stage=rollback.stage,
            step=step,
            first_step=rollback.first_step,
            last_step=rollback.last_step,
            finding=rollback.finding,
            message=f"Went back to step {step} and leaves out {number} step(s) from {rollback.first_step} on: "
            f"{rollback.message}",
        )
