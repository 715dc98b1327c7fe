"""Recipes: settings, layouts and file names of the dataset builds that NVIDIA and MLPerf published.

Explicit options override the recipe's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from bert_trainer.config.dataset_names import LayoutName, RecipeName
from bert_trainer.config.stages import PrepareStage
from bert_trainer.dataset.shards import Split, shard_name
from bert_trainer.dataset.shards.dataset_info import DatasetInfo

_DEFAULT_CORPUS = "corpus"


@dataclass(frozen=True, slots=True)
class Resharding:
    """How the training parts of a length are redistributed to files of equal size."""

    folder_name: str
    file_name: str
    num_shards: int
    """Unless the stage sets another number."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of one published build."""

    lengths: tuple[tuple[int, int], ...]
    """Sequence lengths and predictions per sequence."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of ``PrepareStage``. An operator writes them out; a build by hand takes them from here."""
    num_shards: int | None = None
    """Training parts of a length, unless the stage sets another number. None: the size of the text decides."""
    folder_name: str = "seq_len_{tokens}_max_pred_{predictions}"
    """Folder of one length's shards, below the dataset's."""
    file_name: str = "training_{number:04d}.hdf5"
    """Name of a training shard; ``count`` is the number of them."""
    held_out_name: str = "held_out_{number:04d}.hdf5"
    layout: LayoutName = "compact"
    """The layout that the published loader reads."""
    resharding: Resharding | None = None


_PUBLISHED = {"masked_lm_probability": 0.15, "short_sequence_probability": 0.1, "seed": 12345}

RECIPES: dict[RecipeName, Recipe] = {
    # bertPrep.py and create_datasets_from_start.sh of NVIDIA's DeepLearningExamples (2020): a folder per corpus.
    "nvidia": Recipe(
        lengths=((128, 20), (512, 80)),
        settings={**_PUBLISHED, "dupe_factor": 5},
        num_shards=256,
        folder_name=(
            "hdf5_lower_case_{lower_case}_seq_len_{tokens}_max_pred_{predictions}"
            "_masked_lm_prob_{probability}_random_seed_{seed}_dupe_factor_{dupe_factor}/{corpus}"
        ),
        file_name="{corpus}_training_{number}.hdf5",
        held_out_name="{corpus}_test_{number}.hdf5",
        layout="nvidia",
    ),
    # parallel_create_hdf5.sh and chop_hdf5_files.py of MLPerf's and Intel's BERT: 76 predictions at every length, 500
    # parts, then 2,048 shards. The published folder name keeps its 2048 for any number of shards.
    "mlperf": Recipe(
        lengths=((128, 76), (512, 76)),
        settings={**_PUBLISHED, "dupe_factor": 10},
        num_shards=500,
        folder_name="hdf5_seq_{tokens}",
        file_name="part-{number:05d}-of-{count:05d}.hdf5",
        layout="intel",
        resharding=Resharding("2048_shards_uncompressed_{tokens}", "part_{index}_of_{count}.hdf5", 2048),
    ),
}


DEFAULT_LENGTHS = RECIPES["nvidia"].lengths
"""Of a build that nobody reads: 128 and 512 tokens (Devlin et al. 2019), with NVIDIA's numbers of predictions."""


def published_lengths(stage: PrepareStage) -> list[tuple[int, int]]:
    """Return the lengths of the stage's recipe; without one those of ``DEFAULT_LENGTHS``."""
    return list(_recipe(stage).lengths or DEFAULT_LENGTHS)


def with_num_shards(stage: PrepareStage, known: DatasetInfo | None) -> PrepareStage:
    """Return the stage with its recipe's number of training parts, where it sets none.

    A dataset that was begun without a number keeps the one that the size of its text decided.
    """
    number = _recipe(stage).num_shards
    if stage.num_shards is not None or number is None or (known is not None and known.settings.num_shards is None):
        return stage
    return stage.model_copy(update={"num_shards": number})


def describe_recipe(stage: PrepareStage) -> str | None:
    """Return a line on what of a build is its recipe's, and what is not; None without a recipe."""
    if stage.recipe is None:
        return None
    recipe = _recipe(stage)
    wanted: dict[str, Any] = {**recipe.settings, "num_shards": recipe.num_shards, "layout": recipe.layout}
    found: dict[str, Any] = {name: getattr(stage, name) for name in recipe.settings}
    found |= {"num_shards": stage.num_shards, "layout": loader_layout(stage)}
    if (target := resharding(stage)) and recipe.resharding:
        wanted["num_balanced_shards"], found["num_balanced_shards"] = recipe.resharding.num_shards, target.num_shards
    same = [f"{name} {value}" for name, value in found.items() if value == wanted[name]]
    other = [f"{name} {value} (recipe: {wanted[name]})" for name, value in found.items() if value != wanted[name]]
    line = f"recipe {stage.recipe}: {', '.join(same)}"
    return f"{line}; not the recipe's: {', '.join(other)}" if other else line


def corpus_name(paths: Sequence[str]) -> str:
    """Return a corpus name made from its file names: letters, digits and underscores.

    It holds no word that names a split: NVIDIA's loader trains on every file with "training" in its name.
    """
    stems = (PurePath(path.rpartition(":")[2]).name.partition(".")[0] for path in paths)
    words = re.findall(r"[a-z0-9]+", "_".join(stems).lower())
    # Also within a word: loaders search for the letters.
    name = "_".join(words).replace("training", "text")
    kept = [word for word in name.split("_") if word not in ("test", "eval", "part", "held", "out")]
    return "_".join(kept) or _DEFAULT_CORPUS


def needs_corpus_name(stage: PrepareStage) -> bool:
    """Return whether the text's name is part of the file names."""
    return "{corpus}" in _recipe(stage).file_name


def folder_name(stage: PrepareStage, length: tuple[int, int], corpus: str | None) -> str:
    """Return the name of a length's folder below the dataset, as the stage's recipe has it. corpus: the text's name."""
    return _recipe(stage).folder_name.format(
        tokens=length[0],
        predictions=length[1],
        lower_case=int(stage.lower_case),
        probability=stage.masked_lm_probability,
        seed=stage.seed,
        dupe_factor=stage.dupe_factor,
        corpus=corpus,
    )


def file_name(stage: PrepareStage, split: Split, number: int, count: int, corpus: str | None) -> str:
    """Return the name of a shard. count: shards of its split."""
    recipe = _recipe(stage)
    pattern = recipe.file_name if split == "training" else recipe.held_out_name
    return shard_name(pattern.format(number=number, count=count, corpus=corpus), shard_layout(stage))


def resharding(stage: PrepareStage) -> Resharding | None:
    """Return how the parts are resharded, with the stage's number of shards; None if they are not."""
    recipe = _recipe(stage).resharding
    return recipe and Resharding(recipe.folder_name, recipe.file_name, stage.num_balanced_shards or recipe.num_shards)


def loader_layout(stage: PrepareStage) -> LayoutName:
    """Return the layout of the files that training reads."""
    if stage.layout is not None:
        return stage.layout
    return "compact" if stage.masking == "dynamic" else _recipe(stage).layout


def shard_layout(stage: PrepareStage) -> LayoutName:
    """Return the layout of files that are built from text; the resharding alone reads those of resharded parts."""
    return loader_layout(stage) if _recipe(stage).resharding is None else "compact"


def _recipe(stage: PrepareStage) -> Recipe:
    return RECIPES[stage.recipe] if stage.recipe else Recipe(lengths=())
