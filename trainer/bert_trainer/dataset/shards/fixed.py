"""Rows padded to one length: NVIDIA's layout, Intel's and MLPerf's, which differ in integers and compression.

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

from bert_trainer.config.dataset_names import LayoutName
from bert_trainer.dataset.shards.checks import check_padding, check_range
from bert_trainer.dataset.shards.contiguous import Column, TakeRoom
from bert_trainer.dataset.shards.header import (
    LONGEST_ROW,
    REBUILD,
    ShardHeader,
    require,
    require_integers,
    require_shape,
    stated,
)
from bert_trainer.dataset.shards.ragged import RaggedSamples, UnorderedSegmentsError
from bert_trainer.dataset.shards.samples import DATASETS, Samples
from bert_trainer.errors import InputError

_CHUNK_BYTES = 1 << 18
"""Size of the pieces that are compressed; larger ones would cost memory, smaller ones time."""
_BLOCK_ROWS = 16384
"""Rows that are in memory with their padding at a time."""


@dataclass(frozen=True, slots=True)
class FixedKind:
    """What the three fixed layouts differ in."""

    name: LayoutName
    ids: str
    """NumPy type of token ids and positions."""
    compression: str | None


NVIDIA = FixedKind("nvidia", "<i4", "gzip")
INTEL = FixedKind("intel", "<i4", None)
MLPERF = FixedKind("mlperf", "<i2", None)


def header(path: Path, file: h5py.File) -> ShardHeader:
    """Check everything but the rows."""
    require(path, file, list(DATASETS))
    for name in DATASETS:
        require_integers(path, name, file[name], 1 if name == "next_sentence_labels" else 2)
    rows, sequence_length = file["input_ids"].shape
    max_predictions = file["masked_lm_positions"].shape[1]
    if max(sequence_length, max_predictions) > LONGEST_ROW:
        raise InputError(
            f"{path}: rows of {sequence_length} tokens and {max_predictions} predictions; allowed: up to {LONGEST_ROW}",
            hint=REBUILD,
        )
    for name in DATASETS:
        require_shape(path, name, file[name], shape(name, rows, sequence_length, max_predictions))
    kind = NVIDIA if file["input_ids"].chunks else MLPERF if file["input_ids"].dtype.itemsize == 2 else INTEL
    known = stated(file, kind.name) | {
        "rows": rows,
        "sequence_length": sequence_length,
        "max_predictions": max_predictions,
        "masked": True,
    }
    return ShardHeader(**known)


def shape(name: str, rows: int, sequence_length: int, max_predictions: int) -> tuple[int, ...]:
    """Return the shape that a dataset has to have."""
    if name == "next_sentence_labels":
        return (rows,)
    return (rows, max_predictions if name.startswith("masked_lm") else sequence_length)


def read_padded(path: Path, file: h5py.File, found: ShardHeader, rows: slice, vocabulary_size: int | None) -> Samples:
    """Read rows as they lie in the file, checked for ranges and padding."""
    assert found.sequence_length is not None, "a fixed layout states it by its shape"
    arrays = {}
    for name, kind in DATASETS.items():
        values = file[name][rows]
        check_range(path, name, values, found.sequence_length, vocabulary_size)
        arrays[name] = values.astype(kind, copy=False)
    samples = Samples(**arrays)
    check_padding(path, samples, first_row=rows.start or 0)
    return samples


def read(path: Path, file: h5py.File, found: ShardHeader, rows: slice, vocabulary_size: int | None) -> RaggedSamples:
    """Read rows without their padding."""
    first, stop, _ = rows.indices(found.rows)
    parts = []
    for start in range(first, max(stop, first + 1), _BLOCK_ROWS):
        block = slice(start, min(start + _BLOCK_ROWS, stop))
        try:
            parts.append(RaggedSamples.from_padded(read_padded(path, file, found, block, vocabulary_size)))
        except UnorderedSegmentsError as error:
            raise InputError(
                f"{path}: from row {start} on, {error}", hint="list all that is wrong with 'bert-data verify FOLDER'"
            ) from error
    return RaggedSamples.concatenate(parts)


def columns(kind: FixedKind, rows: int, sequence_length: int, max_predictions: int) -> dict[str, Column]:
    """Return the datasets of a file."""
    ids = np.dtype(kind.ids)
    return {
        name: Column(shape(name, rows, sequence_length, max_predictions), ids if in_memory.itemsize > 1 else in_memory)
        for name, in_memory in DATASETS.items()
    }


def values(samples: Samples, kind: FixedKind) -> dict[str, NDArray[np.integer]]:
    """Return what each of the ``columns`` holds of some samples.

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
    kind: FixedKind,
    wanted: Mapping[str, Column],
    blocks: Callable[[], Iterable[Mapping[str, NDArray[np.integer]]]],
    room: TakeRoom = lambda _: None,
) -> None:
    """Write one dataset after the other. blocks: gives all rows in order, each time it is called.

    room: called before so many bytes are written at most.
    """
    for name, column in wanted.items():
        chunks = None
        rows = column.shape[0]
        # An empty dataset cannot be cut into chunks, which compression works on.
        compression = kind.compression if rows else None
        if compression:
            row_bytes = max(1, prod(column.shape[1:]) * column.kind.itemsize)
            chunks = (max(1, min(rows, _CHUNK_BYTES // row_bytes)), *column.shape[1:])
        dataset = file.create_dataset(name, column.shape, column.kind, compression=compression, chunks=chunks)
        at = 0
        for block in blocks():
            if len(block[name]):
                # What does not get smaller by compression gets larger by a few bytes.
                room(2 * block[name].size * column.kind.itemsize)
                dataset[at : at + len(block[name])] = block[name].astype(column.kind, copy=False)
            at += len(block[name])
        # Closing it writes its last chunks, which come before the next dataset.
        del dataset


def refuse_large_ids(values: np.ndarray[tuple[int, ...], np.dtype[np.integer]], kind: np.dtype, layout: str) -> None:
    """Refuse numbers that a layout's integers cannot hold."""
    largest = int(values.max()) if values.size else 0
    if largest > np.iinfo(kind).max:
        raise InputError(
            f"layout {layout}: got the token id {largest}; allowed: up to {np.iinfo(kind).max}",
            hint="use the layout compact, nvidia or intel for a vocabulary of this size",
        )
