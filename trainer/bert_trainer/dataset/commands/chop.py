"""``bert-data chop``: shards cut into another number of equal ones."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from bert_trainer.dataset.build.conversion import chop as chop_shards
from bert_trainer.dataset.commands.arguments import SHARDS_VARIABLE, read_number
from bert_trainer.dataset.commands.convert import IF_STOPPED, add_rewriting_options, describe_written
from bert_trainer.dataset.commands.stop_signals import StopSignals
from bert_trainer.dataset.commands.terminal import ProgressBar, print_line
from bert_trainer.dataset.shards import WRITTEN_LAYOUTS

_SHARDS = 2048
"""As many as MLPerf's script makes."""


def add_command(commands: Any) -> None:
    """Add the verb and its arguments."""
    command = commands.add_parser("chop", help="cut shards into another number of equal ones")
    command.set_defaults(command=chop)
    command.description = (
        "Cut the training shards of a folder into N whose sizes differ by at most one sample, in the same order. "
        "Files that an earlier run finished are kept."
    )
    command.add_argument("source", type=Path, metavar="IN", help="a folder of shards")
    command.add_argument("target", type=Path, metavar="OUT", help="folder to write into")
    command.add_argument(
        "--shards",
        type=int,
        metavar="N",
        help=f"files to make; default: {SHARDS_VARIABLE} of the environment, else 2048",
    )
    command.add_argument(
        "--layout",
        choices=WRITTEN_LAYOUTS,
        help="layout of the new files; default: the old ones', compact where that is read alone",
    )
    add_rewriting_options(command)


def chop(arguments: argparse.Namespace) -> int:
    """Write the shards and print how many there are."""
    given = arguments.shards
    with StopSignals(IF_STOPPED) as stop, ProgressBar() as bar:
        written = chop_shards(
            arguments.source,
            arguments.target,
            # --shards 0 is a mistake to be reported, not an option that was left out.
            given if given is not None else read_number(os.environ, SHARDS_VARIABLE) or _SHARDS,
            layout=arguments.layout,
            shape=arguments.length,
            num_processes=arguments.processes,
            reporter=bar,
            check=stop.check,
        )
    print_line(describe_written(arguments.target, written))
    return 0
