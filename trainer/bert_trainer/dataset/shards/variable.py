"""MLPerf's layouts without padding: variable-length rows, and packed rows of several samples each.

``convert_fixed2variable.py`` and the packing scripts of NVIDIA's MLPerf submissions write them: datasets of
variable-length int16 and int8 values, no mask. In a packed row positions count from the start of the row. These
layouts are read, not written.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards.checks import check_ragged
from bert_trainer.dataset.shards.header import REBUILD, ShardHeader, read_attributes, require, require_shape
from bert_trainer.dataset.shards.ragged import RaggedSamples, ragged_sums, smallest_ids
from bert_trainer.dataset.shards.vlen_reader import read_counts, read_values
from bert_trainer.errors import InputError

_VLEN_DATASETS = ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids")
_PACKED_VLEN_DATASETS = (*_VLEN_DATASETS, "next_sentence_labels", "packed_input_len", "packed_masked_lm_len")

COUNTED_ROWS = 1 << 16
"""Rows of a packed file whose samples are counted at a time."""


def header(path: Path, file: h5py.File) -> ShardHeader:
    """Check everything but the rows; a packed file states no number of samples, so its lengths are read."""
    packed = "packed_input_len" in file
    vlen_names = _PACKED_VLEN_DATASETS if packed else _VLEN_DATASETS
    datasets = require(path, file, [*vlen_names] if packed else [*vlen_names, "next_sentence_labels"])
    stored_rows = datasets["input_ids"].shape[0] if datasets["input_ids"].ndim else 0
    for name, dataset in datasets.items():
        base = h5py.check_vlen_dtype(dataset.dtype)
        is_vlen = name in vlen_names
        dtype = base if is_vlen else dataset.dtype
        if dtype is None or np.dtype(dtype).kind not in "iu":
            wanted = "integers of variable length" if is_vlen else "integers"
            raise InputError(f"{path}: dataset {name!r} has type {dataset.dtype}, wanted {wanted}", hint=REBUILD)
        require_shape(path, name, dataset, (stored_rows,))
    rows = stored_rows
    # In blocks, since a header is read in little memory however many rows the file has.
    if packed:
        rows = int(count_samples(file, COUNTED_ROWS)[-1])
    return ShardHeader(
        **read_attributes(file, "mlperf-packed" if packed else "mlperf-variable") | {"rows": rows, "masked": True}
    )


def read(path: Path, file: h5py.File, found: ShardHeader, rows: slice, vocabulary_size: int | None) -> RaggedSamples:
    """Read rows. Of a packed file all rows are read, since nothing states which row holds a sample."""
    if found.layout == "mlperf-variable":
        return read_stored(path, file, found, rows, vocabulary_size, first_row=rows.indices(found.rows)[0])
    return read_stored(path, file, found, slice(None), vocabulary_size).take(rows)


def count_samples(file: h5py.File, block_rows: int) -> NDArray[np.int64]:
    """Return the number of samples before each block of a packed file's rows, and of all samples; (blocks + 1,)."""
    packed = file["packed_input_len"]
    counts = [
        int(read_counts(packed, slice(start, start + block_rows)).sum())
        for start in range(0, packed.shape[0], block_rows)
    ]
    return np.cumsum([0, *counts])


def read_stored(
    path: Path, file: h5py.File, found: ShardHeader, rows: slice, vocabulary_size: int | None, *, first_row: int = 0
) -> RaggedSamples:
    """Read the samples of some rows of the file, in a packed file several per row.

    rows: as the file counts them. first_row: number of the first sample, for messages.
    """
    packed = found.layout == "mlperf-packed"
    columns = {name: read_values(file[name], rows) for name in (_PACKED_VLEN_DATASETS if packed else _VLEN_DATASETS)}
    tokens, token_counts = columns["input_ids"]
    segments, segment_counts = columns["segment_ids"]
    positions, prediction_counts = columns["masked_lm_positions"]
    masked_ids, id_counts = columns["masked_lm_ids"]
    if not (np.array_equal(segment_counts, token_counts) and np.array_equal(id_counts, prediction_counts)):
        raise InputError(f"{path}: a row's segments or labels are not as many as its tokens or positions", hint=REBUILD)
    if packed:
        labels: NDArray[Any] = columns["next_sentence_labels"][0]
        token_counts, prediction_counts, positions = _unpack(path, columns)
    else:
        labels = file["next_sentence_labels"][rows]
    problem = _segment_problem(segments, token_counts, first_row)
    if problem is not None:
        raise InputError(f"{path}: {problem}", hint=REBUILD)
    samples = RaggedSamples(
        tokens=tokens,
        token_counts=token_counts,
        first_segment_counts=token_counts - ragged_sums(segments, token_counts),
        next_sentence_labels=labels,
        prediction_counts=prediction_counts,
        masked_lm_positions=positions,
        masked_lm_ids=masked_ids,
    )
    # In the file's own types, before any conversion: a number out of range would be truncated to a valid one.
    check_ragged(path, samples, found.sequence_length, found.max_predictions, vocabulary_size, first_row=first_row)
    return replace(
        samples,
        tokens=smallest_ids(tokens),
        next_sentence_labels=labels.astype(np.int8),
        masked_lm_positions=positions.astype(np.uint16),
        masked_lm_ids=smallest_ids(masked_ids),
    )


def _unpack(
    path: Path, columns: dict[str, tuple[NDArray[np.integer], NDArray[np.int64]]]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return tokens and predictions of every sample, and positions that count from the start of the sample."""
    row_tokens, row_predictions = columns["input_ids"][1], columns["masked_lm_positions"][1]
    per_row = columns["packed_input_len"][1]
    tokens, predictions = (columns[name][0].astype(np.int64) for name in ("packed_input_len", "packed_masked_lm_len"))
    row_of = np.repeat(np.arange(len(per_row)), per_row)
    for name in ("packed_masked_lm_len", "next_sentence_labels"):
        if not np.array_equal(per_row, columns[name][1]):
            raise InputError(f"{path}: {name!r} names other numbers of samples than 'packed_input_len'", hint=REBUILD)
    for name, parts, wholes in (
        ("packed_input_len", tokens, row_tokens),
        ("packed_masked_lm_len", predictions, row_predictions),
    ):
        if (parts < 0).any() or not np.array_equal(np.bincount(row_of, parts, len(per_row)), wholes):
            raise InputError(f"{path}: {name!r} does not add up to the lengths of the rows", hint=REBUILD)
    # Positions count from the start of the packed row: subtract the offset of the sample within its row.
    starts_of_rows = np.repeat(np.cumsum(row_tokens) - row_tokens, per_row)
    offsets = np.cumsum(tokens) - tokens - starts_of_rows
    positions = columns["masked_lm_positions"][0].astype(np.int64) - np.repeat(offsets, predictions)
    return tokens, predictions, positions


def _segment_problem(segments: NDArray[np.integer], counts: NDArray[np.int64], first_row: int) -> str | None:
    if (counts < 1).any():
        return f"row {first_row + int((counts < 1).argmax())} has no token"
    if int(counts.sum()) != len(segments):
        return "the numbers of tokens do not add up"
    if segments.size and not 0 <= int(segments.min()) <= int(segments.max()) <= 1:
        return f"dataset 'segment_ids' holds {segments.min()} to {segments.max()}, allowed 0 to 1"
    falls = np.diff(segments.astype(np.int8)) < 0
    # From the last token of a row to the first of the next one segments may fall.
    falls[np.cumsum(counts)[:-1] - 1] = False
    if falls.any():
        row = int(np.searchsorted(np.cumsum(counts), int(falls.argmax()), side="right"))
        return f"row {first_row + row} has segments other than 0 ... 0 1 ... 1"
    return None
