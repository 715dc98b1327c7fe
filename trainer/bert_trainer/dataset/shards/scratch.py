"""Samples that wait for a file to be made of them: a few in memory, many in a scratch file without a name.

The operating system removes such a file with the process, however that ends.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.totals import Totals
from bert_trainer.system.atomic_files import disk_errors

IN_MEMORY_TOKENS = 12_000_000
"""Of all rows of a shard, padding counted: shards with more are shuffled on disk. In memory they take 90 MB."""

ONE_PASS_LAYOUTS = ("compact", "intel", "mlperf")
"""Layouts whose files, where they are large, are written with one pass over the rows; others take several."""

_FIELDS = tuple(field.name for field in fields(RaggedSamples))


class SampleScratch:
    """Takes blocks of samples, and hands them out again in the same order as often as wanted. A context manager."""

    def __init__(self, folder: Path, *, row_tokens: int | None, most_tokens: int) -> None:
        """folder: of the scratch file. row_tokens: of a row with its padding; None: the longest row's.

        most_tokens: that are kept in memory, padding counted; with more of them all go to the file.
        """
        self._folder, self._row_tokens, self._most_tokens = folder, row_tokens, most_tokens
        self._waiting: list[RaggedSamples] = []
        self._file: IO[bytes] | None = None
        self.totals = Totals()

    def __enter__(self) -> SampleScratch:
        """Return this; the file is made when it is needed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the file."""
        if self._file is not None:
            # What a full disk has no room for is still waiting to be written, and of no use by now.
            with suppress(OSError):
                self._file.close()

    @property
    def in_memory(self) -> bool:
        """Whether the samples are few."""
        return self._file is None

    def add(self, samples: RaggedSamples) -> None:
        """Take samples in.

        Raises:
            TrainerError: the disk is full.
        """
        self.totals = self.totals + Totals.of(samples)
        self._waiting.append(samples)
        row_tokens = max(self._row_tokens or 0, self.totals.longest_row)
        if self._file is None and self.totals.rows * row_tokens <= self._most_tokens:
            return
        with disk_errors(self._folder):
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by __exit__
            for block in self._waiting:
                save_samples(self._file, block)
        self._waiting = []

    def blocks(self) -> Iterator[RaggedSamples]:
        """Yield the blocks as they came. Only one such iteration may go on at a time."""
        if self._file is None:
            yield from self._waiting
            return
        with disk_errors(self._folder):
            self._file.flush()
        self._file.seek(0)
        yield from load_samples(self._file)

    def joined(self) -> RaggedSamples:
        """Return all samples together."""
        blocks = list(self.blocks())
        return RaggedSamples.concatenate(blocks) if blocks else RaggedSamples.empty()


def save_samples(file: IO[bytes], samples: RaggedSamples) -> None:
    """Append samples to a scratch file. Raises OSError, with the number of what went wrong."""
    for name in _FIELDS:
        save_array(file, getattr(samples, name))


def load_one(file: IO[bytes]) -> RaggedSamples:
    """Return the samples that were saved at the file's place."""
    return RaggedSamples(**{name: np.load(file) for name in _FIELDS})


def load_samples(file: IO[bytes]) -> Iterator[RaggedSamples]:
    """Yield what was saved, from the file's place to its end."""
    start = file.tell()
    end = file.seek(0, 2)
    file.seek(start)
    while file.tell() < end:
        yield load_one(file)


def save_array(file: IO[bytes], values: NDArray[Any]) -> None:
    """Append an array as ``numpy.save`` does, which says of a full disk only how many numbers it could write."""
    whole = io.BytesIO()
    np.save(whole, values)
    file.write(whole.getbuffer())
