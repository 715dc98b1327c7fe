"""Samples in a given order, in bounded memory however many they are.

Each sample comes with its place among all of them. Samples are dealt out to files by ranges of places; then one range
after the other is read, sorted and handed on. Disk: the samples once, without padding.
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
from bert_trainer.dataset.shards.scratch import load_one, save_array, save_samples
from bert_trainer.system.atomic_files import disk_errors

_ROWS_AT_ONCE = 1 << 14
"""Samples that wait until they are dealt out: a few to a file would cost more time than they do."""


class Shuffle:
    """Takes samples in any order, then hands them out by their places. A context manager."""

    def __init__(self, folder: Path, *, num_rows: int, bucket_rows: int) -> None:
        """folder: for scratch files; replaced, and removed at the end. bucket_rows: sorted in memory at a time."""
        self._folder, self._bucket_rows = folder, bucket_rows
        self._num_buckets = -(-num_rows // bucket_rows)
        self._waiting: list[tuple[NDArray[np.int64], RaggedSamples]] = []
        self._files: list[IO[bytes]] = []
        self.totals = Totals()
        """Of all samples that were added."""

    def __enter__(self) -> Shuffle:
        """Make the scratch files."""
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
            # What a full disk has no room for is still waiting to be written, and of no use by now.
            with suppress(OSError):
                file.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, places: NDArray[np.int64], samples: RaggedSamples) -> None:
        """Take samples in. places: (N,), each once.

        Raises:
            TrainerError: the disk is full.
        """
        self._waiting.append((places, samples))
        self.totals = self.totals + Totals.of(samples)
        if sum(len(places) for places, _ in self._waiting) >= _ROWS_AT_ONCE:
            self._deal_out()

    def blocks(self) -> Iterator[RaggedSamples]:
        """Yield all samples in the order of their places, a range at a time."""
        self._deal_out()
        with disk_errors(self._folder):
            for file in self._files:
                file.flush()
        for file in self._files:
            parts = list(_parts(file))
            places = np.concatenate([places for places, _ in parts])
            together = RaggedSamples.concatenate([samples for _, samples in parts])
            del parts
            yield together.take(np.argsort(places))

    def _deal_out(self) -> None:
        if not self._waiting:
            return
        places = np.concatenate([places for places, _ in self._waiting])
        samples = RaggedSamples.concatenate([samples for _, samples in self._waiting])
        self._waiting = []
        order = np.argsort(places)
        bounds = np.searchsorted(places[order] // self._bucket_rows, np.arange(self._num_buckets + 1))
        with disk_errors(self._folder):
            for file, start, end in zip(self._files, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
                if end > start:
                    save_array(file, places[order[start:end]])
                    save_samples(file, samples.take(order[start:end]))


def _parts(file: IO[bytes]) -> Iterator[tuple[NDArray[np.int64], RaggedSamples]]:
    """Yield what was written to a file; its places come first."""
    end = file.seek(0, 2)
    file.seek(0)
    while file.tell() < end:
        places: NDArray[np.int64] = np.load(file)
        yield places, load_one(file)
