"""Data loader throughput: samples per second from shards to training batches, one worker, for each layout and length.

``dynamic_cost_*`` is the time of a pass that draws masks over that of one that reads them, both of the compact layout:
the median of rounds in which they alternate, in processor time. The last line is one JSON object. Files are in the page
cache, so this is the cost of processing, not of a disk. For the gzip layout the rate at which zlib alone inflates the
same chunks on the same core is an upper bound for any reader: ``*_bound`` is that rate in samples, ``*_of_bound`` the
share of it that is reached.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import zlib
from pathlib import Path
from statistics import median

import h5py
import numpy as np

from bert_trainer.dataset.sampling.dynamic_masking import DynamicMasking
from bert_trainer.dataset.sampling.masking import MaskingRule
from bert_trainer.dataset.shards import LAYOUTS, ShardFolder
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.training.data_loader import SampleOrder, StageReader

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/support"))
from any_layout import shard_name, write_shard  # noqa: E402

LENGTHS = ((128, 20, 32768), (512, 80, 8192))
BATCH = 256
ENTRIES = 30522
MASKING_ROUNDS = 5


def draw_samples(rows: int, sequence_length: int, max_predictions: int) -> RaggedSamples:
    """Draw rows with the padding of English text (17 % at 128, 48 % at 512) and ids of Zipf's frequencies."""
    rng = np.random.default_rng(1)
    full = 0.7 if sequence_length == 128 else 0.23
    counts = np.where(rng.random(rows) < full, sequence_length, rng.integers(8, sequence_length, rows))
    total = int(counts.sum())
    predictions = np.minimum(np.rint(counts * 0.15).astype(np.int64), max_predictions)
    row_of = np.repeat(np.arange(rows), predictions)
    ranks = np.arange(len(row_of)) - np.repeat(np.cumsum(predictions) - predictions, predictions)
    # Evenly spaced positions: the same number and size as random ones, without drawing them.
    positions = 1 + ranks * (counts[row_of] - 2) // predictions[row_of]
    tokens = (ENTRIES ** rng.random(total)).astype(np.uint16)
    labels = (ENTRIES ** rng.random(len(row_of))).astype(np.uint16)
    return RaggedSamples(tokens, counts, counts // 2, rng.integers(0, 2, rows, np.int8), predictions,
                         positions.astype(np.uint16), labels)  # fmt: skip


def measure(folder: Path, length: int, predictions: int, masking: DynamicMasking | None = None) -> tuple[float, float]:
    """Return samples per second of one pass over a folder, reading included, and of processor time."""
    shards = ShardFolder.open(
        folder, split="training", sequence_length=length, max_predictions=predictions, vocabulary=None
    )
    order = SampleOrder(shards.rows, seed=1)
    steps = shards.num_samples // BATCH
    reader = StageReader(shards, order, global_batch_size=BATCH, micro_batch_size=BATCH, rank=0, world_size=1,
                         first_step=0, last_step=steps, masking=masking)  # fmt: skip
    started_at_s, cpu_s = time.perf_counter(), time.process_time()
    for step in range(steps):
        reader.read_step(step)
    num_samples = steps * BATCH
    return num_samples / (time.perf_counter() - started_at_s), num_samples / (time.process_time() - cpu_s)


def measure_masking(folder: Path, length: int, predictions: int) -> dict[str, float]:
    """Return how many times as long a pass takes that draws masks, for tokens and whole words."""
    maskings: dict[str, DynamicMasking | None] = {"read": None}
    for name, continuations in (("tokens", None), ("words", np.arange(ENTRIES) % 4 == 3)):
        rule = MaskingRule(probability=0.15, max_predictions=predictions, vocabulary_size=ENTRIES, cls_id=101,
                           sep_id=102, mask_id=103, unk_id=100, continuations=continuations)  # fmt: skip
        maskings[name] = DynamicMasking(seed=1, rule=rule)
    rates: dict[str, list[float]] = {name: [] for name in maskings}
    for _ in range(MASKING_ROUNDS):
        for name, masking in maskings.items():
            rates[name].append(measure(folder, length, predictions, masking)[1])
    costs = {name: [a / b for a, b in zip(rates["read"], rates[name], strict=True)] for name in ("tokens", "words")}
    for name, values in costs.items():
        print(
            f"{'  dynamic, ' + name:16s} {length:4d} {median(rates[name]):10,.0f} samples/s of processor time; "
            f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f}) times as long as reading masks",
            flush=True,
        )
    return {
        f"dynamic_cost_{length}": median(costs["tokens"]),
        f"dynamic_words_cost_{length}": median(costs["words"]),
        f"dynamic_samples_per_s_{length}": median(rates["tokens"]),
    }


def inflate_rate(path: Path) -> tuple[float, float]:
    """Return samples and bytes of padded rows per second that zlib inflates of a gzip file's chunks, on this core."""
    packed: list[bytes] = []
    with h5py.File(path) as file:
        rows = len(file["input_ids"])
        for dataset in file.values():
            chunks = (dataset.id.get_chunk_info(number) for number in range(dataset.id.get_num_chunks()))
            packed += [dataset.id.read_direct_chunk(chunk.chunk_offset)[1] for chunk in chunks]
    started_at_s = time.perf_counter()
    size = sum(len(zlib.decompress(chunk)) for chunk in packed)
    elapsed_s = time.perf_counter() - started_at_s
    return rows / elapsed_s, size / elapsed_s


def main() -> int:
    """Measure every layout, best of three passes; print a table and one line of JSON."""
    figures: dict[str, float] = {}
    for length, predictions, rows in LENGTHS:
        samples = draw_samples(rows, length, predictions)
        for layout in LAYOUTS:
            with tempfile.TemporaryDirectory() as name:
                path = Path(name) / shard_name("training_0.hdf5", layout)
                write_shard(path, samples, vocabulary_sha256=None, generator_version=None, layout=layout,
                            shape=(length, predictions))  # fmt: skip
                rates, bounds = [], []
                for _ in range(3):  # alternating, so that other work on the machine disturbs both alike
                    rates.append(measure(Path(name), length, predictions)[0])
                    bounds += [inflate_rate(path)] if layout == "nvidia" else []
                rate = max(rates)
                size = path.stat().st_size / rows
                masking = measure_masking(Path(name), length, predictions) if layout == "compact" else {}
            figures |= {f"{layout}_{length}": round(rate), **masking}
            print(f"{layout:16s} {length:4d} {rate:10,.0f} samples/s {size:8.0f} bytes/sample", flush=True)
            if bounds:
                bound, num_bytes = max(bounds)
                figures[f"nvidia_{length}_bound"], figures[f"inflate_mb_per_s_{length}"] = round(bound), num_bytes / 1e6
                figures[f"nvidia_{length}_of_bound"] = rate / bound
                reached = f"{num_bytes / 1e6:8,.0f} MB/s of padded rows; {rate / bound:.2f} of it reached"
                print(f"{'  zlib alone':16s} {length:4d} {bound:10,.0f} samples/s {reached}", flush=True)
    figures["load_samples_per_s"] = figures["compact_128"]
    print(json.dumps({name: float(f"{value:.4g}") for name, value in figures.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
