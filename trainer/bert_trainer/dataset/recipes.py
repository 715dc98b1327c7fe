"""Published ways to build a dataset, by name: what NVIDIA's and MLPerf's scripts do with a text.

A recipe is nothing but settings and names of folders and files; options given beside it win.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bert_trainer.config import PrepareStage, RecipeName
from bert_trainer.dataset.shards import Split


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of one published build."""

    lengths: tuple[tuple[int, int], ...]
    """Sequence lengths and predictions per sequence."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of ``PrepareStage``."""
    folder_name: str = "seq_len_{tokens}_max_pred_{predictions}"
    """Of one length's shards, below the dataset."""
    file_name: str = "training_{number:04d}.hdf5"
    """Of a training shard; ``count`` is how many there are."""


_PUBLISHED = {"masked_lm_probability": 0.15, "short_sequence_probability": 0.1, "seed": 12345}

RECIPES: dict[RecipeName, Recipe] = {
    # bertPrep.py and create_datasets_from_start.sh of NVIDIA's DeepLearningExamples (2020).
    "nvidia": Recipe(
        lengths=((128, 20), (512, 80)),
        settings={**_PUBLISHED, "dupe_factor": 5},
        folder_name=(
            "hdf5_lower_case_{lower_case}_seq_len_{tokens}_max_pred_{predictions}"
            "_masked_lm_prob_{probability}_random_seed_{seed}_dupe_factor_{dupe_factor}"
        ),
    ),
    # parallel_create_hdf5.sh of MLPerf's and Intel's BERT: 76 predictions at every length, 500 parts.
    "mlperf": Recipe(
        lengths=((128, 76), (512, 76)),
        settings={**_PUBLISHED, "dupe_factor": 10, "num_shards": 500},
        folder_name="hdf5_seq_{tokens}",
        file_name="part-{number:05d}-of-{count:05d}.hdf5",
    ),
}


def folder_name(stage: PrepareStage, length: tuple[int, int]) -> str:
    """Return the name of a length's folder below the dataset, as the stage's recipe has it."""
    return _names(stage).folder_name.format(
        tokens=length[0],
        predictions=length[1],
        lower_case=int(stage.lower_case),
        probability=stage.masked_lm_probability,
        seed=stage.seed,
        dupe_factor=stage.dupe_factor,
    )


def file_name(stage: PrepareStage, split: Split, number: int, count: int) -> str:
    """Return the name of a shard. count: shards of its split."""
    pattern = _names(stage).file_name if split == "training" else "held_out_{number:04d}.hdf5"
    return pattern.format(number=number, count=count)


def _names(stage: PrepareStage) -> Recipe:
    return RECIPES[stage.recipe] if stage.recipe else Recipe(lengths=())
