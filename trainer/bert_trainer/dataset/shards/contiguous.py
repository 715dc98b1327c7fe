"""Files of contiguous datasets, filled in blocks.

Values go past HDF5, which reports a full disk unreliably; the disk's room is taken before the first of them. The bytes
are those that h5py writes when it is given each dataset whole.
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

TakeRoom = Callable[[int], None]
"""Takes so many bytes of the disk before they are written, or raises OSError."""


@dataclass(frozen=True, slots=True)
class Column:
    """A dataset that is to be made."""

    shape: tuple[int, ...]
    """The first of them are the rows, of whatever kind."""
    kind: np.dtype

    @property
    def num_bytes(self) -> int:
        """Return what it takes in the file."""
        return prod(self.shape) * self.kind.itemsize


def reserve(file: h5py.File, columns: Mapping[str, Column], *, checksums: bool) -> None:
    """Make all datasets without their values, for ``fill``. checksums: keep one of each in an attribute."""
    for name, column in columns.items():
        dataset = file.create_dataset(name, column.shape, column.kind)
        if prod(column.shape):
            # The first write gives the whole dataset its place.
            dataset[(0,) * len(column.shape)] = 0
        if checksums:
            dataset.attrs["crc32"] = np.uint32(0)


def fill(
    path: Path,
    columns: Mapping[str, Column],
    blocks: Iterable[Mapping[str, NDArray[np.integer]]],
    *,
    checksums: bool,
    version: tuple[str, str] | None,
) -> None:
    """Write the values of a file that ``reserve`` has made. blocks: some rows of every dataset. version: of HDF5.

    Raises:
        OSError: the disk is full, or fails.
    """
    filled = [name for name, column in columns.items() if prod(column.shape)]
    with h5py.File(path) as file:
        at = {name: file[name].id.get_offset() for name in filled}
    sums = dict.fromkeys(columns, 0)
    with path.open("r+b") as raw:
        os.posix_fallocate(raw.fileno(), 0, max(1, raw.seek(0, os.SEEK_END)))
        for block in blocks:
            for name in filled:
                values = np.ascontiguousarray(block[name].astype(columns[name].kind))
                sums[name] = zlib.crc32(values.data, sums[name]) if checksums else 0
                raw.seek(at[name])
                at[name] += raw.write(values.data)
    if checksums:
        with h5py.File(path, "r+", libver=version) as file:
            for name, checksum in sums.items():
                file[name].attrs.modify("crc32", np.uint32(checksum))
