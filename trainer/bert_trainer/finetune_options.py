"""What is wrong with a run configuration, or with the files that it names, by options of ``bert-train finetune``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from bert_trainer.errors import InputError

# Settings whose option is not their own name with hyphens.
_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "data.columns": "the options for columns",
        "data.folder": "--data",
        "data.format": "--data-format",
        "global_batch_size": "--batch-size",
        "optimizer.bias_correction": "--no-bias-correction",
        "optimizer.name": "--optimizer",
        "schedule.warmup.proportion": "--warmup-proportion",
        "schedule.warmup.steps": "--warmup-steps",
        "synchronize_gradients": "--no-synchronize-gradients",
        "world.hosts": "--hosts",
        "world.ranks": "ranks of the launcher",
    }
)
_SETTING = re.compile(r"  (?:stages\.0\.(?:finetune\.)?|(?=(?:optimizer|world)\.|seed:))([\w.]+)(?=: got )")
"""At the start of a problem's line."""
_IN_A_HINT = re.compile(r"(?<![\w./-])data\.[a-z]+(?:\.[a-z_]+)?(?![\w./])")
_IN_A_MESSAGE = re.compile(r"(?<![\w./-])data\.(?:columns|labels)(?=[:,])")
"""Narrower: files may be called ``data.train``."""
_COUNT = re.compile(r"\d+(?= problem\(s\)$)")


def settings_as_options(error: InputError) -> InputError:
    """Return what ``parse_run_config`` has raised, with options for paths of the document."""
    first, *lines = error.message.split("\n")
    named = [_SETTING.sub(lambda found: f"  {option_of(found[1])}", line) for line in lines]
    named = [line.replace("less than sequence_length", "less than --sequence-length") for line in named]
    # The optimizer stands in the document twice: for the run, and for the stage.
    unlike = list(dict.fromkeys(named))
    return InputError("\n".join([_COUNT.sub(str(len(unlike)), first), *unlike]), hint=error.hint)


def files_as_options(error: InputError) -> InputError:
    """Return what ``read_examples`` has raised, with options for fields of ``data``."""
    message = _IN_A_MESSAGE.sub(lambda found: option_of(found[0]), error.message)
    return InputError(message, hint=error.hint and _IN_A_HINT.sub(lambda found: option_of(found[0]), error.hint))


def option_of(setting: str) -> str:
    """Return the option of a setting of the stage, given by its path."""
    name = setting.removeprefix("stages.0.")
    if name in _OPTIONS:
        return _OPTIONS[name]
    last = name.rpartition(".")[2]
    # One of the seeds, by its number.
    return "--seed" if last.isdecimal() else "--" + last.replace("_", "-")
