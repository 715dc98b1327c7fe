"""The weights that finetune stages start from, kept apart from the checkpoints.

Written once, before the first finetune stage. What a stage or a seed begins with then depends neither on checkpoints
of pretraining, which may be pruned, nor on an initial checkpoint that is still where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from bert_job.run_stages import FinetuneStage, Stage
from bert_trainer.checkpoints.weights_folder import read_weights_folder, restore_folder, write_weights_folder
from bert_trainer.errors import InputError
from bert_trainer.parallel.flat_parameters import FlatParameters

FINETUNE_FOLDER = "finetune"
"""In the output folder: one folder for each stage, and ``start``."""
_START = "start"  # no finetune stage may be called so: config.checks
_RECORD = "start.json"


def start_folder(output: Path) -> Path:
    """Return the folder of the weights."""
    return output / FINETUNE_FOLDER / _START


def needs_start_weights(stages: Sequence[Stage]) -> bool:
    """Return whether one of these stages starts from pretrained weights."""
    return any(isinstance(stage, FinetuneStage) and stage.start_from == "pretrained" for stage in stages)


def save_start_weights(
    output: Path, parameters: FlatParameters, source: str, before_commit: Callable[[], None]
) -> None:
    """Write the pretrained weights. source: where they come from, for people."""
    target = start_folder(output)
    restore_folder(target)
    write_weights_folder(
        target, parameters.named(parameters.values), {"source": source}, _RECORD, before_commit=before_commit
    )


@torch.no_grad()
def load_start_weights(output: Path, parameters: FlatParameters) -> None:
    """Load the weights. Raises InputError if they are missing, damaged, or another model's."""
    target = start_folder(output)
    restore_folder(target)
    tensors, _ = read_weights_folder(target, _RECORD)
    views = parameters.named(parameters.values)
    if {name: view.shape for name, view in views.items()} != {name: it.shape for name, it in tensors.items()}:
        raise InputError(
            f"{target}: its tensors are not this model's",
            hint="restore the vocabulary and the model section that it was made with, or start over "
            "(output.ifExists: New)",
        )
    for name, view in views.items():
        view.copy_(tensors[name])
