"""``bert-data eval``: MLPerf's selection of samples to evaluate on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bert_trainer.dataset.build.evaluation_set import MLPERF_SAMPLES, pick_evaluation_set
from bert_trainer.dataset.commands.arguments import parse_length
from bert_trainer.dataset.commands.convert import describe_written
from bert_trainer.dataset.commands.stop_signals import StopSignals
from bert_trainer.dataset.commands.terminal import ProgressBar, print_line
from bert_trainer.dataset.shards import WRITTEN_LAYOUTS


def add_command(commands: Any) -> None:
    """Add the verb and its arguments."""
    command = commands.add_parser("eval", help="pick samples to evaluate on, as MLPerf does")
    command.set_defaults(command=pick)
    command.description = (
        "Pick samples at equal steps from those of an evaluation text, by MLPerf's rule, and write them to one shard: "
        "of n samples, number i is the one at int(i * (n / N)). An evaluate stage reads the folder as its shards."
    )
    command.add_argument("source", type=Path, metavar="FROM", help="a shard or a folder of shards of the text")
    command.add_argument("target", type=Path, metavar="TO", help="folder to write into")
    command.add_argument(
        "--samples", type=int, default=MLPERF_SAMPLES, metavar="N", help="samples to pick (%(default)s, as MLPerf)"
    )
    command.add_argument(
        "--layout",
        choices=WRITTEN_LAYOUTS,
        help="layout of the new file; default: the old ones', compact where that is read alone",
    )
    command.add_argument("--length", type=parse_length, metavar="T:P", help="for files that do not state it, as 512:76")


def pick(arguments: argparse.Namespace) -> int:
    """Write the shard and print how many samples it has."""
    with StopSignals("nothing is kept, start again") as stop, ProgressBar() as bar:
        written = pick_evaluation_set(
            arguments.source,
            arguments.target,
            count=arguments.samples,
            layout=arguments.layout,
            shape=arguments.length,
            reporter=bar,
            check=stop.check,
        )
    print_line(describe_written(arguments.target, written))
    return 0
