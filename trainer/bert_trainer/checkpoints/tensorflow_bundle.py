"""TensorFlow's tensor bundle: the two kinds of files that one of its checkpoints consists of.

``PREFIX.index`` is a table (``leveldb_table``) from the names of tensors to where their bytes lie;
``PREFIX.data-00000-of-00001`` and its siblings hold those bytes, little-endian, row by row. Source: TensorFlow's
``core/protobuf/tensor_bundle.proto`` (the messages) and ``core/util/tensor_bundle/tensor_bundle.h`` (the files).

Reads what is asked for and nothing else, and checks the stored checksum of that. Whole tensors of floating-point
numbers only: no slices of partitioned variables, no strings. Knows nothing of BERT.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_job.foreign_text import printable
from bert_trainer.checkpoints.leveldb_table import read_table, write_table
from bert_trainer.checkpoints.protobuf_wire import Fields, encode_fields, integer, messages, read_fields
from bert_trainer.errors import InputError
from bert_trainer.system.crc32c import extend, mask

_MAX_INDEX_BYTES = 16 << 20
"""MLPerf's, of BERT-large with optimizer state, has 0.1 MB."""
_MAX_RANK = 32
_MAX_ELEMENTS = 1 << 56
"""Whose bytes can still be counted in 64 bits, also where nothing else bounds a shape: that of strings."""
_PIECE_BYTES = 4 << 20
_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 2: np.dtype("<f8"), 19: np.dtype("<f2")}
"""By ``DataType`` of TensorFlow's ``core/framework/types.proto``."""
_OTHER_DTYPES = {3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 9: "int64", 10: "bool", 14: "bfloat16"}
_FLOAT32 = 1
# What this reader understands; a bundle names the oldest version that may read it.
_VERSION = 1
_HEADER_KEY = b""
# Slices of partitioned variables have keys that are no names, beginning with a zero.
_SLICE_PREFIX = b"\0"
_COPY_AGAIN = "copy the checkpoint's files again, all of them"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies, as the index claims; checked against the sizes of the files."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    """In bytes, within its data file."""
    size: int
    """In bytes."""
    checksum: int
    """Masked CRC-32C of the bytes."""
    is_partitioned: bool
    """Whether the bytes lie in slices elsewhere."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The index of a checkpoint; tensors are read when asked for."""

    prefix: Path
    num_shards: int
    entries: Mapping[str, Entry]

    def read(self, name: str) -> NDArray[Any]:
        """Read a tensor and check its checksum. Takes the memory that the entry's shape says: look at that before.

        Raises:
            InputError: it is damaged, partitioned, or no tensor of floating-point numbers.
            OSError: the file cannot be read.
        """
        entry = self.entries[name]
        path = data_path(self.prefix, entry.shard, self.num_shards)
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None or entry.is_partitioned:
            got = "a partitioned variable" if entry.is_partitioned else _describe_dtype(entry.dtype)
            raise InputError(
                f"{path}: {printable(name)}: got {got}; allowed: whole tensors of {_describe_allowed()}",
                hint="save the checkpoint anew with TensorFlow, without partitioner and in single precision",
            )
        array: NDArray[Any] = np.empty(entry.shape, dtype)
        target = array.reshape(-1).view(np.uint8)
        at, checksum = 0, 0
        with path.open("rb", buffering=0) as file:
            file.seek(entry.offset)
            while at < entry.size and (piece := file.read(min(_PIECE_BYTES, entry.size - at))):
                checksum = extend(checksum, piece)
                target[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
                at += len(piece)
        if at < entry.size or mask(checksum) != entry.checksum:
            raise InputError(
                f"{path}: {printable(name)}: got {at} bytes with checksum {mask(checksum):#x}; allowed: "
                f"{entry.size} with {entry.checksum:#x}",
                hint=_COPY_AGAIN,
            )
        return array


def index_path(prefix: Path) -> Path:
    """Return the path of a checkpoint's index."""
    return prefix.with_name(f"{prefix.name}.index")


def data_path(prefix: Path, shard: int, num_shards: int) -> Path:
    """Return the path of one of its data files."""
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}")


def open_bundle(prefix: Path) -> Bundle:
    """Read the index of a checkpoint and compare it with the sizes of its data files.

    Raises:
        InputError: a file is missing, damaged, cut off, or not such a file.
        OSError: a file cannot be read.
    """
    path = index_path(prefix)
    num_bytes = path.stat().st_size
    if num_bytes > _MAX_INDEX_BYTES:
        raise InputError(
            f"{path}: got {num_bytes} bytes; allowed: {_MAX_INDEX_BYTES}",
            hint="name the checkpoint of one BERT",
        )
    try:
        num_shards, entries = _parse(path.read_bytes())
    except ValueError as error:
        raise InputError(
            f"{path}: not a readable index of a TensorFlow checkpoint: {error}", hint=_COPY_AGAIN
        ) from error
    bundle = Bundle(prefix, num_shards, entries)
    _check_data_files(bundle)
    return bundle


def _parse(content: bytes) -> tuple[int, dict[str, Entry]]:
    table = iter(read_table(content))
    key, header = next(table, (None, b""))
    if key != _HEADER_KEY:
        raise ValueError("got no header; allowed: one under the empty key")
    num_shards = _parse_header(read_fields(header))
    entries = {}
    for key, value in table:
        if key.startswith(_SLICE_PREFIX):
            continue  # whoever needs them is marked as partitioned
        try:
            name = key.decode()
        except UnicodeDecodeError:
            raise ValueError(f"got a tensor called {key[:100]!r}; allowed: names in UTF-8") from None
        try:
            entries[name] = _parse_entry(read_fields(value), num_shards)
        except ValueError as error:
            raise ValueError(f"{printable(name)}: {error}") from error
    return num_shards, entries


def _parse_header(header: Fields) -> int:
    """Return the number of data files."""
    if integer(header, 2):
        raise ValueError("got big-endian tensors; allowed: little-endian ones")
    for version in messages(header, 3):
        if integer(version, 2) > _VERSION:
            raise ValueError(f"got a bundle for readers of version {integer(version, 2)}; allowed: {_VERSION}")
    num_shards = integer(header, 1)
    if not 1 <= num_shards <= 99_999:
        raise ValueError(f"got {num_shards} data files; allowed: 1 to 99999")
    return num_shards


def _parse_entry(fields: Fields, num_shards: int) -> Entry:
    dimensions = [dimension for shape in messages(fields, 2) for dimension in messages(shape, 2)]
    if len(dimensions) > _MAX_RANK:
        raise ValueError(f"got {len(dimensions)} dimensions; allowed: {_MAX_RANK}")
    entry = Entry(
        dtype=integer(fields, 1),
        shape=tuple(integer(dimension, 1) for dimension in dimensions),
        shard=integer(fields, 3),
        offset=integer(fields, 4),
        size=integer(fields, 5),
        checksum=integer(fields, 6),
        is_partitioned=7 in fields,
    )
    if min(entry.shape, default=0) < 0 or entry.offset < 0 or entry.size < 0:
        raise ValueError(
            f"got shape {list(entry.shape)}, {entry.size} bytes at byte {entry.offset}; allowed: nothing below 0"
        )
    if prod(max(length, 1) for length in entry.shape) > _MAX_ELEMENTS:
        raise ValueError(f"got shape {list(entry.shape)}; allowed: {_MAX_ELEMENTS} elements")
    if not 0 <= entry.shard < num_shards:
        raise ValueError(f"got data file number {entry.shard}; allowed: below {num_shards}")
    dtype = _DTYPES.get(entry.dtype)
    if dtype is not None and not entry.is_partitioned and entry.size != prod(entry.shape) * dtype.itemsize:
        raise ValueError(
            f"got {entry.size} bytes; allowed: {prod(entry.shape) * dtype.itemsize}, those of shape "
            f"{list(entry.shape)} in {dtype.name}"
        )
    return entry


def _check_data_files(bundle: Bundle) -> None:
    """Refuse entries that overlap, and data files that are missing, end too early, or are no files.

    Raises:
        InputError: as above.
    """
    ends: dict[int, int] = {}
    placed = sorted(
        (entry.shard, entry.offset, entry.size, name) for name, entry in bundle.entries.items() if entry.size
    )
    for shard, offset, size, name in placed:
        if offset < ends.get(shard, 0):
            raise InputError(
                f"{index_path(bundle.prefix)}: {printable(name)}: got byte {offset} of data file {shard} as its first; "
                f"allowed: {ends[shard]} or later, behind the tensor before",
                hint=_COPY_AGAIN,
            )
        ends[shard] = offset + size
    # Also those of empty tensors alone: whatever is named may be opened.
    for shard in sorted({entry.shard for entry in bundle.entries.values()}):
        path, end = data_path(bundle.prefix, shard, bundle.num_shards), ends.get(shard, 0)
        try:
            state = path.stat()
        except FileNotFoundError:
            raise InputError(f"{path}: got no such file; allowed: all that the index names", hint=_COPY_AGAIN) from None
        if not stat.S_ISREG(state.st_mode):
            raise InputError(f"{path}: got a folder, a pipe or a device; allowed: a file", hint=_COPY_AGAIN)
        if state.st_size < end:
            raise InputError(
                f"{path}: got {state.st_size} bytes; allowed: the {end} that the index names", hint=_COPY_AGAIN
            )


def _describe_dtype(number: int) -> str:
    return f"type {_OTHER_DTYPES.get(number, f'number {number}')}"


def _describe_allowed() -> str:
    return ", ".join(dtype.name for dtype in _DTYPES.values())


def write_bundle(prefix: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[NDArray[np.float32]]) -> None:
    """Write a checkpoint of one data file, in single precision, and wait until it has reached the disk.

    Args:
        prefix: Path of the files without their endings.
        shapes: Names and shapes of the tensors, in the order of the names.
        tensors: The tensors in that order, taken one at a time.

    Raises:
        OSError: the disk is full, or fails.
    """
    assert list(shapes) == sorted(shapes), "a table's keys stand in order"
    version = encode_fields({1: _VERSION})
    entries = [(_HEADER_KEY, encode_fields({1: 1, 3: version}))]
    offset = 0
    with data_path(prefix, 0, 1).open("wb") as file:
        for (name, shape), tensor in zip(shapes.items(), tensors, strict=True):
            assert tensor.shape == shape, name
            checksum = 0
            for piece in _pieces(tensor):
                checksum = extend(checksum, piece)
                file.write(piece)
            dimensions = [encode_fields({1: size}) for size in shape]
            place: dict[int, int | bytes | Sequence[bytes]] = {
                1: _FLOAT32,
                2: encode_fields({2: dimensions}),
                4: offset,
                5: tensor.nbytes,
            }
            entries.append((name.encode(), encode_fields(place, {6: mask(checksum)})))
            offset += tensor.nbytes
        file.flush()
        os.fsync(file.fileno())
    with index_path(prefix).open("wb") as file:
        file.write(write_table(entries))
        file.flush()
        os.fsync(file.fileno())


def _pieces(tensor: NDArray[np.float32]) -> Iterator[bytes]:
    flat = np.ascontiguousarray(tensor, "<f4").reshape(-1).view(np.uint8)
    for at in range(0, len(flat), _PIECE_BYTES):
        yield flat[at : at + _PIECE_BYTES].tobytes()
