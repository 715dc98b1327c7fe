"""A million samples against what is published about them: ``python benchmarks/data/sample_statistics.py DATASET``.

DATASET: made by ``bert-data build``; by default one is built of generated English at lengths 128 and 512. Published
are the rates of masking and of random next sentences (Devlin et al. 2019), and, for English Wikipedia, the lengths of
rows (Graphcore's histogram at 512 tokens): those depend on how long documents are, so they are shown beside ours.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from growing_text import base_documents, write_growing_text
from numpy.typing import NDArray

from bert_trainer.config import DatasetConfig, PrepareStage
from bert_trainer.dataset.build import build_dataset
from bert_trainer.dataset.record import read_record
from bert_trainer.dataset.shards import read_shard
from bert_trainer.dataset.wordpiece import read_vocabulary

PUBLISHED_PADDING = {128: "17 %", 512: "48 %"}
PUBLISHED_FULL = {512: "23.4 %"}


@dataclass
class Counts:
    """What is counted over the samples of one length."""

    rows: int = 0
    tokens: int = 0
    predictions: int = 0
    masks: int = 0
    kept: int = 0
    random_next: int = 0
    wrong_counts: int = 0
    lengths: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def add(self, path: Path, mask_id: int, most: int) -> None:
        """Count one shard."""
        samples = read_shard(path)
        lengths = samples.input_mask.sum(axis=1, dtype=np.int64)
        places = samples.masked_lm_positions > 0
        shown = np.take_along_axis(samples.input_ids, samples.masked_lm_positions, axis=1)[places]
        self.rows += len(samples)
        self.tokens += int(lengths.sum())
        self.predictions += int(places.sum())
        self.masks += int((shown == mask_id).sum())
        self.kept += int((shown == samples.masked_lm_ids[places]).sum())
        self.random_next += int(samples.next_sentence_labels.sum())
        self.wrong_counts += int((places.sum(axis=1) != np.clip(np.rint(0.15 * lengths), 1, most)).sum())
        counts = np.bincount(lengths, minlength=samples.input_ids.shape[1] + 1)
        self.lengths = counts if not len(self.lengths) else self.lengths + counts


class _Silent:
    def report(self, event: str, **fields: str | int | float | None) -> None:
        """Say nothing."""


def main() -> None:
    """Print a table for each length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", type=Path, nargs="?")
    parser.add_argument("--text-mb", type=float, default=80.0, help="to build from, without a dataset (%(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = arguments.dataset or _build(Path(folder), arguments.text_mb)
        record = read_record(root)
        assert record is not None, f"{root} has no dataset.json"
        vocabulary = read_vocabulary(root / "vocab.txt")
        for length in record.lengths:
            counts = Counts()
            for name in length.training:
                counts.add(root / length.folder / name, vocabulary.mask_id, length.max_predictions)
            _print(length.sequence_length, counts, vocabulary.size)


def _build(folder: Path, megabytes: float) -> Path:
    write_growing_text(folder / "text.txt", megabytes, base_documents())
    stage = PrepareStage(text=str(folder / "text.txt"))
    build_dataset(stage, DatasetConfig(folder=str(folder / "data")), [(128, 20), (512, 80)], _Silent())
    return folder / "data"


def _print(sequence_length: int, counts: Counts, vocabulary_size: int) -> None:
    full = int(counts.lengths[-1])
    by_chance = 0.1 / vocabulary_size
    lines = [
        ("samples", f"{counts.rows}", ""),
        ("predicted tokens", f"{counts.predictions / counts.tokens:.4f}", "0.15 of all, rounded for each row"),
        ("rows with another count", f"{counts.wrong_counts}", "0"),
        ("[MASK]", _share(counts.masks, counts.predictions), f"{0.8 + by_chance:.4f}"),
        ("unchanged", _share(counts.kept, counts.predictions), f"{0.1 + by_chance:.4f}"),
        ("random next", _share(counts.random_next, counts.rows), "0.5 and more: single sentences have no other"),
        ("full rows", _share(full, counts.rows), PUBLISHED_FULL.get(sequence_length, "")),
        (
            "padding",
            f"{1 - counts.tokens / counts.rows / sequence_length:.4f}",
            PUBLISHED_PADDING.get(sequence_length, ""),
        ),
    ]
    print(f"length {sequence_length:<21} {'ours':<22} published")  # noqa: T201
    for name, ours, published in lines:
        print(f"  {name:<26} {ours:<22} {published}")  # noqa: T201


def _share(hits: int, total: int) -> str:
    share = hits / total
    return f"{share:.4f} +- {(share * (1 - share) / total) ** 0.5:.4f}"


if __name__ == "__main__":
    main()
