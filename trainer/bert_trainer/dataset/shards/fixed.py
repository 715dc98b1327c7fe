"""Rows padded to one length: NVIDIA's layout, Intel's and MLPerf's, which differ in integers and compression.

Names, types and shapes are those of ``create_pretraining_data.py`` (NVIDIA: int32 and int8, gzip),
``chop_hdf5_files.py`` (Intel: the same, uncompressed) and MLPerf's fixed layout (int16 and int8, uncompressed).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from bert_trainer.dataset.ragged import RaggedSamples, UnorderedSegmentsError
from bert_trainer.dataset.samples import DATASETS, Samples
from bert_trainer.dataset.shard_checks import check_padding, check_range
from bert_trainer.dataset.shards.header import (
    ShardHeader,
    require,
    require_integers,
    require_shape,
    stated,
)
from bert_trainer.errors import InputError
from bert_trainer.layout_names import LayoutName

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


def write(file: h5py.File, samples: Samples, kind: FixedKind) -> None:
    """Write all datasets.

    Raises:
        InputError: a token id is too large for the layout.
    """
    for name, in_memory in DATASETS.items():
        values = getattr(samples, name)
        stored = np.dtype(kind.ids) if in_memory.itemsize > 1 else in_memory
        refuse_large_ids(values, stored, kind.name)
        chunks = None
        # An empty dataset cannot be cut into chunks, which compression works on.
        compression = kind.compression if len(values) else None
        if compression:
            row_bytes = max(1, values[:1].astype(stored).nbytes)
            chunks = (max(1, min(len(values), _CHUNK_BYTES // row_bytes)), *values.shape[1:])
        file.create_dataset(name, data=values.astype(stored), compression=compression, chunks=chunks)


def refuse_large_ids(values: np.ndarray[tuple[int, ...], np.dtype[np.integer]], kind: np.dtype, layout: str) -> None:
    """Refuse numbers that a layout's integers cannot hold."""
    largest = int(values.max()) if values.size else 0
    if largest > np.iinfo(kind).max:
        raise InputError(
            f"layout {layout}: got the token id {largest}; allowed: up to {np.iinfo(kind).max}",
            hint="use the layout compact, nvidia or intel for a vocabulary of this size",
        )
