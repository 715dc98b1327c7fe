"""Options of ``bert-data build`` that go beyond single settings: recipes, whole words, MPI."""

from __future__ import annotations

import argparse
from typing import Any

from bert_trainer.dataset.recipes import RECIPES


def add_build_options(command: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    command.add_argument(
        "--recipe",
        choices=sorted(RECIPES),
        help="a published build: its lengths, settings and names of folders and files; options beside it win",
    )
    command.add_argument(
        "--masking",
        choices=("static", "dynamic"),
        default="static",
        help="static: masks in the files; dynamic: training files hold none, the trainer draws them (%(default)s)",
    )
    command.add_argument("--whole-word-masking", action="store_true", help="mask all pieces of a word or none")


def recipe_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of ``PrepareStage`` that these options set."""
    recipe = RECIPES[arguments.recipe].settings if arguments.recipe else {}
    return {
        **recipe,
        "recipe": arguments.recipe,
        "masking": arguments.masking,
        "whole_word_masking": arguments.whole_word_masking,
    }


def recipe_lengths(arguments: argparse.Namespace) -> list[tuple[int, int]]:
    """Return the lengths of the recipe; none without one."""
    return list(RECIPES[arguments.recipe].lengths) if arguments.recipe else []
