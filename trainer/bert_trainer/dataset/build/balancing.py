"""The second step of MLPerf's recipe within a build: the training parts of a length cut into equal shards.

It is what ``bert-data chop`` does, with the build's processes, and with a fingerprint that depends on the text and the
settings alone, so that the bytes are the same wherever and by however many processes they are made.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from bert_trainer.config.stages import PrepareStage
from bert_trainer.dataset.build.conversion import RewriteTask, is_done, plan_cut, rewrite
from bert_trainer.dataset.build.progress import BuildProgress
from bert_trainer.dataset.build.recipes import balanced_cut, loader_layout
from bert_trainer.dataset.shards import list_shards
from bert_trainer.dataset.shards.dataset_info import BalancedShards, DatasetRecord, LengthRecord
from bert_trainer.dataset.workers.pool import TaskPool
from bert_trainer.errors import InputError
from bert_trainer.system.atomic_files import PARTIAL_SUFFIX, disk_errors


@dataclass(frozen=True, slots=True)
class BalancedPlan:
    """The files of one length that are to be there."""

    length: LengthRecord
    folder: str
    tasks: tuple[RewriteTask, ...]

    def carry_out(self, pool: TaskPool, progress: BuildProgress) -> LengthRecord:
        """Make what is missing and return the length's record with it. Raises TrainerError as ``rewrite``."""
        missing = []
        for task in self.tasks:
            if is_done(task):
                progress.advance()
            else:
                missing.append(task)
        for _ in pool.run(rewrite, missing):
            progress.advance()
        training = {task.target.name: task.num_rows for task in self.tasks}
        return self.length.model_copy(update={"balanced": BalancedShards(folder=self.folder, training=training)})


def num_balanced(stage: PrepareStage) -> int:
    """Return how many files a length's parts are cut into again; 0: they are not."""
    cut = balanced_cut(stage)
    return cut.num_shards if cut else 0


def plan_balanced(stage: PrepareStage, record: DatasetRecord, length: LengthRecord, root: Path) -> BalancedPlan | None:
    """Return what is to be made of a length's parts; None where the recipe leaves them as they are.

    Raises:
        InputError: the length has fewer samples than there shall be files, or the folder holds others.
    """
    cut = balanced_cut(stage)
    if cut is None:
        return None
    if length.samples_training < cut.num_shards:
        raise InputError(
            f"{root / length.folder}: got {length.samples_training} training samples for {cut.num_shards} shards; "
            "allowed: at least one sample for each",
            hint=f"ask for fewer shards (--balanced-shards, SHARD_NUM, numBalancedShards), {length.samples_training} "
            "at most, or take more text",
        )
    folder = cut.folder_name.format(tokens=length.sequence_length)
    target = root / folder
    with disk_errors(target):
        target.mkdir(exist_ok=True)
        for leftover in target.glob(f".*{PARTIAL_SUFFIX}"):
            leftover.unlink(missing_ok=True)
    settings = record.settings.model_dump_json()
    tasks = plan_cut(
        [root / length.folder / name for name in length.training],
        target,
        cut.num_shards,
        layout=loader_layout(stage),
        name=cut.file_name,
        content=hashlib.sha256(f"{record.corpus_sha256} {record.vocabulary_sha256} {settings}".encode()).hexdigest(),
    )
    strangers = {path.name for path in list_shards(target)} - {task.target.name for task in tasks}
    if strangers:
        raise InputError(
            f"{target}: holds other shards, the first is {min(strangers)}",
            hint="take them out of the folder, or choose another dataset folder",
        )
    return BalancedPlan(length, folder, tuple(tasks))
