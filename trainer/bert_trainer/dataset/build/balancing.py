"""Resharding, the second step of MLPerf's recipe: redistributes a length's training parts to shards of equal size.

The same as ``bert-data chop``, on the build's processes. The fingerprint in the files depends on the text and the
settings alone, so the bytes are the same on every machine and for any number of processes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.build.conversion import (
    ConversionTask,
    is_converted,
    plan_chop,
    refuse_foreign_shards,
    run_conversion,
)
from bert_trainer.dataset.build.progress import BuildProgress
from bert_trainer.dataset.build.recipes import loader_layout, resharding
from bert_trainer.dataset.shards import make_shard_folder
from bert_trainer.dataset.shards.dataset_info import BalancedShards, DatasetInfo, LengthInfo
from bert_trainer.dataset.workers.pool import TaskPool
from bert_trainer.errors import InputError


@dataclass(frozen=True, slots=True)
class ReshardingPlan:
    """The resharded files of one length."""

    length: LengthInfo
    folder: str
    tasks: tuple[ConversionTask, ...]

    def carry_out(self, pool: TaskPool, progress: BuildProgress) -> LengthInfo:
        """Build what is missing and return the length with its balanced shards.

        Raises:
            TrainerError: as ``run_conversion``.
        """
        missing = []
        for task in self.tasks:
            if is_converted(task):
                progress.keep()
                progress.advance()
            else:
                missing.append(task)
        for _ in pool.run(run_conversion, missing):
            progress.save()
            progress.advance()
        training = {task.target.name: task.num_rows for task in self.tasks}
        return self.length.model_copy(update={"balanced": BalancedShards(folder=self.folder, training=training)})


def num_balanced(stage: PrepareStage) -> int:
    """Return the number of files that a length's parts are resharded into; 0 without resharding."""
    target = resharding(stage)
    return target.num_shards if target else 0


def plan_resharding(stage: PrepareStage, info: DatasetInfo, length: LengthInfo, root: Path) -> ReshardingPlan | None:
    """Plan the resharding of a length's parts; None if the recipe does not reshard.

    Raises:
        InputError: the length has fewer samples than the recipe has files, or the folder holds other shards.
    """
    wanted = resharding(stage)
    if wanted is None:
        return None
    if length.samples_training < wanted.num_shards:
        raise InputError(
            f"{root / length.folder}: got {length.samples_training} training samples for {wanted.num_shards} shards; "
            "allowed: at least one sample for each",
            hint=f"ask for fewer shards (--balanced-shards, SHARD_NUM, numBalancedShards), {length.samples_training} "
            "at most, or use more text",
        )
    folder = wanted.folder_name.format(tokens=length.sequence_length)
    target = root / folder
    make_shard_folder(target, root=root)
    settings = info.settings.model_dump_json()
    tasks = plan_chop(
        [root / length.folder / name for name in length.training],
        target,
        wanted.num_shards,
        layout=loader_layout(stage),
        name=wanted.file_name,
        # In place of the parts' times, which differ from machine to machine.
        content=hashlib.sha256(f"{info.corpus_sha256} {info.vocabulary_sha256} {settings}".encode()).hexdigest(),
    )
    refuse_foreign_shards(target, tasks, hint="move them out of the folder, or choose another dataset folder")
    return ReshardingPlan(length, folder, tuple(tasks))
