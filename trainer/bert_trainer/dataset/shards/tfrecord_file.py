"""The file around records of TensorFlow: lengths and checksums, and where each record begins.

A record is eight bytes of length, a masked CRC-32C of these, the content, and a masked CRC-32C of that
(``tensorflow/core/lib/io/record_writer.h``). Nothing states how many there are, so the lengths are followed once from
the first to the last; every number is checked against the size of the file first.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards.header import REBUILD
from bert_trainer.errors import InputError
from bert_trainer.system.crc32c import masked_crc32c
from bert_trainer.system.files import unreadable

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
FRAME_BYTES = HEADER.size + FOOTER.size
MAX_RECORD_BYTES = 1 << 20
"""A row of 32,768 tokens takes less."""

_NAME = re.compile(r"\.(tfrecords?|tf_record)(?=(-\d+-of-\d+)?$)")
_GZIP = b"\x1f\x8b"
_READ_AHEAD_BYTES = 1 << 20
_LENGTHS_AT_ONCE = 1 << 16


def has_tfrecord_name(path: Path) -> bool:
    """Return whether a name says so: ``a.tfrecord``, ``a.tfrecords-00000-of-00010``."""
    return _NAME.search(path.name) is not None


def is_tfrecord(path: Path) -> bool:
    """Return whether a file is one by its name or, of a name that says nothing, by its first bytes.

    MLPerf's files are called ``part-00000-of-00500``, like the text that they are made from.
    """
    if has_tfrecord_name(path):
        return True
    if path.suffix in (".hdf5", ".h5"):
        return False
    try:
        with path.open("rb") as file:
            start = file.read(HEADER.size)
    except OSError:
        return False  # whoever opens it next reports that
    return len(start) == HEADER.size and masked_crc32c(start[:8]) == HEADER.unpack(start)[1]


def without_suffix(name: str) -> str:
    """Return a file's name without what says that it holds records; ``a.tfrecord-1-of-2`` becomes ``a-1-of-2``."""
    return _NAME.sub("", name)


@contextmanager
def opened_records(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; errors of the disk become InputErrors that name it."""
    try:
        with path.open("rb", buffering=_READ_AHEAD_BYTES) as file:
            yield file
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file", hint=REBUILD) from error
    except OSError as error:
        raise unreadable(path, error) from error


def read_first(path: Path, file: BinaryIO) -> bytes | None:
    """Return the first record; None of an empty file.

    Raises:
        InputError: it is compressed, cut off or damaged.
    """
    start = file.read(HEADER.size)
    if not start:
        return None
    if start[:2] == _GZIP:
        raise InputError(
            f"{path}: got a TFRecord file compressed with gzip; allowed: uncompressed ones",
            hint="decompress it: its rows are read in any order, which compression does not allow",
        )
    length = _length(path, start, 0, 0, os.fstat(file.fileno()).st_size, 0)
    content = file.read(length)
    footer = file.read(FOOTER.size)
    if FOOTER.unpack(footer)[0] != masked_crc32c(content):
        raise _damaged(path, 0, "its content does not match its checksum")
    return content


def _length(path: Path, start: bytes, at: int, record: int, file_bytes: int, min_bytes: int) -> int:
    """Return the length of a record whose header was read, checked against what the file has room for."""
    if len(start) < HEADER.size:
        raise _damaged(path, record, f"the file ends in the middle of its length, at byte {at + len(start)}")
    length: int
    length, checksum = HEADER.unpack(start)
    if checksum != masked_crc32c(start[:8]):
        raise _damaged(path, record, "its length does not match its checksum")
    if not max(min_bytes, 4) <= length <= MAX_RECORD_BYTES:
        raise InputError(
            f"{path}: record {record} states a length of {length} bytes; allowed: {max(min_bytes, 4)} to "
            f"{MAX_RECORD_BYTES}",
            hint="shards hold rows of create_pretraining_data.py, all of one sequence length",
        )
    left = file_bytes - at - FRAME_BYTES
    if length > left:
        raise _damaged(path, record, f"is cut off: it has {length} bytes, {max(0, left)} are left of the file")
    return length


def _damaged(path: Path, record: int, problem: str) -> InputError:
    return InputError(f"{path}: damaged or not a TFRecord file: record {record}: {problem}", hint=REBUILD)


def record_offsets(path: Path, min_bytes: int) -> NDArray[np.int64]:
    """Return where each record begins, and where the last one ends, (records + 1,); kept for the last few files.

    min_bytes: of a record; bounds the number of them, which nothing else states.

    Raises:
        InputError: a length is damaged or not allowed, or the file ends within a record.
    """
    state = path.stat()
    return _offsets(path, state.st_size, state.st_mtime_ns, min_bytes)


@lru_cache(maxsize=8)
def _offsets(path: Path, file_bytes: int, modified_ns: int, min_bytes: int) -> NDArray[np.int64]:
    """Follow the lengths. modified_ns: distinguishes a file from its replacement."""
    parts: list[NDArray[np.int64]] = []
    at, first = 0, 0
    with opened_records(path) as file:
        while at < file_bytes:
            offsets: list[int] = []
            while at < file_bytes and len(offsets) < _LENGTHS_AT_ONCE:
                file.seek(at)
                start = file.read(HEADER.size)
                length = _length(path, start, at, first + len(offsets), file_bytes, min_bytes)
                offsets.append(at)
                at += length + FRAME_BYTES
            parts.append(np.array(offsets, np.int64))
            first += len(offsets)
    return np.concatenate([*parts, np.array([at], np.int64)])


def read_records(
    path: Path, file: BinaryIO, offsets: NDArray[np.int64], first_record: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Read some records at once; return a buffer, and where each one's content begins and ends in it, (n,) each.

    offsets: (n + 1,), as ``record_offsets``.

    Raises:
        InputError: a record does not match its checksum, or the file has been changed.
    """
    file.seek(int(offsets[0]))
    stored = file.read(int(offsets[-1] - offsets[0]))
    content = np.frombuffer(stored, np.uint8)
    if len(content) != offsets[-1] - offsets[0]:
        raise _damaged(path, first_record, "the file has become shorter while it was read")
    starts = offsets[:-1] - offsets[0] + HEADER.size
    ends = offsets[1:] - offsets[0] - FOOTER.size
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        if FOOTER.unpack_from(stored, end)[0] != masked_crc32c(stored[start:end]):
            raise _damaged(path, first_record + row, "its content does not match its checksum")
    return content, starts, ends


def read_end(file: BinaryIO) -> bytes:
    """Return the last bytes of a file, which are the checksum of its last record."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - FOOTER.size))
    return file.read()
