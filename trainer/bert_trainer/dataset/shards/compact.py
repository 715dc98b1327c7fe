"""The project's own layout: no padding, two bytes to a token, a checksum over every dataset.

A file is seven flat arrays and some attributes. Its metadata carry HDF5's own checksums and each array has a
CRC-32, so that damage anywhere is found when it is read. docs/concepts/data-format.md is the description.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.ragged import RaggedSamples, smallest_ids
from bert_trainer.dataset.shard_checks import check_ragged
from bert_trainer.dataset.shards.header import (
    REBUILD,
    ShardHeader,
    require,
    require_integers,
    require_shape,
    stated,
)
from bert_trainer.errors import InputError

KEY = "token_counts"
"""The dataset that no other layout has."""
LIBRARY_VERSION = ("v110", "v110")
"""Oldest HDF5 that reads the files; older formats have no checksums over their metadata."""

_PER_ROW = {
    "token_counts": "<u2",
    "first_segment_counts": "<u2",
    "next_sentence_labels": "|i1",
    "prediction_counts": "<u2",
}
_FLAT = ("tokens", "masked_lm_positions", "masked_lm_ids")


def header(path: Path, file: h5py.File) -> ShardHeader:
    """Check everything but the rows."""
    require(path, file, [*_PER_ROW, *_FLAT])
    for name in (*_PER_ROW, *_FLAT):
        require_integers(path, name, file[name], 1)
    rows = file[KEY].shape[0]
    for name in _PER_ROW:
        require_shape(path, name, file[name], (rows,))
    require_shape(path, "masked_lm_ids", file["masked_lm_ids"], file["masked_lm_positions"].shape)
    found = ShardHeader(**stated(file, "compact") | {"rows": rows})
    if found.sequence_length is None or found.max_predictions is None:
        raise InputError(f"{path}: lacks the attribute sequence_length or max_predictions", hint=REBUILD)
    return found


def read(path: Path, file: h5py.File, found: ShardHeader, rows: slice, vocabulary_size: int | None) -> RaggedSamples:
    """Read the whole file, check it, and return the rows asked for."""
    arrays = {}
    for name in (*_PER_ROW, *_FLAT):
        dataset = file[name]
        values = dataset[...]
        wanted = dataset.attrs.get("crc32")
        if wanted is None or _crc32(values) != wanted:
            raise InputError(f"{path}: damaged: dataset {name!r} does not fit its checksum", hint=REBUILD)
        arrays[name] = values
    for name in ("token_counts", "first_segment_counts", "prediction_counts"):
        arrays[name] = arrays[name].astype(np.int64)
    samples = RaggedSamples(**arrays)
    check_ragged(path, samples, found.sequence_length, found.max_predictions, vocabulary_size)
    whole = rows.indices(found.rows) == (0, found.rows, 1)
    return samples if whole else samples.take(rows)


def write(file: h5py.File, samples: RaggedSamples) -> None:
    """Write all datasets, contiguous and uncompressed."""
    for name in (*_PER_ROW, *_FLAT):
        values = getattr(samples, name)
        if name in _PER_ROW:
            values = values.astype(_PER_ROW[name])
        elif name == "masked_lm_positions":
            values = values.astype("<u2")
        else:
            values = smallest_ids(values)
            values = values.astype(values.dtype.newbyteorder("<"))
        dataset = file.create_dataset(name, data=values)
        dataset.attrs["crc32"] = np.uint32(_crc32(values))


@dataclass(frozen=True, slots=True)
class Totals:
    """Sizes and types of the datasets of a file that is written in blocks."""

    rows: int
    tokens: int
    predictions: int
    largest_token: int
    largest_label: int

    def shape(self, name: str) -> int:
        """Return the length of a dataset."""
        return self.tokens if name == "tokens" else self.predictions if name in _FLAT else self.rows

    def kind(self, name: str) -> str:
        """Return the type of a dataset, as ``write`` chooses it."""
        largest = {"tokens": self.largest_token, "masked_lm_ids": self.largest_label}.get(name, 0)
        return _PER_ROW.get(name) or ("<u2" if largest < 1 << 16 else "<i4")


def reserve(file: h5py.File, totals: Totals) -> None:
    """Make all datasets without their values, for ``fill``."""
    for name in (*_PER_ROW, *_FLAT):
        space = h5py.h5s.create_simple((totals.shape(name),))
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        settings.set_obj_track_times(False)
        kind = h5py.h5t.py_create(np.dtype(totals.kind(name)))
        dataset = h5py.Dataset(h5py.h5d.create(file.id, name.encode(), kind, space, settings))
        dataset.attrs["crc32"] = np.uint32(0)


def fill(path: Path, totals: Totals, blocks: Iterable[RaggedSamples]) -> None:
    """Write the values of a file that ``reserve`` has made.

    They go past HDF5, which reports a full disk unreliably; the disk's space is taken before the first of them.

    Raises:
        OSError: the disk is full, or fails.
    """
    with h5py.File(path) as file:
        at = {name: file[name].id.get_offset() for name in (*_PER_ROW, *_FLAT) if totals.shape(name)}
    checksums = dict.fromkeys((*_PER_ROW, *_FLAT), 0)
    with path.open("r+b") as raw:
        os.posix_fallocate(raw.fileno(), 0, max(1, raw.seek(0, os.SEEK_END)))
        for block in blocks:
            for name in at:
                values = np.ascontiguousarray(getattr(block, name).astype(totals.kind(name)))
                checksums[name] = zlib.crc32(values.data, checksums[name])
                raw.seek(at[name])
                at[name] += raw.write(values.data)
    with h5py.File(path, "r+", libver=LIBRARY_VERSION) as file:
        for name, checksum in checksums.items():
            file[name].attrs.modify("crc32", np.uint32(checksum))


def _crc32(values: NDArray[np.generic]) -> int:
    return zlib.crc32(np.ascontiguousarray(values).data)
