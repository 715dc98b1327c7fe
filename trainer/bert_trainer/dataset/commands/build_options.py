"""Options of ``bert-data build``, and the settings of a build by hand that they stand for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bert_trainer.config.stages import PrepareStage
from bert_trainer.dataset.build.recipes import RECIPES
from bert_trainer.dataset.build.resume import Length
from bert_trainer.dataset.commands.arguments import (
    LENGTH_VARIABLE,
    SHARDS_VARIABLE,
    add_corpora,
    add_max_unknown_share,
    parse_length,
    read_number,
)
from bert_trainer.dataset.shards import LAYOUTS
from bert_trainer.errors import InputError

_SETTINGS = {
    "text": "--text",
    "vocabulary_size": "--vocabulary-size",
    "held_out_fraction": "--held-out-fraction",
    "near_duplicate_similarity": "--near-duplicate-similarity",
    "dupe_factor": "--dupe-factor",
    "masked_lm_probability": "--masked-lm-probability",
    "short_sequence_probability": "--short-sequence-probability",
    "seed": "--seed",
    "num_shards": "--shards",
    "num_processes": "--processes",
}
"""Fields of ``PrepareStage`` and the option that sets each by hand."""

_DEFAULTS_SHOWN = {"num_shards": "the recipe's, else 8, more for large text", "num_processes": "one per core"}
"""Of fields whose default depends on the text or the machine."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add all options to the command's parser."""
    command.add_argument("--config", type=Path, help="run configuration of a job; nothing else is needed with it")
    command.add_argument("--text", help="folder or file of text, or builtin:python-docs")
    add_corpora(command)
    command.add_argument("--output", type=Path, help="folder of the dataset")
    command.add_argument(
        "--length",
        type=parse_length,
        action="append",
        metavar="T:P",
        help="tokens and predictions, as 128:20; repeatable",
    )
    command.add_argument("--sequence-length", type=int, action="append", metavar="T", help="as in --length")
    command.add_argument("--max-predictions", type=int, action="append", metavar="P", help="as in --length")
    command.add_argument("--vocabulary", help="ready vocabulary, one token per line; default: one is learnt")
    command.add_argument("--cased", action="store_true", help="keep upper case and accents")
    add_max_unknown_share(command)
    _add_recipe_options(command)
    defaults = PrepareStage(text="")
    for field, option in _SETTINGS.items():
        if field != "text":
            default = getattr(defaults, field)
            kind = type(default) if default is not None else int
            shown = _DEFAULTS_SHOWN[field] if default is None else default
            # No default of its own: only what was given wins over the recipe (parse_stage).
            command.add_argument(option, dest=field, type=kind, help=f"default: {shown}")


def _add_recipe_options(command: argparse.ArgumentParser) -> None:
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


def parse_stage(arguments: argparse.Namespace, environment: Mapping[str, str]) -> PrepareStage:
    """Return the settings of a build by hand: the options, before the recipe's, before the defaults.

    Raises:
        InputError: options are missing, wrong, or do not go together; names all that are wrong.
    """
    given = {field: getattr(arguments, field) for field in _SETTINGS if getattr(arguments, field) is not None}
    corpora = tuple(arguments.corpora or ())
    # Equal: both are given, or neither.
    if ("text" in given) == bool(corpora) or arguments.output is None:
        raise InputError("build: needs either --config, or --output and one of --text and --corpus")
    try:
        settings = {**_recipe_settings(arguments, environment), **given, "corpora": corpora}
        return PrepareStage(**settings, lower_case=not arguments.cased, max_unknown_share=arguments.max_unknown_share)
    except ValidationError as error:
        problems = [(_option_of(str(item["loc"][0])), item) for item in error.errors()]
        lines = [f"  {option}: got {item['input']!r}; {item['msg']}" for option, item in problems]
        raise InputError("build: wrong options\n" + "\n".join(lines)) from error


def _option_of(field: str) -> str:
    return _SETTINGS.get(field) or "--" + field.removeprefix("num_").replace("_", "-")


def _recipe_settings(arguments: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of ``PrepareStage`` that the recipe and the options beside it set.

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


def parse_lengths(arguments: argparse.Namespace, environment: Mapping[str, str]) -> list[Length]:
    """Return the lengths to build, each once: those of the options, else the recipe's.

    Raises:
        InputError: there is none, half a pair is missing, or the recipe's variable is no number.
    """
    tokens, predictions = arguments.sequence_length or [], arguments.max_predictions or []
    if len(tokens) != len(predictions):
        raise InputError(
            f"build: got {len(tokens)} --sequence-length and {len(predictions)} --max-predictions; "
            "allowed: as many of one as of the other"
        )
    lengths = list(dict.fromkeys([*(arguments.length or []), *zip(tokens, predictions, strict=True)]))
    if not (lengths := lengths or _recipe_lengths(arguments, environment)):
        raise InputError("build: needs at least one length", hint="add --length 128:20, for example")
    return lengths


def _recipe_lengths(arguments: argparse.Namespace, environment: Mapping[str, str]) -> list[Length]:
    """Return the lengths of the recipe; none without one."""
    if arguments.recipe is None:
        return []
    lengths = RECIPES[arguments.recipe].lengths
    length = read_number(environment, LENGTH_VARIABLE) if arguments.recipe == "mlperf" else None
    # [CLS] and two [SEP] are never predicted.
    return list(lengths) if length is None else [(length, min(lengths[0][1], length - 3))]
