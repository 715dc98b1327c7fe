"""Rows padded to one length: the layouts of NVIDIA, Intel and MLPerf, which differ in integer types and compression.

Names, types and shapes are those of ``create_pretraining_data.py`` (NVIDIA: int32 and int8, gzip),
``chop_hdf5_files.py`` (Intel: the same, uncompressed) and MLPerf's fixed layout (int16 and int8, uncompressed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from bert_job.dataset_names import WrittenLayout
from bert_trainer.dataset.shards.checks import check_padding, check_range
from bert_trainer.dataset.shards.contiguous import Column, ReserveSpace
from bert_trainer.dataset.shards.header import (
    MAX_ROW_TOKENS,
    REBUILD,
    ShardHeader,
    read_attributes,
    require,
    require_integers,
    require_shape,
)
from bert_trainer.dataset.shards.ragged import RaggedSamples, UnorderedSegmentsError
from bert_trainer.dataset.shards.samples import DATASETS, Samples
from bert_trainer.errors import InputError

# Uncompressed size of a chunk; larger ones would cost memory, smaller ones time.
_CHUNK_BYTES = 1 << 18
# Rows in memory with their padding at a time.
_BLOCK_ROWS = 16384


@dataclass(frozen=True, slots=True)
class FixedLayout:
    """Integer type and compression of a fixed layout."""

    name: WrittenLayout
    ids: str
    """NumPy type of token ids and positions."""
    compression: str | None


NVIDIA = FixedLayout("nvidia", "<i4", "gzip")
INTEL = FixedLayout("intel", "<i4", None)
MLPERF = FixedLayout("mlperf", "<i2", None)
KINDS = {kind.name: kind for kind in (NVIDIA, INTEL, MLPERF)}


def header(path: Path, file: h5py.File) -> ShardHeader:
    """Check everything but the rows."""
    datasets = require(path, file, list(DATASETS))
    for name, dataset in datasets.items():
        require_integers(path, name, dataset, 1 if name == "next_sentence_labels" else 2)
    rows, sequence_length = datasets["input_ids"].shape
    max_predictions = datasets["masked_lm_positions"].shape[1]
    if max(sequence_length, max_predictions) > MAX_ROW_TOKENS:
        raise InputError(
            f"{path}: rows of {sequence_length} tokens and {max_predictions} predictions; "
            f"allowed: up to {MAX_ROW_TOKENS}",
            hint=REBUILD,
        )
    # The limit comes first: the shapes below decide how much memory is allocated.
    for name in DATASETS:
        require_shape(path, name, datasets[name], shape(name, rows, sequence_length, max_predictions))
    # Nothing in the files names their layout: only NVIDIA's are chunked, and only MLPerf's have int16 ids.
    kind = NVIDIA if datasets["input_ids"].chunks else MLPERF if datasets["input_ids"].dtype.itemsize == 2 else INTEL
    known = read_attributes(file, kind.name) | {
        "rows": rows,
        "sequence_length": sequence_length,
        "max_predictions": max_predictions,
        "masked": True,
    }
    return ShardHeader(**known)


def shape(name: str, rows: int, sequence_length: int, max_predictions: int) -> tuple[int, ...]:
    """Return the required shape of a dataset."""
    if name == "next_sentence_labels":
        return (rows,)
    return (rows, max_predictions if name.startswith("masked_lm") else sequence_length)


def read_padded(path: Path, file: h5py.File, found: ShardHeader, rows: slice, vocabulary_size: int | None) -> Samples:
    """Read rows with their padding; checks ranges and padding."""
    assert found.sequence_length is not None, "a fixed layout states it by its shape"
    arrays = {}
    for name, dtype in DATASETS.items():
        values = file[name][rows]
        check_range(path, name, values, found.sequence_length, vocabulary_size)
        # After the check: a number out of range would be truncated to a valid one.
        arrays[name] = values.astype(dtype, copy=False)
    samples = Samples(**arrays)
    check_padding(path, samples, first_row=rows.start or 0)
    return samples


def read(path: Path, file: h5py.File, found: ShardHeader, rows: slice, vocabulary_size: int | None) -> RaggedSamples:
    """Read rows without their padding."""
    first, stop, _ = rows.indices(found.rows)
    parts = []
    # At least one block, so that no rows at all still give (empty) arrays of the right types.
    for start in range(first, max(stop, first + 1), _BLOCK_ROWS):
        block = slice(start, min(start + _BLOCK_ROWS, stop))
        try:
            parts.append(RaggedSamples.from_padded(read_padded(path, file, found, block, vocabulary_size)))
        except UnorderedSegmentsError as error:
            raise InputError(
                f"{path}: from row {start} on, {error}", hint="list all that is wrong with 'bert-data verify FOLDER'"
            ) from error
    return RaggedSamples.concatenate(parts)


def columns(kind: FixedLayout, rows: int, sequence_length: int, max_predictions: int) -> dict[str, Column]:
    """Return the datasets of a file; ids and positions have the layout's type, flags are int8 everywhere."""
    ids = np.dtype(kind.ids)
    return {
        name: Column(shape(name, rows, sequence_length, max_predictions), ids if in_memory.itemsize > 1 else in_memory)
        for name, in_memory in DATASETS.items()
    }


def values(samples: Samples, kind: FixedLayout) -> dict[str, NDArray[np.integer]]:
    """Return the values of each of the ``columns`` for some samples.

    Raises:
        InputError: a token id is too large for the layout.
    """
    found = {name: getattr(samples, name) for name in DATASETS}
    for name, in_memory in DATASETS.items():
        if in_memory.itemsize > 1:
            refuse_large_ids(found[name], np.dtype(kind.ids), kind.name)
    return found


def write(
    file: h5py.File,
    kind: FixedLayout,
    wanted: Mapping[str, Column],
    blocks: Callable[[], Iterable[Mapping[str, NDArray[np.integer]]]],
    reserve: ReserveSpace = lambda _: None,
) -> None:
    """Write one dataset after the other.

    Args:
        file: to write to.
        kind: the layout.
        wanted: the datasets.
        blocks: yields all rows in order, anew with each call.
        reserve: called with the most bytes that are written next.
    """
    for name, column in wanted.items():
        chunks = None
        rows = column.shape[0]
        # HDF5 compresses chunks, and a dataset without rows cannot be chunked.
        compression = kind.compression if rows else None
        if compression:
            row_bytes = max(1, prod(column.shape[1:]) * column.dtype.itemsize)
            chunks = (max(1, min(rows, _CHUNK_BYTES // row_bytes)), *column.shape[1:])
        dataset = file.create_dataset(name, column.shape, column.dtype, compression=compression, chunks=chunks)
        at = 0
        for block in blocks():
            if len(block[name]):
                # Twice the bytes: data that do not compress grow by a few bytes per chunk.
                reserve(2 * block[name].size * column.dtype.itemsize)
                dataset[at : at + len(block[name])] = block[name].astype(column.dtype, copy=False)
            at += len(block[name])
        # Closes the dataset, which writes its cached chunks: they have to come before the next dataset's.
        del dataset


def refuse_large_ids(values: np.ndarray[tuple[int, ...], np.dtype[np.integer]], dtype: np.dtype, layout: str) -> None:
    """Refuse ids that a layout's integer type cannot hold.

    Raises:
        InputError: an id is too large.
    """
    largest = int(values.max()) if values.size else 0
    if largest > np.iinfo(dtype).max:
        raise InputError(
            f"layout {layout}: got the token id {largest}; allowed: up to {np.iinfo(dtype).max}",
            hint="use the layout compact, nvidia or intel for a vocabulary of this size",
        )
