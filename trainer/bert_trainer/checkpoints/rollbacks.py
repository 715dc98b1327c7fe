"""What a run has gone back from: which steps are left out ever after, why, and which checkpoints came of them.

``rollbacks.json`` in the output folder, replaced atomically before a run goes back. A run that is killed at any moment
comes to the same steps again: without the record it finds the same, with it it leaves the same steps out.

A checkpoint holds the rollbacks of its run up to then. So one with a step that is left out is known and set aside, and
a record that was lost, or replaced by an older one, is made whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bert_trainer.checkpoints.checkpoint import Checkpoint, Rollback
from bert_trainer.errors import TrainerError
from bert_trainer.system.atomic_files import write_json_atomically

ROLLBACKS_FILE = "rollbacks.json"


def read_rollbacks(output: Path) -> tuple[Rollback, ...]:
    """Return a run's rollbacks, oldest first.

    Raises:
        TrainerError: the file cannot be read; going on without it would train on what is to be left out.
    """
    path = output / ROLLBACKS_FILE
    try:
        return tuple(Rollback(**entry) for entry in json.loads(path.read_text())["rollbacks"])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainerError(
            f"{path}: not a record of rollbacks ({error})",
            hint="restore it from a backup; without it this run would train on steps that it has left out",
        ) from error


def write_rollbacks(output: Path, rollbacks: Sequence[Rollback]) -> None:
    """Write the record of rollbacks durably."""
    document: dict[str, Any] = {"rollbacks": [asdict(rollback) for rollback in rollbacks]}
    write_json_atomically(output / ROLLBACKS_FILE, document)


def distrust_reason(checkpoint: Checkpoint, rollbacks: Sequence[Rollback]) -> str | None:
    """Return why a run must not resume from one of its checkpoints; None if it may."""
    at = (checkpoint.position.stage_index, checkpoint.position.step)
    for rollback in rollbacks:
        if rollback not in checkpoint.rollbacks and at >= (rollback.stage_index, rollback.first_step):
            return f"holds step {rollback.first_step} of {rollback.stage}, which is left out: {rollback.message}"
    return None


def merge_rollbacks(checkpoint: Checkpoint, rollbacks: tuple[Rollback, ...]) -> tuple[Rollback, ...]:
    """Return the rollbacks of a record and a checkpoint of the same run, oldest first."""
    if set(checkpoint.rollbacks) <= set(rollbacks):
        return rollbacks
    return (*checkpoint.rollbacks, *(rollback for rollback in rollbacks if rollback not in checkpoint.rollbacks))


def left_out_steps(rollbacks: Sequence[Rollback], stage_index: int) -> dict[int, str]:
    """Return the skipped steps of a stage, counted from 1, with the reason."""
    return {
        step: rollback.message
        for rollback in rollbacks
        if rollback.stage_index == stage_index
        for step in range(rollback.first_step, rollback.last_step + 1)
    }


def num_without_progress(rollbacks: Sequence[Rollback], to: tuple[int, int]) -> int:
    """Return how many consecutive rollbacks, the newest included, went back to this checkpoint or a later one.

    to: index of the stage and step of the checkpoint. A newer one ends the row: the run got further than before.
    """
    count = 0
    for rollback in reversed(rollbacks):
        if (rollback.to_stage_index, rollback.to_step) < to:
            break
        count += 1
    return count
