"""``bert-data inspect`` and ``bert-data verify``: arguments, progress bars and what is printed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from bert_trainer.dataset.commands.convert import OpenStop
from bert_trainer.dataset.commands.progress_bar import ProgressBar
from bert_trainer.dataset.quality.inspection import (
    CountTask,
    Group,
    Groups,
    count_files,
    describe_datasets,
    describe_group,
    find_shards,
    find_vocabulary,
    group_document,
    sample_texts,
)
from bert_trainer.dataset.quality.plot import plot_groups
from bert_trainer.dataset.quality.published_rates import describe_rates, published_rates
from bert_trainer.dataset.quality.verification import verify
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, read_vocabulary
from bert_trainer.dataset.workers.pool import usable_cores
from bert_trainer.errors import EXIT_FAILED

_USUAL_ENTRIES = 30522
"""Of BERT's vocabulary, where none is at hand; it decides how often a random token is the right one."""
_BYTES_PER_PROCESS = 16_000_000
"""Of files: with less for each of them, processes take longer to start than to work."""


def add_commands(commands: Any, open_stop: OpenStop) -> None:
    """Add both commands. open_stop: catches signals."""
    command = commands.add_parser("inspect", help="show samples and statistics of shards")
    command.description = (
        "Count what shards of any layout hold, together for each folder and split: padding, lengths, predictions, "
        "masks, pairs, duplicates. Then show some samples of the first file."
    )
    command.set_defaults(command=lambda arguments: _inspect(arguments, open_stop))
    _add_common(command)
    command.add_argument("--samples", type=int, default=2, metavar="N", help="shown of each folder (%(default)s)")
    command.add_argument("--each", action="store_true", help="count each file for itself")
    command.add_argument("--published", action="store_true", help="compare with the published rates of BERT's samples")
    command.add_argument("--json", action="store_true", help="print one JSON document and no samples")
    command.add_argument("--plot", type=Path, metavar="FILE", help="draw the counts, too: .png, .svg, .pdf")
    command = commands.add_parser("verify", help="check every row of every shard")
    command.description = (
        "Check every row of every shard, that the files of a folder fit together, and that they are those that "
        "dataset.json names. The exit code is 1 where anything is wrong."
    )
    command.set_defaults(command=lambda arguments: _verify(arguments, open_stop))
    _add_common(command)


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="shards, folders of shards, or datasets")
    command.add_argument("--vocabulary", type=Path, help="default: vocab.txt of the dataset, if there is one")
    command.add_argument("--processes", type=int, metavar="N", help="default: one per core, fewer for little data")


def _inspect(arguments: argparse.Namespace, open_stop: OpenStop) -> int:
    files = _files(arguments.paths)
    vocabularies = _vocabularies(files, arguments.vocabulary)
    tasks = [_count_task(file, vocabularies[file]) for file in files]
    groups, each = Groups(), []
    with open_stop() as stop, ProgressBar() as bar:
        bar.begin("inspect", _num_bytes(files), unit="MB of shards")
        for file in count_files(tasks, num_processes=_num_processes(arguments, files), check=stop.check):
            bar.advance(file.num_bytes)
            groups.add(file)
            if arguments.each:
                alone = Groups()
                alone.add(file)
                each += alone.all()
    if arguments.plot:
        plot_groups([group for group in groups.all() if group.statistics], arguments.plot)
    shown = each if arguments.each else groups.all()
    if arguments.json:
        _say(json.dumps({"groups": [group_document(group) for group in shown]}))
        return 0
    _say_all(describe_datasets(group.folder for group in shown))
    for group in shown:
        _say_all(describe_group(group))
        if arguments.published and group.statistics and group.statistics.num_predictions:
            size = _vocabulary_size(group, vocabularies)
            _say_all(["  published rates", *describe_rates(published_rates(group.statistics, size))])
        _say_all([*_samples(group, vocabularies, arguments.samples), ""])
    if arguments.plot:
        _say(f"drawn in {arguments.plot}")
    return 0


def _samples(group: Group, vocabularies: dict[Path, Vocabulary | None], num_shown: int) -> list[str]:
    file = next((file for file, rows in zip(group.files, group.rows, strict=True) if rows), None)
    return sample_texts(file, vocabularies[file], num_shown) if file and num_shown > 0 else []


def _vocabulary_size(group: Group, vocabularies: dict[Path, Vocabulary | None]) -> int:
    vocabulary = vocabularies[group.files[0]]
    return vocabulary.size if vocabulary else _USUAL_ENTRIES


def _verify(arguments: argparse.Namespace, open_stop: OpenStop) -> int:
    files = _files(arguments.paths)
    num_bad = num_warned = 0
    with open_stop() as stop, ProgressBar() as bar:
        bar.begin("verify", _num_bytes(files), unit="MB of shards")
        verdicts = verify(
            files,
            (lambda _: arguments.vocabulary) if arguments.vocabulary else find_vocabulary,
            num_processes=_num_processes(arguments, files),
            check=stop.check,
        )
        for verdict in verdicts:
            bar.advance(verdict.num_bytes)
            if verdict.problems:
                num_bad += 1
                _say(f"BAD {verdict.path}")
                _say_all("    " + problem.replace("\n", "\n    ") for problem in verdict.problems)
            if verdict.warnings:
                num_warned += 1
                _say(f"WARNING {verdict.path}")
                _say_all(f"    {warning}" for warning in verdict.warnings)
    warned = f", {num_warned} with a warning" if num_warned else ""
    _say(f"{len(files)} shard(s) checked, {num_bad or 'nothing'} bad{warned}")
    return EXIT_FAILED if num_bad else 0


def _files(paths: Sequence[Path]) -> list[Path]:
    return list(dict.fromkeys(file for path in paths for file in find_shards(path)))


def _vocabularies(files: Sequence[Path], given: Path | None) -> dict[Path, Vocabulary | None]:
    """Return the vocabulary of every file; each is read once."""
    read = cache(read_vocabulary)
    paths = {file: given or find_vocabulary(file) for file in files}
    return {file: read(path) if path else None for file, path in paths.items()}


def _count_task(file: Path, vocabulary: Vocabulary | None) -> CountTask:
    if vocabulary is None:
        return CountTask(file, None, None, None)
    return CountTask(file, vocabulary.size, vocabulary.mask_id, vocabulary.unk_id)


def _num_processes(arguments: argparse.Namespace, files: Sequence[Path]) -> int:
    useful = min(len(files), _num_bytes(files) // _BYTES_PER_PROCESS)
    return int(arguments.processes or max(1, min(usable_cores(), useful)))


def _num_bytes(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _say_all(lines: Any) -> None:
    for line in lines:
        _say(line)


def _say(text: str) -> None:
    print(text, file=sys.stdout, flush=True)  # noqa: T201
