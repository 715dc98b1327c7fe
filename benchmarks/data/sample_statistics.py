"""A million samples against what is published about them: ``python benchmarks/data/sample_statistics.py DATASET``.

DATASET: made by ``bert-data build``; by default one is built of generated English for each of the lengths 128 and 512,
with ``--samples`` or more. ``bert_trainer.dataset.quality.published_rates`` says what is compared, and with what;
``bert-data inspect --published`` prints the same of any shards. The exit code is 1 where a rate that does not depend on
the corpus is more than five standard errors off.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from growing_text import base_documents, write_growing_text

from bert_job.run_config import DatasetConfig
from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.dataset.commands.terminal import ProgressBar
from bert_trainer.dataset.quality.inspection import (
    CountTask,
    Group,
    Groups,
    count_files,
    find_shards,
    find_vocabulary,
)
from bert_trainer.dataset.quality.published_rates import describe_rates, published_rates
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, read_vocabulary
from bert_trainer.dataset.workers.pool import usable_cores


def main() -> int:
    """Print a table for each length; the exit code is 1 where a rate is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, nargs="?", help="default: one is built")
    parser.add_argument("--samples", type=int, default=1_000_000, help="of each length at least (%(default)s)")
    parser.add_argument("--processes", type=int, default=usable_cores(), help="(%(default)s)")
    arguments = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        roots = [arguments.dataset] if arguments.dataset else _built(Path(name), arguments.samples, arguments.processes)
        for root in roots:
            path = find_vocabulary(find_shards(root)[0])
            if path is None:
                raise SystemExit(f"{root}: no vocab.txt beside or above the shards; mask rates need it")
            vocabulary = read_vocabulary(path)
            for group in _count(root, vocabulary, arguments.samples, arguments.processes):
                wrong += _print(group, vocabulary)
    print(f"sample-statistics: wrong_rates={wrong}")
    return int(wrong > 0)


def _built(folder: Path, samples: int, processes: int) -> Iterator[Path]:
    """Build a dataset for each length, one after the other: the longer one needs three times the text."""
    for length, bytes_per_sample in (((128, 20), 90), ((512, 80), 250)):
        text, root = folder / "text.txt", folder / f"data{length[0]}"
        write_growing_text(text, samples * bytes_per_sample / 1e6, base_documents())
        stage = PrepareStage(text=str(text), num_processes=processes)
        with ProgressBar(text.stat().st_size) as bar:
            build_dataset(stage, DatasetConfig(folder=str(root)), [length], bar)
        text.unlink()
        yield root


def _count(root: Path, vocabulary: Vocabulary, samples: int, processes: int) -> list[Group]:
    files = [file for file in find_shards(root) if "held_out" not in file.name]
    tasks = [CountTask(file, vocabulary.size, vocabulary.mask_id) for file in files]
    groups = Groups()
    with ProgressBar() as bar:
        bar.begin("count", sum(file.stat().st_size for file in files), unit="MB of shards")
        for file in count_files(tasks, num_processes=processes):
            bar.advance(file.num_bytes)
            groups.add(file)
    small = [group for group in groups.all() if sum(group.rows) < samples]
    for group in small:
        print(f"{group.name}: {sum(group.rows):,} samples only", flush=True)
    return groups.all()


def _print(group: Group, vocabulary: Vocabulary) -> int:
    counted = group.statistics
    assert counted is not None, "a training shard has samples"
    rates = published_rates(counted, vocabulary.size)
    print(f"\n{group.folder.name}: {counted.rows:,} samples, {counted.num_predictions:,} predictions")
    print("\n".join(describe_rates(rates)), flush=True)
    return sum(rate.is_wrong for rate in rates)


if __name__ == "__main__":
    sys.exit(main())
