"""``bert-data verify``: whether every row of every shard is sound."""

from __future__ import annotations

import argparse
from typing import Any

from bert_trainer.dataset.commands.arguments import (
    add_max_unknown_share,
    add_shards,
    num_bytes,
    num_processes,
    shard_files,
)
from bert_trainer.dataset.commands.stop_signals import StopSignals
from bert_trainer.dataset.commands.terminal import ProgressBar, print_line, print_lines
from bert_trainer.dataset.quality.inspection import find_vocabulary
from bert_trainer.dataset.quality.verification import verify as verify_shards
from bert_trainer.errors import EXIT_FAILED


def add_command(commands: Any) -> None:
    """Add the verb and its arguments."""
    command = commands.add_parser("verify", help="check every row of every shard")
    command.set_defaults(command=verify)
    command.description = (
        "Check every row of every shard, that the files of a folder fit together, and that they are those that "
        "dataset.json names. The exit code is 1 where anything is wrong."
    )
    add_shards(command)
    add_max_unknown_share(command)


def verify(arguments: argparse.Namespace) -> int:
    """Check all shards and print what is wrong with each; 1 where anything is."""
    files = shard_files(arguments)
    num_bad = num_warned = 0
    with StopSignals("nothing was changed") as stop, ProgressBar() as bar:
        bar.begin("verify", num_bytes(files), unit="MB of shards")
        verdicts = verify_shards(
            files,
            (lambda _: arguments.vocabulary) if arguments.vocabulary else find_vocabulary,
            num_processes=num_processes(arguments, files),
            max_unknown_share=arguments.max_unknown_share,
            check=stop.check,
        )
        for verdict in verdicts:
            bar.advance(verdict.num_bytes)
            if verdict.problems:
                num_bad += 1
                print_line(f"BAD {verdict.path}")
                print_lines("    " + problem.replace("\n", "\n    ") for problem in verdict.problems)
            if verdict.warnings:
                num_warned += 1
                print_line(f"WARNING {verdict.path}")
                print_lines(f"    {warning}" for warning in verdict.warnings)
    warned = f", {num_warned} with a warning" if num_warned else ""
    print_line(f"{len(files)} shard(s) checked, {num_bad or 'nothing'} bad{warned}")
    return EXIT_FAILED if num_bad else 0
