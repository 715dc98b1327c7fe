"""Rows of a file some thousand at a time, so that memory does not grow with the file. One file is open at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.ragged import RaggedSamples
from bert_trainer.dataset.samples import Samples
from bert_trainer.dataset.shards import compact, fixed, variable
from bert_trainer.dataset.shards.files import FIXED, read_header, read_ragged
from bert_trainer.dataset.shards.header import ShardHeader, opened
from bert_trainer.dataset.shards.totals import Totals

BLOCK_ROWS = 4096


def read_ragged_blocks(
    path: Path, vocabulary_size: int | None = None, rows: slice = slice(None)
) -> Iterator[RaggedSamples]:
    """Yield rows of one file without padding, some thousand at a time, in their order. rows: of step 1.

    Memory: one block and 16 bytes for each, however large the file is. Of a compact file everything is compared with
    its checksums before the first block comes, once in a process for the newest files.

    Raises:
        InputError: as ``read_ragged``.
    """
    found = read_header(path)
    first, stop, _ = rows.indices(found.rows)
    starts = _sample_starts(path, found)
    number = int(np.searchsorted(starts, first, side="right")) - 1
    while first < stop:
        start, end = starts[number : number + 2].tolist()
        block = _read_block(path, found, number, vocabulary_size)
        yield block.take(slice(first - start, min(stop, end) - start))
        first, number = end, number + 1


def read_blocks(path: Path, vocabulary_size: int | None = None) -> Iterator[Samples]:
    """Yield all rows of one file, padded, some thousand at a time; a file without samples yields nothing.

    Memory: as ``read_ragged_blocks``, and one block with its padding. Raises InputError as ``read_shard``.
    """
    found = read_header(path)
    if found.layout in FIXED:
        for start in range(0, found.rows, BLOCK_ROWS):
            with opened(path) as file:
                rows = slice(start, start + BLOCK_ROWS)
                block = fixed.read_padded(path, file, found, rows, vocabulary_size)
            yield block
        return
    length, predictions = found.sequence_length, found.max_predictions
    if length is None or predictions is None:
        totals = sum((Totals.of(block) for block in read_ragged_blocks(path, vocabulary_size)), Totals())
        length, predictions = max(1, totals.longest_row), max(1, totals.most_predictions)
    for ragged in read_ragged_blocks(path, vocabulary_size):
        yield ragged.to_padded(length, predictions)


def _read_block(path: Path, found: ShardHeader, number: int, vocabulary_size: int | None) -> RaggedSamples:
    rows = slice(number * BLOCK_ROWS, (number + 1) * BLOCK_ROWS)
    if found.layout == "compact":
        index = _compact_index(path, *_version(path), BLOCK_ROWS)
        with opened(path) as file:
            return compact.read_block(path, file, found, index, number, vocabulary_size)
    if found.layout == "mlperf-packed":
        first_row = int(_sample_starts(path, found)[number])
        with opened(path) as file:
            return variable.read_stored(path, file, found, rows, vocabulary_size, first_row=first_row)
    return read_ragged(path, vocabulary_size, rows)


def _sample_starts(path: Path, found: ShardHeader) -> NDArray[np.int64]:
    """Return the number of each block's first sample, and of all samples; (blocks + 1,)."""
    if found.layout == "mlperf-packed":
        return _packed_starts(path, *_version(path), BLOCK_ROWS)
    if found.layout == "compact":
        _compact_index(path, *_version(path), BLOCK_ROWS)
    ends = np.minimum(np.arange(-(-found.rows // BLOCK_ROWS) + 1) * BLOCK_ROWS, found.rows)
    return ends.astype(np.int64)


def _version(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_mtime_ns, state.st_size


@lru_cache(maxsize=2)
def _compact_index(path: Path, modified_ns: int, size: int, block_rows: int) -> compact.Index:
    """Read a file once for all that take rows from it. modified_ns, size: what tells it from another of its name."""
    with opened(path) as file:
        compact.header(path, file)
        return compact.make_index(path, file, block_rows)


@lru_cache(maxsize=2)
def _packed_starts(path: Path, modified_ns: int, size: int, block_rows: int) -> NDArray[np.int64]:
    """Return how many samples come before each block of the file's rows, likewise."""
    with opened(path) as file:
        return variable.count_samples(file, block_rows)
