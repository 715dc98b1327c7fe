"""Files of contiguous datasets, written in blocks.

HDF5 creates the datasets; the values are written to the file without it, since it reports a full disk unreliably. The
disk space is allocated before the first value. The bytes are those that h5py writes when given each dataset whole.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

ReserveSpace = Callable[[int], None]
"""Allocates this many bytes on the disk before they are written, or raises OSError."""


@dataclass(frozen=True, slots=True)
class Column:
    """A dataset to create."""

    shape: tuple[int, ...]
    """The first dimension is that of the rows, or of the values of all rows end to end."""
    dtype: np.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return prod(self.shape) * self.dtype.itemsize


def create_datasets(file: h5py.File, columns: Mapping[str, Column], *, checksums: bool) -> None:
    """Create all datasets without their values, for ``fill``. checksums: reserve an attribute for one of each."""
    for name, column in columns.items():
        dataset = file.create_dataset(name, column.shape, column.dtype)
        if prod(column.shape):
            # HDF5 allocates a contiguous dataset late, with its first write; without one it has no offset to write at.
            dataset[(0,) * len(column.shape)] = 0
        if checksums:
            # Now, although its value is not known: added later it could need another block of the object header,
            # and the bytes would differ from those of a file that is written whole.
            dataset.attrs["crc32"] = np.uint32(0)


def fill(
    path: Path,
    columns: Mapping[str, Column],
    blocks: Iterable[Mapping[str, NDArray[np.integer]]],
    *,
    checksums: bool,
    version: tuple[str, str] | None,
) -> None:
    """Write the values into a file of ``create_datasets``.

    Args:
        path: the file, which must not be open.
        columns: its datasets.
        blocks: some rows of every dataset, in order.
        checksums: whether to store the CRC-32 of every dataset.
        version: oldest and newest HDF5 format, as when the file was created.

    Raises:
        OSError: the disk is full, or fails.
    """
    filled = [name for name, column in columns.items() if prod(column.shape)]
    with h5py.File(path) as file:
        at = {name: file[name].id.get_offset() for name in filled}
    sums = dict.fromkeys(columns, 0)
    with path.open("r+b") as raw:
        # No sparse blocks are left: a write can no longer find the disk full.
        os.posix_fallocate(raw.fileno(), 0, max(1, raw.seek(0, os.SEEK_END)))
        for block in blocks:
            for name in filled:
                values = np.ascontiguousarray(block[name].astype(columns[name].dtype))
                sums[name] = zlib.crc32(values.data, sums[name]) if checksums else 0
                raw.seek(at[name])
                at[name] += raw.write(values.data)
    if checksums:
        # Through HDF5, which also keeps a checksum of its own over the object header; modified in place, same size.
        with h5py.File(path, "r+", libver=version) as file:
            for name, checksum in sums.items():
                file[name].attrs.modify("crc32", np.uint32(checksum))
