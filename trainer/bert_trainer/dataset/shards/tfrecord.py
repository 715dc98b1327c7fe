"""Google's layout: TFRecord files of ``create_pretraining_data.py``, as MLPerf's reference and TensorFlow recipes have.

Rows are padded to one length, as in the fixed layouts of HDF5, with weights of predictions beside them. The files can
be read by TensorFlow, and theirs here; docs/concepts/data-format.md describes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards.checks import check_padding, check_range
from bert_trainer.dataset.shards.examples import (
    INTEGER_FEATURES,
    RecordError,
    Widths,
    encode_examples,
    parse_examples,
    parse_widths,
)
from bert_trainer.dataset.shards.header import MAX_ROW_TOKENS, REBUILD, ShardHeader
from bert_trainer.dataset.shards.ragged import RaggedSamples, UnorderedSegmentsError
from bert_trainer.dataset.shards.samples import DATASETS, Samples
from bert_trainer.dataset.shards.tfrecord_file import (
    note_path,
    opened_records,
    read_end,
    read_first,
    read_note,
    read_records,
    record_offsets,
    write_note,
    write_records,
)
from bert_trainer.errors import InputError
from bert_trainer.system.atomic_files import replaced_atomically, write_atomically

_BLOCK_BYTES = 1 << 21
"""Of records that are parsed at a time: each byte takes up to 20 bytes of numbers meanwhile."""
_ROWS_WRITTEN = 1024
_VERIFY = "list all that is wrong with 'bert-data verify FOLDER'"


def header(path: Path) -> ShardHeader:
    """Check everything but the rows. Follows the lengths of all records, since nothing states their number."""
    with opened_records(path) as file:
        first = read_first(path, file)
        end = read_end(file)
    note = _note(path) | {"content": end.hex()}
    if first is None:
        return ShardHeader(**note | {"rows": 0})
    widths = _widths(path, first)
    shape = {"sequence_length": widths.sequence_length, "max_predictions": widths.max_predictions}
    return ShardHeader(**note | shape | {"rows": len(record_offsets(path, widths.min_bytes)) - 1})


def _note(path: Path) -> dict[str, Any]:
    """Return the fields of the header that are in the note, None for missing ones."""
    found = read_note(path)

    def value(name: str, kind: type) -> Any:
        given = found.get(name)
        return given if isinstance(given, kind) and not isinstance(given, bool) else None

    def size(name: str) -> int | None:
        given = value(name, int)
        return given if given is not None and 1 <= given <= MAX_ROW_TOKENS else None

    return {
        "sequence_length": size("sequence_length"),
        "max_predictions": size("max_predictions"),
        "vocabulary_sha256": value("vocabulary_sha256", str),
        "generator_version": value("generator_version", int),
        "made_from": value("made_from", str),
        "layout": "tfrecord",
    }


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


def write(
    path: Path, blocks: Iterable[RaggedSamples | Samples], shape: tuple[int, int], note: Mapping[str, Any]
) -> None:
    """Write a file atomically, and its note before it. Memory: a block, padded.

    note: the header's fields that the records do not hold.

    Raises:
        TrainerError, InputError: as ``atomic_files.disk_errors``.
    """
    with replaced_atomically(path) as partial:
        with partial.open("wb") as file:
            for block in blocks:
                for start in range(0, len(block), _ROWS_WRITTEN):
                    part = block.take(slice(start, start + _ROWS_WRITTEN))
                    padded = part.to_padded(*shape) if isinstance(part, RaggedSamples) else part
                    write_records(file, encode_examples(padded))
        # First: a shard that has no note is built again, one that has another's does not exist.
        write_atomically(note_path(path), write_note(path, partial, note.items()))
