"""An external shuffle: samples in a given order, in bounded memory.

Each sample comes with its position in the output. Samples are distributed to bucket files by ranges of positions; then
one bucket after the other is read, sorted and yielded. Disk: the samples once, without padding.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards import Totals
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.sample_buffer import load_one, save_array, save_samples
from bert_trainer.system.atomic_files import disk_errors

# Samples buffered before they are distributed: writing a few at a time to each bucket would be slow.
_ROWS_AT_ONCE = 1 << 14


class Shuffle:
    """Takes samples in any order and yields them by position. A context manager."""

    def __init__(self, folder: Path, *, num_rows: int, bucket_rows: int) -> None:
        """Plan the buckets.

        Args:
            folder: for scratch files; replaced, and removed at the end.
            num_rows: of all samples.
            bucket_rows: rows that are sorted in memory at a time.
        """
        self._folder, self._bucket_rows = folder, bucket_rows
        self._num_buckets = -(-num_rows // bucket_rows)
        self._waiting: list[tuple[NDArray[np.int64], RaggedSamples]] = []
        self._files: list[IO[bytes]] = []
        self.totals = Totals()
        """Totals of all samples so far."""

    def __enter__(self) -> Shuffle:
        """Create the scratch files."""
        with disk_errors(self._folder):
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
            self._files = [(self._folder / f"{number:05d}").open("w+b") for number in range(self._num_buckets)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the scratch files."""
        for file in self._files:
            # Closing flushes what a full disk could not take; by now nobody needs it.
            with suppress(OSError):
                file.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, positions: NDArray[np.int64], samples: RaggedSamples) -> None:
        """Take N samples. positions: (N,), their positions in the output, each once.

        Raises:
            TrainerError: the disk is full.
        """
        self._waiting.append((positions, samples))
        self.totals = self.totals + Totals.of(samples)
        if sum(len(positions) for positions, _ in self._waiting) >= _ROWS_AT_ONCE:
            self._distribute()

    def blocks(self) -> Iterator[RaggedSamples]:
        """Yield all samples in the order of their positions, a bucket at a time."""
        self._distribute()
        with disk_errors(self._folder):
            for file in self._files:
                file.flush()
        for file in self._files:
            parts = list(_read_bucket(file))
            positions = np.concatenate([positions for positions, _ in parts])
            together = RaggedSamples.concatenate([samples for _, samples in parts])
            del parts
            yield together.take(np.argsort(positions))

    def _distribute(self) -> None:
        if not self._waiting:
            return
        positions = np.concatenate([positions for positions, _ in self._waiting])
        samples = RaggedSamples.concatenate([samples for _, samples in self._waiting])
        self._waiting = []
        order = np.argsort(positions)
        bounds = np.searchsorted(positions[order] // self._bucket_rows, np.arange(self._num_buckets + 1))
        with disk_errors(self._folder):
            for file, start, end in zip(self._files, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
                if end > start:
                    save_array(file, positions[order[start:end]])
                    save_samples(file, samples.take(order[start:end]))


def _read_bucket(file: IO[bytes]) -> Iterator[tuple[NDArray[np.int64], RaggedSamples]]:
    """Yield the samples of a bucket file in the order of writing, each part after its positions."""
    end = file.seek(0, 2)
    file.seek(0)
    while file.tell() < end:
        positions: NDArray[np.int64] = np.load(file)
        yield positions, load_one(file)
