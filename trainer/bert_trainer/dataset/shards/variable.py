"""MLPerf's layouts without padding: variable-length rows, and packed rows of several samples each.

``convert_fixed2variable.py`` and the packing scripts of NVIDIA's MLPerf submissions write them: datasets of
variable-length int16 and int8 values, no mask. In a packed row positions count from the start of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards.checks import check_ragged
from bert_trainer.dataset.shards.contiguous import ReserveSpace
from bert_trainer.dataset.shards.fixed import refuse_large_ids
from bert_trainer.dataset.shards.header import REBUILD, ShardHeader, read_attributes, require, require_shape
from bert_trainer.dataset.shards.packing import pack
from bert_trainer.dataset.shards.ragged import RaggedSamples, ragged_sums, smallest_ids
from bert_trainer.dataset.shards.vlen_reader import REFERENCE_BYTES, read_counts, read_values
from bert_trainer.errors import InputError

_VLEN_TYPES = {"input_ids": "<i2", "segment_ids": "|i1", "masked_lm_positions": "<i2", "masked_lm_ids": "<i2"}
_PACKED_VLEN_TYPES = _VLEN_TYPES | {
    "next_sentence_labels": "|i1",
    "packed_input_len": "<i2",
    "packed_masked_lm_len": "<i2",
}

COUNTED_ROWS = 1 << 16
"""Rows of a packed file whose samples are counted at a time."""


def header(path: Path, file: h5py.File) -> ShardHeader:
    """Check everything but the rows; a packed file states no number of samples, so its lengths are read."""
    packed = "packed_input_len" in file
    vlen_types = _PACKED_VLEN_TYPES if packed else _VLEN_TYPES
    names = list(vlen_types) if packed else [*vlen_types, "next_sentence_labels"]
    datasets = require(path, file, names)
    stored_rows = datasets["input_ids"].shape[0] if datasets["input_ids"].ndim else 0
    for name, dataset in datasets.items():
        base = h5py.check_vlen_dtype(dataset.dtype)
        is_vlen = name in vlen_types
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
    columns = {name: read_values(file[name], rows) for name in (_PACKED_VLEN_TYPES if packed else _VLEN_TYPES)}
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


@dataclass(frozen=True, slots=True)
class VlenRows:
    """Some rows of a dataset of variable length."""

    values: NDArray[np.integer]
    """(sum of counts,): the values of all rows, end to end."""
    counts: NDArray[np.int64]
    """(rows,): values of each row."""


Block = Mapping[str, VlenRows | NDArray[np.integer]]
"""Some rows of a file, by dataset: of variable length, or one number per row."""


def rows_of(samples: RaggedSamples) -> Block:
    """Return samples as rows of the variable-length layout.

    Raises:
        InputError: a token id is too large for it.
    """
    columns = _vlen_columns(samples, samples.token_counts, samples.prediction_counts, "mlperf-variable")
    return {**columns, "next_sentence_labels": samples.next_sentence_labels}


def packed_rows_of(samples: RaggedSamples, sequence_length: int) -> Block:
    """Return samples as rows of the packed layout: at most three per row, combined by best fit.

    The order of the samples changes.

    Raises:
        InputError: as ``rows_of``.
    """
    packs = pack(samples.token_counts, sequence_length)
    order = np.array([row for one in packs for row in one], dtype=np.int64)
    per_row = np.array([len(one) for one in packs], dtype=np.int64)
    ordered = samples.take(order)
    row_of_sample = np.repeat(np.arange(len(packs)), per_row)
    row_tokens = np.bincount(row_of_sample, ordered.token_counts, len(packs)).astype(np.int64)
    row_predictions = np.bincount(row_of_sample, ordered.prediction_counts, len(packs)).astype(np.int64)
    # The reverse of ``_unpack``: positions count from the start of the row that a sample is packed into.
    offsets = ordered.token_starts - np.repeat(np.cumsum(row_tokens) - row_tokens, per_row)
    positions = ordered.masked_lm_positions + np.repeat(offsets, ordered.prediction_counts)
    return {
        **_vlen_columns(ordered, row_tokens, row_predictions, "mlperf-packed", positions),
        "next_sentence_labels": VlenRows(ordered.next_sentence_labels, per_row),
        "packed_input_len": VlenRows(ordered.token_counts, per_row),
        "packed_masked_lm_len": VlenRows(ordered.prediction_counts, per_row),
    }


def count_rows(blocks: Iterable[Block]) -> int:
    """Return the number of rows in all blocks."""
    return sum(len(rows.counts) for block in blocks if isinstance(rows := block["input_ids"], VlenRows))


def _vlen_columns(
    samples: RaggedSamples,
    row_tokens: NDArray[np.int64],
    row_predictions: NDArray[np.int64],
    layout: str,
    positions: NDArray[np.integer] | None = None,
) -> dict[str, VlenRows]:
    # int16: vocabularies of more than 32,768 entries do not fit.
    for ids in (samples.tokens, samples.masked_lm_ids):
        refuse_large_ids(ids, np.dtype("<i2"), layout)
    places = np.arange(len(samples.tokens)) - np.repeat(samples.token_starts, samples.token_counts)
    segments = places >= np.repeat(samples.first_segment_counts, samples.token_counts)
    at = samples.masked_lm_positions if positions is None else positions
    return {
        "input_ids": VlenRows(samples.tokens, row_tokens),
        "segment_ids": VlenRows(segments.astype(np.int8), row_tokens),
        "masked_lm_positions": VlenRows(at, row_predictions),
        "masked_lm_ids": VlenRows(samples.masked_lm_ids, row_predictions),
    }


def write(
    file: h5py.File,
    rows: int,
    blocks: Callable[[], Iterable[Block]],
    *,
    packed: bool,
    reserve: ReserveSpace = lambda _: None,
) -> None:
    """Write one dataset after the other.

    Args:
        file: to write to.
        rows: of the file.
        blocks: yields all rows in order, anew with each call.
        packed: whether rows hold several samples.
        reserve: called with the most bytes that are written next.
    """
    names = list(_PACKED_VLEN_TYPES) if packed else [*_VLEN_TYPES, "next_sentence_labels"]
    for name in names:
        base = _PACKED_VLEN_TYPES[name]
        stored = h5py.vlen_dtype(np.dtype(base)) if packed or name in _VLEN_TYPES else np.dtype(base)
        dataset = file.create_dataset(name, (rows,), dtype=stored)
        # The references of all rows, which HDF5 allocates with the first write.
        reserve(rows * REFERENCE_BYTES)
        at = 0
        for block in blocks():
            part = block[name]
            if isinstance(part, VlenRows):
                at += _write_vlen(dataset, at, part, base, reserve)
            else:
                at += _write_numbers(dataset, at, part)
        # Closed before the next one is created, so that its values come first in the file.
        del dataset


def _write_numbers(dataset: h5py.Dataset, at: int, values: NDArray[np.integer]) -> int:
    if len(values):
        dataset[at : at + len(values)] = values
    return len(values)


def _write_vlen(dataset: h5py.Dataset, at: int, part: VlenRows, dtype: str, reserve: ReserveSpace) -> int:
    """Write some rows and return how many."""
    rows = len(part.counts)
    if not rows:
        return 0
    values = part.values.astype(dtype)
    # Values go to global heaps of 4 KiB or more, with a header for each row. A heap that has no space left for the next
    # row stays partly empty, hence twice.
    reserve(2 * (values.nbytes + 24 * rows))
    cells = np.empty(rows, dtype=dataset.dtype)
    for row, content in enumerate(np.split(values, np.cumsum(part.counts)[:-1])):
        cells[row] = content
    # Not by assignment: if all rows have the same length, h5py takes them for a matrix and refuses it.
    space = dataset.id.get_space()
    space.select_hyperslab((at,), (rows,))
    dataset.id.write(h5py.h5s.create_simple((rows,)), space, cells)
    return rows


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
