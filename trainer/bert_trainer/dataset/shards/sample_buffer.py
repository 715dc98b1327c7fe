"""Samples between reading and writing: few are kept in memory, many spill to an unnamed scratch file.

The operating system removes such a file when the process ends, however it ends.
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
"""Tokens of a shard, padding counted, above which its rows wait on disk."""

_FIELDS = tuple(field.name for field in fields(RaggedSamples))


class SampleBuffer:
    """Takes blocks of samples and yields them again in the same order, any number of times. A context manager."""

    def __init__(self, folder: Path, *, row_tokens: int | None, max_tokens: int) -> None:
        """Start empty.

        Args:
            folder: where the scratch file is created.
            row_tokens: length of a padded row; None: that of the longest row.
            max_tokens: kept in memory, padding counted; beyond it all samples go to the file.
        """
        self._folder, self._row_tokens, self._max_tokens = folder, row_tokens, max_tokens
        self._waiting: list[RaggedSamples] = []
        self._file: IO[bytes] | None = None
        self.totals = Totals()

    def __enter__(self) -> SampleBuffer:
        """Return the buffer; the file is created when it is needed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the file."""
        if self._file is not None:
            # Closing flushes what a full disk could not take; by now nobody needs it.
            with suppress(OSError):
                self._file.close()

    @property
    def in_memory(self) -> bool:
        """Whether no sample was spilled to the file."""
        return self._file is None

    def add(self, samples: RaggedSamples) -> None:
        """Append samples.

        Raises:
            TrainerError: the disk is full.
        """
        self.totals = self.totals + Totals.of(samples)
        self._waiting.append(samples)
        row_tokens = max(self._row_tokens or 0, self.totals.longest_row)
        if self._file is None and self.totals.rows * row_tokens <= self._max_tokens:
            return
        with disk_errors(self._folder):
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by __exit__
            for block in self._waiting:
                save_samples(self._file, block)
        self._waiting = []

    def blocks(self) -> Iterator[RaggedSamples]:
        """Yield the blocks in the order of ``add``. One iteration at a time: all share the file's position."""
        if self._file is None:
            yield from self._waiting
            return
        # Flushed here, inside disk_errors: seek would flush as well, with an error that names no folder.
        with disk_errors(self._folder):
            self._file.flush()
        self._file.seek(0)
        yield from load_samples(self._file)

    def joined(self) -> RaggedSamples:
        """Return all samples together."""
        blocks = list(self.blocks())
        return RaggedSamples.concatenate(blocks) if blocks else RaggedSamples.empty()


def save_samples(file: IO[bytes], samples: RaggedSamples) -> None:
    """Append samples to a scratch file; raises OSError with its errno."""
    for name in _FIELDS:
        save_array(file, getattr(samples, name))


def load_one(file: IO[bytes]) -> RaggedSamples:
    """Read the samples at the file's position."""
    return RaggedSamples(**{name: np.load(file) for name in _FIELDS})


def load_samples(file: IO[bytes]) -> Iterator[RaggedSamples]:
    """Yield all samples from the file's position to its end."""
    start = file.tell()
    end = file.seek(0, 2)
    file.seek(start)
    while file.tell() < end:
        yield load_one(file)


def save_array(file: IO[bytes], values: NDArray[Any]) -> None:
    """Append an array in NumPy's format."""
    # Through memory: on a full disk numpy.save itself raises an OSError without errno ("12 requested and 3 written").
    content = io.BytesIO()
    np.save(content, values)
    file.write(content.getbuffer())
