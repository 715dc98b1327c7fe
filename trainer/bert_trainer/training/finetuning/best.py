"""The best evaluation's weights: ``finetune/<stage>/best``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bert_job.run_stages import FinetuneStage
from bert_trainer.checkpoints.weights_folder import read_weights_folder, restore_folder, write_weights_folder
from bert_trainer.errors import InputError
from bert_trainer.model.bert import Bert
from bert_trainer.model.task_model import TaskModel
from bert_trainer.output.run_folder import RunFolder
from bert_trainer.tasks.catalog import TASKS
from bert_trainer.training.finetuning.task_learner import new_model
from bert_trainer.training.start_weights import FINETUNE_FOLDER

BEST_FOLDER = "best"
BEST_RECORD = "result.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """What the best weights are: the record beside them."""

    task: str
    labels: tuple[str, ...]
    """Classes by number; none of other kinds."""
    metric: str
    """The one that decided."""
    seed: int
    rank: int
    """Whose weights they are; 0 where all ranks trained one model."""
    epoch: float
    step: int
    """Of the stage."""
    metrics: Mapping[str, float]
    majority: Mapping[str, float] = field(default_factory=dict)
    train_examples: int = 0
    train_rows: int = 0
    validation_examples: int = 0
    lower_case: bool = True

    @property
    def value(self) -> float:
        """The deciding metric; below every other where it is not a number."""
        return self.metrics.get(self.metric, float("-inf"))

    @classmethod
    def of(cls, document: Mapping[str, Any], path: Path) -> Best:
        """Read a record; raises InputError where it is none."""
        try:
            known = {name: document[name] for name in cls.__slots__ if name in document}
            labels, metrics = tuple(map(str, known.pop("labels"))), dict(known.pop("metrics"))
            return cls(labels=labels, metrics={str(name): float(value) for name, value in metrics.items()}, **known)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}: not the record of an evaluation ({type(error).__name__}: {error})",
                hint="restore the folder from a copy, or start over (output.ifExists: New)",
            ) from error


def stage_folder(output: Path, stage: FinetuneStage) -> Path:
    """Return where a stage's results go. output: the run's folder, here and below."""
    return output / FINETUNE_FOLDER / stage.name


def best_folder(output: Path, stage: FinetuneStage) -> Path:
    """Return where the best weights are."""
    return stage_folder(output, stage) / BEST_FOLDER


def keep_best(folder: RunFolder, stage: FinetuneStage, best: Best, tensors: Mapping[str, Tensor]) -> None:
    """Put weights in the place of those that were the best so far; on rank 0. folder: the run's."""
    write_weights_folder(
        best_folder(folder.path, stage), tensors, asdict(best), BEST_RECORD, before_commit=folder.check_fence
    )


def find_best(output: Path, stage: FinetuneStage) -> Best | None:
    """Return what is kept so far, after cleaning up behind a kill; on rank 0."""
    folder = best_folder(output, stage)
    restore_folder(folder)
    return read_best(output, stage)[1] if folder.exists() else None


def read_best(output: Path, stage: FinetuneStage) -> tuple[dict[str, Tensor], Best]:
    """Return the best weights by name, and their record.

    Raises:
        InputError: they are missing or damaged.
    """
    folder = best_folder(output, stage)
    tensors, document = read_weights_folder(folder, BEST_RECORD)
    return tensors, Best.of(document, folder / BEST_RECORD)


@torch.no_grad()
def load_finetuned(output: Path, stage: FinetuneStage, pretrained: Bert) -> tuple[TaskModel, Best]:
    """Return the model that a finetune stage has left, in fp32 on the CPU, and its record; on any rank, not collective.

    pretrained: has the same sizes.

    Raises:
        InputError: its weights are missing, damaged, or another model's.
    """
    tensors, best = read_best(output, stage)
    model = new_model(pretrained, stage, TASKS[stage.task].with_labels(best.labels))
    parameters = dict(model.named_parameters())
    if {name: it.shape for name, it in parameters.items()} != {name: it.shape for name, it in tensors.items()}:
        raise InputError(
            f"{best_folder(output, stage)}: its tensors are not those of {stage.task} with this run's model",
            hint="restore the folder from a copy, or start over (output.ifExists: New)",
        )
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
    return model.eval(), best
