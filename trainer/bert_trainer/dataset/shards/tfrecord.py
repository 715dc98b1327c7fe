"""Google's layout: TFRecord files of ``create_pretraining_data.py``, as MLPerf's reference and TensorFlow recipes have.

Rows are padded to one length, as in the fixed layouts of HDF5, with weights of predictions beside them. Files are read,
not written; docs/concepts/data-format.md describes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards.checks import check_padding, check_range
from bert_trainer.dataset.shards.examples import (
    INTEGER_FEATURES,
    RecordError,
    Widths,
    parse_examples,
    parse_widths,
)
from bert_trainer.dataset.shards.header import MAX_ROW_TOKENS, REBUILD, ShardHeader
from bert_trainer.dataset.shards.ragged import RaggedSamples, UnorderedSegmentsError
from bert_trainer.dataset.shards.samples import DATASETS, Samples
from bert_trainer.dataset.shards.tfrecord_file import (
    opened_records,
    read_end,
    read_first,
    read_records,
    record_offsets,
)
from bert_trainer.errors import InputError

_BLOCK_BYTES = 1 << 21
"""Of records that are parsed at a time: each byte takes up to 20 bytes of numbers meanwhile."""
_VERIFY = "list all that is wrong with 'bert-data verify FOLDER'"


def header(path: Path) -> ShardHeader:
    """Check everything but the rows. Follows the lengths of all records, since nothing states their number."""
    with opened_records(path) as file:
        first = read_first(path, file)
        end = read_end(file)
    widths = _widths(path, first) if first is not None else None
    return ShardHeader(
        rows=len(record_offsets(path, widths.min_bytes)) - 1 if widths else 0,
        sequence_length=widths.sequence_length if widths else None,
        max_predictions=widths.max_predictions if widths else None,
        # The records hold nothing else that a header states.
        vocabulary_sha256=None,
        generator_version=None,
        content=end.hex(),
        layout="tfrecord",
    )


def _widths(path: Path, first: bytes) -> Widths:
    try:
        widths = parse_widths(first)
    except RecordError as error:
        raise _refused(path, 0, error) from error
    if max(widths.sequence_length, widths.max_predictions) > MAX_ROW_TOKENS:
        raise InputError(
            f"{path}: rows of {widths.sequence_length} tokens and {widths.max_predictions} predictions; "
            f"allowed: up to {MAX_ROW_TOKENS}",
            hint=REBUILD,
        )
    return widths


def _refused(path: Path, first_record: int, error: RecordError) -> InputError:
    return InputError(
        f"{path}: record {first_record + error.row} {error}",
        hint="shards hold the seven features of create_pretraining_data.py, all records of one sequence length",
    )


def read(path: Path, found: ShardHeader, rows: slice, vocabulary_size: int | None) -> RaggedSamples:
    """Read rows without their padding. Memory: the rows, and some megabytes."""
    parts = []
    for first, samples in _padded_blocks(path, found, rows, vocabulary_size):
        try:
            parts.append(RaggedSamples.from_padded(samples))
        except UnorderedSegmentsError as error:
            raise InputError(f"{path}: from record {first} on, {error}", hint=_VERIFY) from error
    return RaggedSamples.concatenate(parts) if parts else RaggedSamples.empty()


def read_padded(path: Path, found: ShardHeader, rows: slice, vocabulary_size: int | None) -> Samples:
    """Read rows with their padding; checks ranges, padding and weights."""
    parts = [samples for _, samples in _padded_blocks(path, found, rows, vocabulary_size)]
    shape = found.sequence_length or 1, found.max_predictions or 1
    return Samples.concatenate(parts) if parts else RaggedSamples.empty().to_padded(*shape)


def _padded_blocks(
    path: Path, found: ShardHeader, rows: slice, vocabulary_size: int | None
) -> Iterator[tuple[int, Samples]]:
    """Yield some rows at a time, with the number of the first of them."""
    first, stop, _ = rows.indices(found.rows)
    if found.sequence_length is None or found.max_predictions is None or first >= stop:
        return
    widths = Widths(found.sequence_length, found.max_predictions)
    offsets = record_offsets(path, widths.min_bytes)
    if len(offsets) - 1 < stop:
        raise InputError(f"{path}: holds {len(offsets) - 1} records, {found.rows} when it was opened", hint=REBUILD)
    with opened_records(path) as file:
        while first < stop:
            # At least one record, and no more than fit.
            end = int(np.searchsorted(offsets, offsets[first] + _BLOCK_BYTES, side="right")) - 1
            end = min(max(end, first + 1), stop)
            yield first, _read_block(path, file, offsets[first : end + 1], first, widths, vocabulary_size)
            first = end


def _read_block(
    path: Path,
    file: BinaryIO,
    offsets: NDArray[np.int64],
    first: int,
    widths: Widths,
    vocabulary_size: int | None,
) -> Samples:
    content, starts, ends = read_records(path, file, offsets, first)
    try:
        integers, weights = parse_examples(content, starts, ends, widths)
    except RecordError as error:
        raise _refused(path, first, error) from error
    for name in INTEGER_FEATURES:
        try:
            check_range(path, name, integers[name], widths.sequence_length, vocabulary_size)
        except InputError as error:
            # The message tells the range alone.
            limit = int(integers[name].max())
            record = first + int((integers[name] == limit).any(axis=1).argmax())
            problem = str(error).partition("\n")[0]
            raise InputError(f"{problem} (record {record})", hint=error.hint or _VERIFY) from error
    samples = Samples(
        **{
            name: (integers[name][:, 0] if name == "next_sentence_labels" else integers[name]).astype(DATASETS[name])
            for name in INTEGER_FEATURES
        }
    )
    check_padding(path, samples, first_row=first)
    _check_weights(path, samples, weights, first)
    return samples


def _check_weights(path: Path, samples: Samples, weights: NDArray[np.float32], first: int) -> None:
    """Refuse weights that differ from the positions: the loss counts predictions, it does not weigh them."""
    wrong = weights != (samples.masked_lm_positions > 0)
    if wrong.any():
        row, column = (int(number) for number in np.argwhere(wrong)[0])
        position, weight = int(samples.masked_lm_positions[row, column]), float(weights[row, column])
        raise InputError(
            f"{path}: record {first + row}: prediction {column} has weight {weight:g} and position {position}; "
            "allowed: weight 1 and a position from 1 on, or 0 and 0",
            hint="make the records again with create_pretraining_data.py",
        )
