"""Recipes: names of folders and files of the dataset builds that NVIDIA and MLPerf published (``bert_job.recipes``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from bert_job.dataset_names import RecipeName, WrittenLayout
from bert_job.recipes import RECIPES
from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.shards import Split
from bert_trainer.dataset.shards.dataset_info import DatasetInfo

_DEFAULT_CORPUS = "corpus"


@dataclass(frozen=True, slots=True)
class Resharding:
    """How the training parts of a length are redistributed to files of equal size."""

    folder_name: str
    file_name: str
    num_shards: int = 0
    """Of the stage, else the recipe's."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names of folders and files, by which a published loader finds them."""

    folder: str = "seq_len_{tokens}_max_pred_{predictions}"
    """One length's shards, below the dataset's folder."""
    training: str = "training_{number:04d}.hdf5"
    """A training shard; ``count`` is the number of them."""
    held_out: str = "held_out_{number:04d}.hdf5"
    resharding: Resharding | None = None


_PUBLISHED = {"masked_lm_probability": 0.15, "short_sequence_probability": 0.1, "seed": 12345}

NAMES: dict[RecipeName, Names] = {
    # bertPrep.py and create_datasets_from_start.sh of NVIDIA's DeepLearningExamples (2020): a folder per corpus.
    "nvidia": Names(
        folder=(
            "hdf5_lower_case_{lower_case}_seq_len_{tokens}_max_pred_{predictions}"
            "_masked_lm_prob_{probability}_random_seed_{seed}_dupe_factor_{dupe_factor}/{corpus}"
        ),
        training="{corpus}_training_{number}.hdf5",
        held_out="{corpus}_test_{number}.hdf5",
    ),
    # parallel_create_hdf5.sh and chop_hdf5_files.py of MLPerf's and Intel's BERT. The published folder name keeps its
    # 2048 for any number of shards.
    "mlperf": Names(
        folder="hdf5_seq_{tokens}",
        training="part-{number:05d}-of-{count:05d}.hdf5",
        resharding=Resharding("2048_shards_uncompressed_{tokens}", "part_{index}_of_{count}.hdf5"),
    ),
}


def published_settings(recipe: RecipeName | None) -> dict[str, Any]:
    """Return the fields of a stage that a recipe sets; none without one."""
    return {} if recipe is None else {**_PUBLISHED, "dupe_factor": RECIPES[recipe].dupe_factor}


def with_num_shards(stage: PrepareStage, known: DatasetInfo | None) -> PrepareStage:
    """Return the stage with its recipe's number of training parts, where it sets none.

    A dataset that was begun without a number keeps the one that the size of its text decided.
    """
    if stage.recipe is None or stage.num_shards is not None:
        return stage
    if known is not None and known.settings.num_shards is None:
        return stage
    return stage.model_copy(update={"num_shards": RECIPES[stage.recipe].num_shards})


def describe_recipe(stage: PrepareStage) -> str | None:
    """Return a line on what of a build is its recipe's, and what is not; None without a recipe."""
    if stage.recipe is None:
        return None
    recipe, settings = RECIPES[stage.recipe], published_settings(stage.recipe)
    wanted: dict[str, Any] = {**settings, "num_shards": recipe.num_shards, "layout": recipe.layout}
    found: dict[str, Any] = {name: getattr(stage, name) for name in settings}
    found |= {"num_shards": stage.num_shards, "layout": loader_layout(stage)}
    if target := resharding(stage):
        wanted["num_balanced_shards"], found["num_balanced_shards"] = recipe.num_balanced_shards, target.num_shards
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
    return "{corpus}" in _names(stage).training


def folder_name(stage: PrepareStage, length: tuple[int, int], corpus: str | None) -> str:
    """Return the name of a length's folder below the dataset, as the stage's recipe has it. corpus: the text's name."""
    return _names(stage).folder.format(
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
    names = _names(stage)
    pattern = names.training if split == "training" else names.held_out
    return pattern.format(number=number, count=count, corpus=corpus)


def resharding(stage: PrepareStage) -> Resharding | None:
    """Return how the parts are resharded, with the stage's number of shards; None if they are not."""
    found, published = _names(stage).resharding, RECIPES[stage.recipe].num_balanced_shards if stage.recipe else None
    if found is None or published is None:
        return None
    return replace(found, num_shards=stage.num_balanced_shards or published)


def loader_layout(stage: PrepareStage) -> WrittenLayout:
    """Return the layout of the files that training reads."""
    if stage.layout is not None:
        return stage.layout
    return "compact" if stage.masking == "dynamic" or stage.recipe is None else RECIPES[stage.recipe].layout


def shard_layout(stage: PrepareStage) -> WrittenLayout:
    """Return the layout of files that are built from text; the resharding alone reads those of resharded parts."""
    return loader_layout(stage) if _names(stage).resharding is None else "compact"


def _names(stage: PrepareStage) -> Names:
    return NAMES[stage.recipe] if stage.recipe else Names()
