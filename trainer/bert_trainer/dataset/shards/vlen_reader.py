"""Reads values of variable length from HDF5's global heaps, without HDF5.

HDF5 stores such values in heaps without checksums and trusts their content: in a damaged file it loops forever, within
one call that no signal interrupts, or reads beyond its memory. So references and heaps are parsed here, and every
number is checked against the size of the file. Format: "HDF5 File Format Specification, version 3.0", III.E (global
heap) and IV.A.2.d (a reference: length, heap, object).
"""

from __future__ import annotations

import mmap
import struct
import zlib
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

# A heap collection: signature "GCOL", version 1, three reserved bytes, size of the collection with this header.
_HEAP_HEADER = struct.Struct("<4sB3xQ")
# A heap object: number, reference count, four reserved bytes, size without header and padding to eight bytes.
_OBJECT_HEADER = struct.Struct("<HHIQ")
# What a row stores: its number of values, the address of the heap collection, the number of the object in it. The
# eight-byte address follows four bytes directly: a NumPy structure without alignment, as in the file.
_REFERENCE = np.dtype([("count", "<u4"), ("heap", "<u8"), ("object", "<u4")])


def read_counts(dataset: h5py.Dataset, rows: slice = slice(None)) -> NDArray[np.int64]:
    """Return the number of values of every row; the heaps are not read.

    Raises:
        ValueError: the dataset is damaged or stored in an unsupported way; ``header.opened`` adds the file's name.
    """
    return _references(dataset, rows)["count"].astype(np.int64)


def read_values(dataset: h5py.Dataset, rows: slice = slice(None)) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Return the values of all rows end to end, and the number of values of each row.

    Raises:
        ValueError: as ``read_counts``.
    """
    references = _references(dataset, rows)
    dtype = np.dtype(h5py.check_vlen_dtype(dataset.dtype))
    counts = references["count"].astype(np.int64)
    parts = []
    # Addresses in the file count from behind the user block.
    path, base = Path(dataset.file.filename), dataset.file.userblock_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        # Each row has its own object, so all values together are smaller than the file. Without this bound a small
        # file whose rows refer to one object many times would expand to gigabytes.
        if int(counts.sum()) * dtype.itemsize > len(content):
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
                # Heaps that overlap would each be indexed: quadratic time and memory in a crafted file.
                if unread < 0:
                    raise ValueError(f"the heap at byte {start} overlaps others")
            content_of_row = _object(content, heaps[start].get(number))
            if content_of_row is None or len(content_of_row) != count * dtype.itemsize:
                raise ValueError(f"the heap at byte {start} holds no object {number} of {count} values")
            parts.append(content_of_row)
    return np.frombuffer(b"".join(parts), dtype), counts


def _read_heap(content: mmap.mmap, start: int) -> tuple[dict[int, int], int]:
    """Return the offset of every object in the heap at ``start``, by the object's number, and the heap's size."""
    if start + _HEAP_HEADER.size > len(content):
        raise ValueError(f"a heap should begin at byte {start}, behind the end of the file")
    signature, version, size = _HEAP_HEADER.unpack_from(content, start)
    end = start + size
    if (signature, version) != (b"GCOL", 1) or size < _HEAP_HEADER.size or end > len(content):
        raise ValueError(f"there is no complete heap at byte {start}")
    offsets: dict[int, int] = {}
    offset = start + _HEAP_HEADER.size
    # Fewer bytes than an object's header at the end are free space that has no header either.
    while end - offset >= _OBJECT_HEADER.size:
        number, _, _, length = _OBJECT_HEADER.unpack_from(content, offset)
        if number == 0:  # object 0 is the free space, always last
            break
        # Sizes exclude the padding to eight bytes. A step is never 0, so damage cannot make this loop endless.
        step = _OBJECT_HEADER.size + (length + 7) // 8 * 8
        if step > end - offset:
            raise ValueError(f"the object at byte {offset} of a heap has {length} bytes")
        offsets[number] = offset
        offset += step
    return offsets, size


def _object(content: mmap.mmap, offset: int | None) -> bytes | None:
    if offset is None:
        return None
    *_, length = _OBJECT_HEADER.unpack_from(content, offset)
    return content[offset + _OBJECT_HEADER.size : offset + _OBJECT_HEADER.size + length]


def _references(dataset: h5py.Dataset, rows: slice) -> NDArray[np.void]:
    """Return the references to the heaps that the rows themselves hold."""
    if dataset.file.id.get_create_plist().get_sizes() != (8, 8):
        raise ValueError("its addresses are not eight bytes long, which this version does not read")
    (total,) = dataset.shape
    first, stop, _ = rows.indices(total)
    if stop <= first:
        return np.zeros(0, _REFERENCE)
    # Also for compressed references, of which a few bytes may stand for millions of rows: a row has at least one token,
    # hence an object with a header in the file.
    if (stop - first) * _OBJECT_HEADER.size > Path(dataset.file.filename).stat().st_size:
        raise ValueError(f"dataset {dataset.name!r} has {total} rows, more than the file has room for")
    if dataset.chunks is not None:
        return _chunked_references(dataset, first, stop)
    offset = dataset.id.get_offset()
    if offset is None:
        raise ValueError(f"dataset {dataset.name!r} was never written")
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
    # Filters are applied in order when writing, so undone in reverse; a bit of the chunk's mask means "was skipped".
    start = first // length * length
    chunks = []
    for row in range(start, stop, length):
        skipped, stored = dataset.id.read_direct_chunk((row,))
        for position, code in reversed(list(enumerate(codes))):
            if not skipped >> position & 1:
                stored = _unfiltered(stored, code, length * _REFERENCE.itemsize)
        chunks.append(_as_references(stored, length))
    return np.concatenate(chunks)[first - start : stop - start]


def _unfiltered(stored: bytes, code: int, num_bytes: int) -> bytes:
    # Bounded: what a damaged chunk inflates to beyond its size is not produced, and the length is checked afterwards.
    if code == h5py.h5z.FILTER_SHUFFLE:
        if len(stored) != num_bytes:
            raise ValueError(f"a chunk has {len(stored)} bytes, expected {num_bytes}")
        # The filter stores the first bytes of all elements, then the second ones, and so on.
        return np.frombuffer(stored, np.uint8).reshape(_REFERENCE.itemsize, -1).T.tobytes()
    try:
        return zlib.decompressobj().decompress(stored, num_bytes)
    except zlib.error as error:
        raise ValueError(f"a chunk cannot be decompressed: {error}") from error


def _as_references(stored: bytes, count: int) -> NDArray[np.void]:
    if len(stored) != count * _REFERENCE.itemsize:
        raise ValueError(f"{count} rows should have {count * _REFERENCE.itemsize} bytes, there are {len(stored)}")
    return np.frombuffer(stored, _REFERENCE)
