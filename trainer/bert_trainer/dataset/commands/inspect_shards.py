"""``bert-data inspect``: samples and statistics of shards; named apart from the standard library's ``inspect``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from bert_trainer.dataset.commands.arguments import add_shards, num_bytes, num_processes, shard_files
from bert_trainer.dataset.commands.stop_signals import StopSignals
from bert_trainer.dataset.commands.terminal import ProgressBar, print_line, print_lines
from bert_trainer.dataset.quality.inspection import (
    CountTask,
    Group,
    Groups,
    count_files,
    describe_datasets,
    describe_group,
    find_vocabulary,
    group_document,
    sample_texts,
)
from bert_trainer.dataset.quality.plot import plot_groups
from bert_trainer.dataset.quality.published_rates import describe_rates, published_rates
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, read_vocabulary

_USUAL_ENTRIES = 30522
"""Of BERT's vocabulary, where none is at hand; it decides how often a random token is the right one."""


def add_command(commands: Any) -> None:
    """Add the verb and its arguments."""
    command = commands.add_parser("inspect", help="show samples and statistics of shards")
    command.set_defaults(command=inspect_shards)
    command.description = (
        "Count what shards of any layout hold, together for each folder and split: padding, lengths, predictions, "
        "masks, pairs, duplicates. Then show some samples of the first file."
    )
    add_shards(command)
    command.add_argument("--samples", type=int, default=2, metavar="N", help="shown of each folder (%(default)s)")
    command.add_argument("--each", action="store_true", help="count each file for itself")
    command.add_argument("--published", action="store_true", help="compare with the published rates of BERT's samples")
    command.add_argument("--json", action="store_true", help="print one JSON document and no samples")
    command.add_argument("--plot", type=Path, metavar="FILE", help="draw the counts, too: .png, .svg, .pdf")


def inspect_shards(arguments: argparse.Namespace) -> int:
    """Count all samples, then print the counts of each group and some samples."""
    files = shard_files(arguments)
    vocabularies = _vocabularies(files, arguments.vocabulary)
    tasks = [_count_task(file, vocabularies[file]) for file in files]
    groups, each = Groups(), []
    with StopSignals("nothing was changed") as stop, ProgressBar() as bar:
        bar.begin("inspect", num_bytes(files), unit="MB of shards")
        for file in count_files(tasks, num_processes=num_processes(arguments, files), check=stop.check):
            bar.advance(file.num_bytes)
            groups.add(file)
            if arguments.each:
                alone = Groups()
                alone.add(file)
                each += alone.all()
    # Before anything is printed: without matplotlib, or with a wrong suffix, it ends the command.
    if arguments.plot:
        plot_groups([group for group in groups.all() if group.statistics], arguments.plot)
    shown = each if arguments.each else groups.all()
    if arguments.json:
        print_line(json.dumps({"groups": [group_document(group) for group in shown]}))
        return 0
    print_lines(describe_datasets(group.folder for group in shown))
    for group in shown:
        print_lines(describe_group(group))
        if arguments.published and group.statistics and group.statistics.num_predictions:
            size = _vocabulary_size(group, vocabularies)
            print_lines(["  published rates", *describe_rates(published_rates(group.statistics, size))])
        print_lines([*_samples(group, vocabularies, arguments.samples), ""])
    if arguments.plot:
        print_line(f"drawn in {arguments.plot}")
    return 0


def _samples(group: Group, vocabularies: dict[Path, Vocabulary | None], num_shown: int) -> list[str]:
    file = next((file for file, rows in zip(group.files, group.rows, strict=True) if rows), None)
    return sample_texts(file, vocabularies[file], num_shown) if file and num_shown > 0 else []


def _vocabulary_size(group: Group, vocabularies: dict[Path, Vocabulary | None]) -> int:
    vocabulary = vocabularies[group.files[0]]
    return vocabulary.size if vocabulary else _USUAL_ENTRIES


def _vocabularies(files: Sequence[Path], given: Path | None) -> dict[Path, Vocabulary | None]:
    """Return the vocabulary of every file; each is read once, however many shards share it."""
    read = cache(read_vocabulary)
    paths = {file: given or find_vocabulary(file) for file in files}
    return {file: read(path) if path else None for file, path in paths.items()}


def _count_task(file: Path, vocabulary: Vocabulary | None) -> CountTask:
    if vocabulary is None:
        return CountTask(file, None, None, None)
    return CountTask(file, vocabulary.size, vocabulary.mask_id, vocabulary.unk_id)
