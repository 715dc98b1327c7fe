"""Values of variable length, read from HDF5's global heaps without HDF5.

HDF5 keeps such values in heaps without checksums and trusts what stands there: in a damaged file it goes round
for ever, within one call that no signal ends, or reads memory that is not its own. So the references and heaps
are read here, every number checked against the size of the file. Their form is that of "HDF5 File Format
Specification, version 3.0", III.E (global heap) and IV.A.2.d (a reference: length, heap, object).
"""

from __future__ import annotations

import mmap
import struct
import zlib
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

_HEAP_HEADER = struct.Struct("<4sB3xQ")
_OBJECT_HEADER = struct.Struct("<HHIQ")
_REFERENCE = np.dtype([("count", "<u4"), ("heap", "<u8"), ("object", "<u4")])
REFERENCE_BYTES = _REFERENCE.itemsize


def read_counts(dataset: h5py.Dataset, rows: slice = slice(None)) -> NDArray[np.int64]:
    """Return the number of values in every row, without looking at the values.

    Raises:
        ValueError: the dataset is damaged or stored in an unknown way; ``header.opened`` adds the file's name.
    """
    return _references(dataset, rows)["count"].astype(np.int64)


def read_values(dataset: h5py.Dataset, rows: slice = slice(None)) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Return the values of all rows end to end, and the number of each row's. Raises ValueError as above."""
    references = _references(dataset, rows)
    kind = np.dtype(h5py.check_vlen_dtype(dataset.dtype))
    counts = references["count"].astype(np.int64)
    parts = []
    path, base = Path(dataset.file.filename), dataset.file.userblock_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        # Each row has an object of its own and each heap its own bytes: together they are less than the file.
        if int(counts.sum()) * kind.itemsize > len(content):
            raise ValueError(f"its rows would hold {counts.sum()} values, more than the file has room for")
        heaps: dict[int, dict[int, int]] = {}
        unread = len(content)
        for count, heap, number in references.tolist():
            if not count:
                continue
            start = heap + base
            if start not in heaps:
                heaps[start], size = _read_heap(content, start)
                unread -= size
                if unread < 0:
                    raise ValueError(f"the heap at byte {start} lies in others")
            found = _object(content, heaps[start].get(number))
            if found is None or len(found) != count * kind.itemsize:
                raise ValueError(f"the heap at byte {start} holds no object {number} of {count} values")
            parts.append(found)
    return np.frombuffer(b"".join(parts), kind), counts


def _read_heap(content: mmap.mmap, start: int) -> tuple[dict[int, int], int]:
    """Return the place of every object of the heap that begins at ``start``, by its number, and the heap's bytes."""
    if start + _HEAP_HEADER.size > len(content):
        raise ValueError(f"a heap should begin at byte {start}, behind the file's end")
    signature, version, size = _HEAP_HEADER.unpack_from(content, start)
    end = start + size
    if (signature, version) != (b"GCOL", 1) or size < _HEAP_HEADER.size or end > len(content):
        raise ValueError(f"there is no whole heap at byte {start}")
    places: dict[int, int] = {}
    place = start + _HEAP_HEADER.size
    # A rest that is too small for an object is free space.
    while end - place >= _OBJECT_HEADER.size:
        number, _, _, length = _OBJECT_HEADER.unpack_from(content, place)
        if number == 0:  # the free space, which is last
            break
        step = _OBJECT_HEADER.size + (length + 7) // 8 * 8
        if step > end - place:
            raise ValueError(f"the object at byte {place} of a heap has {length} bytes")
        places[number] = place
        place += step
    return places, size


def _object(content: mmap.mmap, place: int | None) -> bytes | None:
    if place is None:
        return None
    *_, length = _OBJECT_HEADER.unpack_from(content, place)
    return content[place + _OBJECT_HEADER.size : place + _OBJECT_HEADER.size + length]


def _references(dataset: h5py.Dataset, rows: slice) -> NDArray[np.void]:
    """Return what the rows themselves hold: references to the heaps."""
    if dataset.file.id.get_create_plist().get_sizes() != (8, 8):
        raise ValueError("its addresses have other than eight bytes, which this version does not read")
    (total,) = dataset.shape
    first, stop, _ = rows.indices(total)
    if stop <= first:
        return np.zeros(0, _REFERENCE)
    # Also where the references themselves are compressed: a row of no values has no token, and the others have theirs.
    if (stop - first) * _OBJECT_HEADER.size > Path(dataset.file.filename).stat().st_size:
        raise ValueError(f"dataset {dataset.name!r} has {total} rows, more than the file has room for")
    if dataset.chunks is not None:
        return _chunked_references(dataset, first, stop)
    offset = dataset.id.get_offset()
    if offset is None:
        raise ValueError(f"dataset {dataset.name!r} holds nothing")
    with Path(dataset.file.filename).open("rb") as file:
        file.seek(offset + first * _REFERENCE.itemsize)
        return _as_references(file.read((stop - first) * _REFERENCE.itemsize), stop - first)


def _chunked_references(dataset: h5py.Dataset, first: int, stop: int) -> NDArray[np.void]:
    (length,) = dataset.chunks
    if dataset.id.get_num_chunks() < -(-dataset.shape[0] // length):
        raise ValueError(f"dataset {dataset.name!r} lacks chunks")
    filters = dataset.id.get_create_plist()
    codes = [filters.get_filter(number)[0] for number in range(filters.get_nfilters())]
    if not set(codes) <= {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE}:
        raise ValueError(f"dataset {dataset.name!r} has filters other than gzip and shuffle: {codes}")
    start = first // length * length
    chunks = []
    for place in range(start, stop, length):
        skipped, stored = dataset.id.read_direct_chunk((place,))
        for position, code in reversed(list(enumerate(codes))):
            if not skipped >> position & 1:
                stored = _unfiltered(stored, code, length * _REFERENCE.itemsize)
        chunks.append(_as_references(stored, length))
    return np.concatenate(chunks)[first - start : stop - start]


def _unfiltered(stored: bytes, code: int, num_bytes: int) -> bytes:
    if code == h5py.h5z.FILTER_SHUFFLE:
        if len(stored) != num_bytes:
            raise ValueError(f"a chunk has {len(stored)} bytes, wanted {num_bytes}")
        return np.frombuffer(stored, np.uint8).reshape(_REFERENCE.itemsize, -1).T.tobytes()
    try:
        return zlib.decompressobj().decompress(stored, num_bytes)
    except zlib.error as error:
        raise ValueError(f"a chunk cannot be decompressed: {error}") from error


def _as_references(stored: bytes, count: int) -> NDArray[np.void]:
    if len(stored) != count * _REFERENCE.itemsize:
        raise ValueError(f"{count} rows should have {count * _REFERENCE.itemsize} bytes, there are {len(stored)}")
    return np.frombuffer(stored, _REFERENCE)
