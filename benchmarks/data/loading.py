"""Samples per second from shards into training batches with one worker, for each layout and length.

The last line is one JSON object. Files lie in the page cache, so this is the cost of processing, not of a disk;
for the gzip layout the rate at which its bytes inflate is named, which bounds it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np

from bert_trainer.data import SampleOrder, StageReader
from bert_trainer.dataset.ragged import RaggedSamples
from bert_trainer.dataset.shards import LAYOUTS, ShardFolder, write_shard

LENGTHS = ((128, 20, 32768), (512, 80, 8192))
BATCH = 256
ENTRIES = 30522


def draw_samples(rows: int, sequence_length: int, max_predictions: int) -> RaggedSamples:
    """Draw rows with the padding of English text (17 % at 128, 48 % at 512) and ids of Zipf's frequencies."""
    rng = np.random.default_rng(1)
    full = 0.7 if sequence_length == 128 else 0.23
    counts = np.where(rng.random(rows) < full, sequence_length, rng.integers(8, sequence_length, rows))
    total = int(counts.sum())
    predictions = np.minimum(np.rint(counts * 0.15).astype(np.int64), max_predictions)
    row_of = np.repeat(np.arange(rows), predictions)
    ranks = np.arange(len(row_of)) - np.repeat(np.cumsum(predictions) - predictions, predictions)
    # Evenly spread positions are as large and as many as drawn ones.
    positions = 1 + ranks * (counts[row_of] - 2) // predictions[row_of]
    tokens = (ENTRIES ** rng.random(total)).astype(np.uint16)
    labels = (ENTRIES ** rng.random(len(row_of))).astype(np.uint16)
    return RaggedSamples(tokens, counts, counts // 2, rng.integers(0, 2, rows, np.int8), predictions,
                         positions.astype(np.uint16), labels)  # fmt: skip


def measure(folder: Path, length: int, predictions: int) -> float:
    """Return samples per second of one pass over a folder, reading included."""
    shards = ShardFolder.open(
        folder, split="training", sequence_length=length, max_predictions=predictions, vocabulary=None
    )
    order = SampleOrder(shards.rows, seed=1)
    steps = shards.num_samples // BATCH
    reader = StageReader(shards, order, global_batch_size=BATCH, micro_batch_size=BATCH, rank=0, world_size=1,
                         first_step=0, last_step=steps)  # fmt: skip
    started_at_s = time.perf_counter()
    for step in range(steps):
        reader.read_step(step)
    return steps * BATCH / (time.perf_counter() - started_at_s)


def inflate_rate(samples: RaggedSamples, length: int) -> float:
    """Return the bytes per second of zlib on padded token ids, on this core."""
    raw = samples.take(slice(0, 4096)).to_padded(length, 80).input_ids.tobytes()
    packed = zlib.compress(raw, 4)
    started_at_s = time.perf_counter()
    zlib.decompress(packed)
    return len(raw) / (time.perf_counter() - started_at_s)


def main() -> int:
    """Measure every layout, best of three passes; print a table and one line of JSON."""
    figures: dict[str, float] = {}
    for length, predictions, rows in LENGTHS:
        samples = draw_samples(rows, length, predictions)
        for layout in LAYOUTS:
            with tempfile.TemporaryDirectory() as name:
                path = Path(name) / "training_0.hdf5"
                write_shard(path, samples, vocabulary_sha256=None, generator_version=None, layout=layout,
                            shape=(length, predictions))  # fmt: skip
                rate = max(measure(Path(name), length, predictions) for _ in range(3))
                size = path.stat().st_size / rows
            figures[f"{layout}_{length}"] = round(rate)
            print(f"{layout:16s} {length:4d} {rate:10,.0f} samples/s {size:8.0f} bytes/sample", flush=True)
        figures[f"inflate_mb_per_s_{length}"] = round(inflate_rate(samples, length) / 1e6)
        print(f"gzip inflates {figures[f'inflate_mb_per_s_{length}']:.0f} MB/s", flush=True)
    figures["load_samples_per_s"] = figures["compact_128"]
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
