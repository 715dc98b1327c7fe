"""The project's own layout: no padding, two bytes per token, a checksum over every dataset.

A file is seven flat arrays and some attributes. HDF5 checksums the metadata and each array has a CRC-32, so damage
anywhere is found when the file is read. Described in docs/concepts/data-format.md.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards.checks import check_ragged
from bert_trainer.dataset.shards.contiguous import Column
from bert_trainer.dataset.shards.header import (
    REBUILD,
    ShardHeader,
    read_attributes,
    require,
    require_integers,
    require_shape,
)
from bert_trainer.dataset.shards.ragged import RaggedSamples, smallest_ids
from bert_trainer.dataset.shards.totals import Totals
from bert_trainer.errors import InputError

KEY = "token_counts"
"""A dataset that no other layout has: files are recognized by it."""
LIBRARY_VERSION = ("v110", "v110")
"""Oldest HDF5 that reads the files; older formats have no checksums over their metadata."""

_PER_ROW = {
    "token_counts": "<u2",
    "first_segment_counts": "<u2",
    "next_sentence_labels": "|i1",
    "prediction_counts": "<u2",
}
_FLAT = ("tokens", "masked_lm_positions", "masked_lm_ids")
# Blocks of rows that are read at a time for a checksum.
_BLOCKS_AT_ONCE = 256


def header(path: Path, file: h5py.File) -> ShardHeader:
    """Check everything but the rows."""
    datasets = require(path, file, [*_PER_ROW, *_FLAT])
    for name, dataset in datasets.items():
        require_integers(path, name, dataset, 1)
    rows = datasets[KEY].shape[0]
    for name in _PER_ROW:
        require_shape(path, name, datasets[name], (rows,))
    require_shape(path, "masked_lm_ids", datasets["masked_lm_ids"], datasets["masked_lm_positions"].shape)
    sums = ",".join(str(dataset.attrs.get("crc32")) for dataset in datasets.values())
    content = hashlib.sha256(sums.encode()).hexdigest()[:16]
    counted = {"rows": rows, "content": content, "num_tokens": datasets["tokens"].shape[0]}
    found = ShardHeader(**read_attributes(file, "compact") | counted)
    if found.sequence_length is None or found.max_predictions is None:
        raise InputError(f"{path}: lacks the attribute sequence_length or max_predictions", hint=REBUILD)
    return found


def read(path: Path, file: h5py.File, found: ShardHeader, rows: slice, vocabulary_size: int | None) -> RaggedSamples:
    """Read the whole file, check it, and return the rows asked for."""
    arrays = {}
    # All of it, whatever rows are asked for: a checksum covers a whole dataset.
    for name in (*_PER_ROW, *_FLAT):
        dataset = file[name]
        arrays[name] = dataset[...]
        _check_sum(path, name, dataset, _crc32(arrays[name]))
    samples = _samples(arrays)
    check_ragged(path, samples, found.sequence_length, found.max_predictions, vocabulary_size)
    whole = rows.indices(found.rows) == (0, found.rows, 1)
    return samples if whole else samples.take(rows)


@dataclass(frozen=True, slots=True)
class Index:
    """Offsets of blocks of rows in a file whose checksums were compared: enough to read single blocks."""

    block_rows: int
    starts: NDArray[np.int64]
    """(blocks + 1, 2): tokens and predictions before the first row of each block; last, those of the file."""


def make_index(path: Path, file: h5py.File, block_rows: int) -> Index:
    """Read the whole file in pieces, compare its checksums, and return where each block of rows begins.

    Raises:
        InputError: a dataset does not match its checksum, or its size does not match the rows.
    """
    starts = np.zeros((-(-file[KEY].shape[0] // block_rows) + 1, 2), np.int64)
    counted = {"token_counts": 0, "prediction_counts": 1}
    for name in (*_PER_ROW, *_FLAT):
        checksum = 0
        # A multiple of the block: the sums below are per block. Of the flat datasets the same number of values is read.
        piece = block_rows * _BLOCKS_AT_ONCE
        for first in range(0, file[name].shape[0], piece):
            found = file[name][first : first + piece]
            checksum = zlib.crc32(np.ascontiguousarray(found).data, checksum)
            if name in counted:
                sums = np.add.reduceat(found.astype(np.int64), np.arange(0, len(found), block_rows))
                block = first // block_rows + 1
                starts[block : block + len(sums), counted[name]] = sums
        _check_sum(path, name, file[name], checksum)
    starts = np.cumsum(starts, axis=0)
    for name, wanted in (("tokens", starts[-1, 0]), ("masked_lm_positions", starts[-1, 1])):
        if file[name].shape[0] != wanted:
            raise InputError(
                f"{path}: its rows should hold {wanted} numbers in {name!r}, it holds {file[name].shape[0]}",
                hint=REBUILD,
            )
    return Index(block_rows, starts)


def read_block(
    path: Path, file: h5py.File, found: ShardHeader, index: Index, number: int, vocabulary_size: int | None
) -> RaggedSamples:
    """Read one block of rows. index: of this file, whose checksums are not compared again."""
    first_row = number * index.block_rows
    (token, prediction), (token_end, prediction_end) = index.starts[number : number + 2].tolist()
    arrays = {name: file[name][first_row : first_row + index.block_rows] for name in _PER_ROW}
    arrays["tokens"] = file["tokens"][token:token_end]
    for name in ("masked_lm_positions", "masked_lm_ids"):
        arrays[name] = file[name][prediction:prediction_end]
    samples = _samples(arrays)
    check_ragged(path, samples, found.sequence_length, found.max_predictions, vocabulary_size, first_row=first_row)
    return samples


def _samples(arrays: dict[str, NDArray[Any]]) -> RaggedSamples:
    for name in ("token_counts", "first_segment_counts", "prediction_counts"):
        arrays[name] = arrays[name].astype(np.int64)
    return RaggedSamples(**arrays)


def _check_sum(path: Path, name: str, dataset: h5py.Dataset, checksum: int) -> None:
    wanted = dataset.attrs.get("crc32")
    # A file without checksums was not written by this project, or was rewritten: nothing in it can be trusted.
    if wanted is None or checksum != wanted:
        raise InputError(f"{path}: damaged: dataset {name!r} does not match its checksum", hint=REBUILD)


def write(file: h5py.File, samples: RaggedSamples) -> None:
    """Write all datasets, contiguous and uncompressed. ``columns`` has to choose the same types for large files."""
    # The order of creation decides the bytes of the file: ``columns`` lists the same.
    for name in (*_PER_ROW, *_FLAT):
        values = getattr(samples, name)
        if name in _PER_ROW:
            values = values.astype(_PER_ROW[name])
        elif name == "masked_lm_positions":
            values = values.astype("<u2")
        else:
            values = smallest_ids(values)
            # Little-endian whatever the machine: the bytes of a file must not depend on it.
            values = values.astype(values.dtype.newbyteorder("<"))
        dataset = file.create_dataset(name, data=values)
        dataset.attrs["crc32"] = np.uint32(_crc32(values))


def columns(totals: Totals) -> dict[str, Column]:
    """Return the datasets of a file that is written in blocks, with the types that ``write`` chooses."""

    def ids(largest: int) -> np.dtype:
        return np.dtype("<u2" if largest < 1 << 16 else "<i4")

    flat = {
        "tokens": Column((totals.tokens,), ids(totals.largest_token)),
        "masked_lm_positions": Column((totals.predictions,), np.dtype("<u2")),
        "masked_lm_ids": Column((totals.predictions,), ids(totals.largest_label)),
    }
    return {**{name: Column((totals.rows,), np.dtype(dtype)) for name, dtype in _PER_ROW.items()}, **flat}


def values(samples: RaggedSamples) -> dict[str, NDArray[np.integer]]:
    """Return the values of each of the ``columns`` for some samples."""
    return {name: getattr(samples, name) for name in (*_PER_ROW, *_FLAT)}


def _crc32(values: NDArray[np.generic]) -> int:
    return zlib.crc32(np.ascontiguousarray(values).data)
