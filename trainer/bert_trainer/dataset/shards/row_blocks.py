"""Reads a file's rows in blocks of a few thousand, so that memory does not grow with the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards import compact, fixed, tfrecord, variable
from bert_trainer.dataset.shards.files import read_header, read_ragged
from bert_trainer.dataset.shards.header import ShardHeader, opened
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.shards.totals import Totals

BLOCK_ROWS = 4096


@dataclass(frozen=True, slots=True)
class FileVersion:
    """Key of the caches below: distinguishes a file from its replacement, and readers of other block sizes."""

    modified_ns: int
    num_bytes: int
    block_rows: int

    @classmethod
    def of(cls, path: Path) -> FileVersion:
        """Return the current version of a file."""
        state = path.stat()
        return cls(state.st_mtime_ns, state.st_size, BLOCK_ROWS)


def read_ragged_blocks(
    path: Path, vocabulary_size: int | None = None, rows: slice = slice(None)
) -> Iterator[RaggedSamples]:
    """Yield rows of one file without padding, a few thousand at a time, in order. rows: a contiguous slice.

    Memory: two blocks, and 16 bytes per block of the file. Checksums of a compact file are compared before the first
    block is yielded, once per process for the last two files.

    Raises:
        InputError: as ``read_ragged``.
    """
    found = read_header(path)
    first, stop, _ = rows.indices(found.rows)
    version = FileVersion.of(path)
    starts = _sample_starts(path, version, found)
    # The block that holds the first row; of a packed file blocks have different numbers of samples.
    number = int(np.searchsorted(starts, first, side="right")) - 1
    while first < stop:
        start, end = starts[number : number + 2].tolist()
        block = _read_block(path, version, found, number, vocabulary_size)
        yield block.take(slice(first - start, min(stop, end) - start))
        first, number = end, number + 1


def read_blocks(path: Path, vocabulary_size: int | None = None) -> Iterator[Samples]:
    """Yield all rows of one file, padded, a few thousand at a time; a file without samples yields nothing.

    Memory: as ``read_ragged_blocks``, and one padded block.

    Raises:
        InputError: as ``read_shard``.
    """
    found = read_header(path)
    # As they are in the file: converting to ragged rows and back would hide what ``verify`` looks for in the padding.
    if found.layout in fixed.KINDS:
        for start in range(0, found.rows, BLOCK_ROWS):
            with opened(path) as file:
                rows = slice(start, start + BLOCK_ROWS)
                block = fixed.read_padded(path, file, found, rows, vocabulary_size)
            yield block
        return
    if found.layout == "tfrecord":
        for start in range(0, found.rows, BLOCK_ROWS):
            yield tfrecord.read_padded(path, found, slice(start, start + BLOCK_ROWS), vocabulary_size)
        return
    length, predictions = found.sequence_length, found.max_predictions
    # All blocks must have one shape, so a file that does not state it is read twice.
    if length is None or predictions is None:
        totals = sum((Totals.of(block) for block in read_ragged_blocks(path, vocabulary_size)), Totals())
        length, predictions = max(1, totals.longest_row), max(1, totals.most_predictions)
    for ragged in read_ragged_blocks(path, vocabulary_size):
        yield ragged.to_padded(length, predictions)


@lru_cache(maxsize=1)
def _read_block(
    path: Path, version: FileVersion, found: ShardHeader, number: int, vocabulary_size: int | None
) -> RaggedSamples:
    """Read one block; cached, since neighbouring output files of ``chop`` take rows from the same block."""
    rows = slice(number * version.block_rows, (number + 1) * version.block_rows)
    if found.layout == "compact":
        index = _compact_index(path, version)
        with opened(path) as file:
            return compact.read_block(path, file, found, index, number, vocabulary_size)
    if found.layout == "mlperf-packed":
        first_row = int(_packed_starts(path, version)[number])
        with opened(path) as file:
            return variable.read_stored(path, file, found, rows, vocabulary_size, first_row=first_row)
    if found.layout == "tfrecord":
        return tfrecord.read(path, found, rows, vocabulary_size)
    return read_ragged(path, vocabulary_size, rows)


def _sample_starts(path: Path, version: FileVersion, found: ShardHeader) -> NDArray[np.int64]:
    """Return the number of each block's first sample, and of all samples; (blocks + 1,)."""
    if found.layout == "mlperf-packed":
        return _packed_starts(path, version)
    # For its checks alone: damage has to be found before a row is yielded, not in the middle.
    if found.layout == "compact":
        _compact_index(path, version)
    ends = np.minimum(np.arange(-(-found.rows // version.block_rows) + 1) * version.block_rows, found.rows)
    return ends.astype(np.int64)


@lru_cache(maxsize=2)
def _compact_index(path: Path, version: FileVersion) -> compact.Index:
    """Read and check a file once for all tasks that take rows from it. The last two files stay cached."""
    with opened(path) as file:
        compact.header(path, file)
        return compact.make_index(path, file, version.block_rows)


@lru_cache(maxsize=2)
def _packed_starts(path: Path, version: FileVersion) -> NDArray[np.int64]:
    """Return the number of samples before each block of the file's rows, likewise."""
    with opened(path) as file:
        return variable.count_samples(file, version.block_rows)
