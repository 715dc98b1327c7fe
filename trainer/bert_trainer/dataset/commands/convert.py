"""``bert-data convert``: shards in another layout."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bert_trainer.dataset.build.conversion import ConversionResult
from bert_trainer.dataset.build.conversion import convert as convert_shards
from bert_trainer.dataset.commands.arguments import parse_length
from bert_trainer.dataset.commands.stop_signals import StopSignals
from bert_trainer.dataset.commands.terminal import ProgressBar, print_line
from bert_trainer.dataset.shards import WRITTEN_LAYOUTS

IF_STOPPED = "finished shards are kept, the same command resumes from them"


def add_command(commands: Any) -> None:
    """Add the verb and its arguments."""
    command = commands.add_parser("convert", help="write shards in another layout")
    command.set_defaults(command=convert)
    command.description = "Write every shard of a file, folder or dataset in another layout, under the same names."
    command.add_argument("source", type=Path, metavar="FROM", help="a shard, a folder of shards, or a dataset")
    command.add_argument("target", type=Path, metavar="TO", help="folder to write into")
    command.add_argument("--layout", required=True, choices=WRITTEN_LAYOUTS, help="layout of the new files")
    add_rewriting_options(command)


def add_rewriting_options(command: argparse.ArgumentParser) -> None:
    """Add what ``convert`` and ``chop`` have in common."""
    command.add_argument("--length", type=parse_length, metavar="T:P", help="for files that do not state it, as 512:76")
    command.add_argument("--processes", type=int, metavar="N", help="default: one per core")


def convert(arguments: argparse.Namespace) -> int:
    """Write the shards and print how many there are."""
    with StopSignals(IF_STOPPED) as stop, ProgressBar() as bar:
        written = convert_shards(
            arguments.source,
            arguments.target,
            arguments.layout,
            shape=arguments.length,
            num_processes=arguments.processes,
            reporter=bar,
            check=stop.check,
        )
    print_line(describe_written(arguments.target, written))
    return 0


def describe_written(target: Path, written: ConversionResult) -> str:
    """Return what ``convert`` and ``chop`` print at their ends."""
    kept = f", {written.kept} of them made before" if written.kept else ""
    return f"{target}: {written.samples} samples in {written.files} shard(s){kept}"
