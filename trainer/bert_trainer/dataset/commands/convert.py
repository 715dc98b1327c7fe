"""``bert-data convert`` and ``bert-data chop``: arguments, progress bar and summary."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from bert_trainer.dataset.build.conversion import Rewritten, chop, convert
from bert_trainer.dataset.commands.build_options import SHARDS_VARIABLE, read_number
from bert_trainer.dataset.commands.progress_bar import ProgressBar
from bert_trainer.dataset.shards import LAYOUTS

_SHARDS = 2048


class Stop(Protocol):
    """Remembers whether a signal asked for a stop."""

    def check(self) -> None:
        """Raise Stopped where one did."""


OpenStop = Callable[[], AbstractContextManager[Stop]]


def add_commands(commands: Any, open_stop: OpenStop, length: Callable[[str], tuple[int, int]]) -> None:
    """Add both commands. open_stop: catches signals. length: parses T:P."""
    command = commands.add_parser("convert", help="write shards in another layout")
    command.description = "Write every shard of a file, folder or dataset in another layout, under the same names."
    command.set_defaults(command=lambda arguments: _convert(arguments, open_stop))
    command.add_argument("source", type=Path, metavar="FROM", help="a shard, a folder of shards, or a dataset")
    command.add_argument("target", type=Path, metavar="TO", help="folder to write into")
    command.add_argument("--layout", required=True, choices=LAYOUTS, help="layout of the new files")
    _add_common(command, length)
    command = commands.add_parser("chop", help="cut shards into another number of equal ones")
    command.description = (
        "Cut the training shards of a folder into N whose sizes differ by at most one sample, in the same order. "
        "Files that an earlier run finished are kept."
    )
    command.set_defaults(command=lambda arguments: _chop(arguments, open_stop))
    command.add_argument("source", type=Path, metavar="IN", help="a folder of shards")
    command.add_argument("target", type=Path, metavar="OUT", help="folder to write into")
    command.add_argument(
        "--shards",
        type=int,
        metavar="N",
        help=f"files to make; default: {SHARDS_VARIABLE} of the environment, else 2048",
    )
    command.add_argument("--layout", choices=LAYOUTS, help="layout of the new files; default: the old ones'")
    _add_common(command, length)


def _add_common(command: argparse.ArgumentParser, length: Callable[[str], tuple[int, int]]) -> None:
    command.add_argument("--length", type=length, metavar="T:P", help="for files that do not state it, as 512:76")
    command.add_argument("--processes", type=int, metavar="N", help="default: one per core")


def _convert(arguments: argparse.Namespace, open_stop: OpenStop) -> int:
    with open_stop() as stop, ProgressBar() as bar:
        done = convert(
            arguments.source,
            arguments.target,
            arguments.layout,
            shape=arguments.length,
            num_processes=arguments.processes,
            reporter=bar,
            check=stop.check,
        )
    return _summary(arguments.target, done)


def _chop(arguments: argparse.Namespace, open_stop: OpenStop) -> int:
    with open_stop() as stop, ProgressBar() as bar:
        done = chop(
            arguments.source,
            arguments.target,
            _num_shards(arguments.shards),
            layout=arguments.layout,
            shape=arguments.length,
            num_processes=arguments.processes,
            reporter=bar,
            check=stop.check,
        )
    return _summary(arguments.target, done)


def _num_shards(given: int | None) -> int:
    return given if given is not None else read_number(os.environ, SHARDS_VARIABLE) or _SHARDS


def _summary(target: Path, done: Rewritten) -> int:
    kept = f", {done.kept} of them made before" if done.kept else ""
    sys.stdout.write(f"{target}: {done.samples} samples in {done.files} shard(s){kept}\n")
    sys.stdout.flush()
    return 0
