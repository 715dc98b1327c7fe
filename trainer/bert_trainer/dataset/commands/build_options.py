"""Options of ``bert-data build``, and the settings of a build by hand that they stand for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from bert_job.preparation import PrepareSpec
from bert_job.recipes import DUPE_FACTORS, PUBLISHED_LENGTHS, predictions_of_recipe
from bert_job.rules.all_rules import OF_SECTIONS
from bert_job.run_stages import PrepareStage
from bert_job.section import SPECIAL_TOKENS, single_errors
from bert_trainer.config.options import Options
from bert_trainer.dataset.build.recipes import published_settings
from bert_trainer.dataset.build.resume import Length
from bert_trainer.dataset.commands.arguments import (
    LENGTH_VARIABLE,
    SHARDS_VARIABLE,
    add_corpora,
    parse_length,
    read_number,
)
from bert_trainer.errors import InputError

_STAGE = Options(
    PrepareSpec,
    title="build",
    names={
        "lower_case": "cased",
        "num_balanced_shards": "balanced-shards",
        "num_processes": "processes",
        "num_shards": "shards",
    },
    # Lengths come with their predictions, and processes under mpirun are what a job's workers are.
    without=("sequence_lengths", "max_predictions_per_sequence", "workers"),
)


def add_options(command: argparse.ArgumentParser) -> None:
    """Add all options to the command's parser."""
    command.add_argument("--config", type=Path, help="run configuration of a job; nothing else is needed with it")
    command.add_argument("--output", type=Path, help="folder of the dataset")
    command.add_argument(
        "--vocabulary", help="ready vocab.txt or tokenizer.json, or its folder; default: one is learnt"
    )
    add_corpora(command)
    command.add_argument(
        "--length",
        type=parse_length,
        action="append",
        metavar="T:P",
        help="tokens and predictions, as 128:20; repeatable; default: those of the recipe",
    )
    command.add_argument("--sequence-length", type=int, action="append", metavar="T", help="as in --length")
    command.add_argument("--max-predictions", type=int, action="append", metavar="P", help="as in --length")
    _STAGE.add_to(command)


def parse_stage(arguments: argparse.Namespace, environment: Mapping[str, str]) -> PrepareStage:
    """Return the settings of a build by hand: the options, before the recipe's, before the defaults.

    Raises:
        InputError: options are missing, wrong, or do not go together; names all that are wrong.
    """
    given = _STAGE.given(arguments)
    corpora = tuple(arguments.corpora or ())
    # Equal: both are given, or neither.
    if ("text" in given) == bool(corpora) or arguments.output is None:
        raise InputError("build: needs either --config, or --output and one of --text and --corpus")
    recipe = given.get("recipe")
    if recipe == "mlperf" and "num_balanced_shards" not in given:
        given["num_balanced_shards"] = read_number(environment, SHARDS_VARIABLE)
    defaults = {"dupe_factor": DUPE_FACTORS[given.get("samples", "pairs")]}
    try:
        stage = PrepareStage(**{**defaults, **published_settings(recipe), **given, "corpora": corpora})
    except ValidationError as error:
        raise _refused(_STAGE.explain(item) for item in single_errors(error)) from error
    written = stage.model_copy(update={"corpora": corpora or None})
    if problems := list(OF_SECTIONS.problems(written, ("prepare",))):
        raise _refused(
            _STAGE.explain_rule(problem, problem.path.removeprefix("prepare.")).replace("corpora", "--corpus", 1)
            for problem in problems
        )
    return stage


def _refused(problems: Iterator[str]) -> InputError:
    return InputError("build: wrong options\n" + "\n".join(f"  {line}" for line in problems))


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
    recipe = _STAGE.given(arguments).get("recipe")
    if recipe is None:
        return []
    own = read_number(environment, LENGTH_VARIABLE) if recipe == "mlperf" else None
    if own is not None and own <= SPECIAL_TOKENS:
        raise InputError(f"{LENGTH_VARIABLE}: got {own} in the environment; allowed: more than {SPECIAL_TOKENS} tokens")
    return [(length, predictions_of_recipe(recipe, length)) for length in ((own,) if own else PUBLISHED_LENGTHS)]
