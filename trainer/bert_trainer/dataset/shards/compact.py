"""The project's own layout: no padding, two bytes to a token, a checksum over every dataset.

A file is seven flat arrays and some attributes. Its metadata carry HDF5's own checksums and each array has a
CRC-32, so that damage anywhere is found when it is read. docs/concepts/data-format.md is the description.
"""

from __future__ import annotations

import zlib
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


def _crc32(values: NDArray[np.generic]) -> int:
    return zlib.crc32(np.ascontiguousarray(values).data)
