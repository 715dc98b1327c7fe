"""Options of ``bert-data build`` that go beyond single settings: recipes, masks, layouts.

MLPerf's scripts take the sequence length and the number of shards from the environment variables SEQ_LEN and
SHARD_NUM; its recipe and ``bert-data chop`` do so too, where no option says otherwise.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from bert_trainer.dataset.build.recipes import RECIPES
from bert_trainer.dataset.shards import LAYOUTS
from bert_trainer.errors import InputError

LENGTH_VARIABLE = "SEQ_LEN"
SHARDS_VARIABLE = "SHARD_NUM"


def add_build_options(command: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    command.add_argument(
        "--recipe",
        choices=sorted(RECIPES),
        help="a published build: its lengths, settings, layout and names of folders and files; options beside it win",
    )
    command.add_argument(
        "--layout", choices=LAYOUTS, help="of the files that a loader reads; default: the recipe's, else compact"
    )
    command.add_argument(
        "--balanced-shards",
        type=int,
        metavar="N",
        help=f"with --recipe mlperf: cut the parts into N shards of equal size; default: {SHARDS_VARIABLE}, else 2048",
    )
    command.add_argument(
        "--masking",
        choices=("static", "dynamic"),
        default="static",
        help="static: masks in the files; dynamic: training files hold none, the trainer draws them (%(default)s)",
    )
    command.add_argument("--whole-word-masking", action="store_true", help="mask all pieces of a word or none")


def recipe_settings(arguments: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of ``PrepareStage`` that these options set.

    Raises:
        InputError: a variable of the recipe is no number, or options that do not go together.
    """
    settings = RECIPES[arguments.recipe].settings if arguments.recipe else {}
    balanced = arguments.balanced_shards
    if arguments.recipe == "mlperf":
        balanced = balanced or read_number(environment, SHARDS_VARIABLE)
    elif balanced is not None:
        raise InputError(
            f"build: got --balanced-shards {balanced}; allowed: only with --recipe mlperf",
            hint="give --shards, or cut the shards with 'bert-data chop' afterwards",
        )
    if arguments.masking == "dynamic" and arguments.layout not in (None, "compact"):
        raise InputError(
            f"build: got --layout {arguments.layout}; allowed with --masking dynamic: compact",
            hint="the other layouts have no room for samples without masks",
        )
    return {
        **settings,
        "recipe": arguments.recipe,
        "layout": arguments.layout,
        "num_balanced_shards": balanced,
        "masking": arguments.masking,
        "whole_word_masking": arguments.whole_word_masking,
    }


def recipe_lengths(arguments: argparse.Namespace, environment: Mapping[str, str]) -> list[tuple[int, int]]:
    """Return the lengths of the recipe; none without one.

    Raises:
        InputError: the variable of the recipe is no number.
    """
    if arguments.recipe is None:
        return []
    lengths = RECIPES[arguments.recipe].lengths
    length = read_number(environment, LENGTH_VARIABLE) if arguments.recipe == "mlperf" else None
    # [CLS] and two [SEP] are never predicted.
    return list(lengths) if length is None else [(length, min(lengths[0][1], length - 3))]


def read_number(environment: Mapping[str, str], name: str) -> int | None:
    """Return the value of a variable of the published scripts; None where it is not set.

    Raises:
        InputError: it is no number from 1 on.
    """
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise InputError(
            f"{name}: got {text!r} in the environment; allowed: a whole number from 1 on",
            hint="unset the variable, or give the option that it stands for",
        )
    return int(text)
