"""Writes files in blocks, so that memory does not grow with their size; the bytes are those of ``write_shard``.

HDF5 crashes the interpreter if the disk is full when a file is closed. So disk space is allocated first: for contiguous
datasets all at once, for others block by block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from bert_job.dataset_names import LayoutName
from bert_trainer.dataset.shards import compact, contiguous, fixed, tfrecord, variable
from bert_trainer.dataset.shards.attributes import errors_naming, name_attributes, unknown_layout, write_attributes
from bert_trainer.dataset.shards.packing import window_rows
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.totals import Totals
from bert_trainer.system.atomic_files import replaced_atomically

SampleBlocks = Callable[[], Iterator[RaggedSamples]]
"""Yields all samples in order, anew with each call."""

_CONTIGUOUS = {kind.name: kind for kind in (fixed.INTEL, fixed.MLPERF)}
# Allocated ahead for what HDF5 caches and writes later: chunks of a dataset, and metadata.
_SPARE_BYTES = 1 << 24


def write_shard_blocks(
    path: Path,
    totals: Totals,
    blocks: SampleBlocks,
    *,
    vocabulary_sha256: str | None,
    generator_version: int | None,
    shape: tuple[int, int],
    layout: LayoutName = "compact",
    masked: bool = True,
    made_from: str | None = None,
) -> None:
    """Write one file atomically from blocks of samples. Memory: one block, padded where the layout pads.

    totals: of all blocks together. blocks: called once for the layouts compact, intel, mlperf and tfrecord, and
    once for every dataset for the others. Other arguments as ``write_shard``.

    Raises:
        TrainerError, InputError: as ``write_shard``.
    """
    attributes = name_attributes(
        shape,
        layout,
        vocabulary_sha256=vocabulary_sha256,
        generator_version=generator_version,
        masked=masked,
        made_from=made_from,
    )
    if layout == "tfrecord":
        with errors_naming(path, layout, masked=masked):
            tfrecord.write(path, blocks(), shape, attributes)
        return
    with replaced_atomically(path) as partial, errors_naming(path, layout, masked=masked):
        if layout == "compact":
            rows = (compact.values(block) for block in blocks())
            _write_contiguous(partial, compact.columns(totals), rows, attributes, compact.LIBRARY_VERSION)
        elif layout in _CONTIGUOUS:
            kind = _CONTIGUOUS[layout]
            rows = (fixed.values(block.to_padded(*shape), kind) for block in blocks())
            _write_contiguous(partial, fixed.columns(kind, totals.rows, *shape), rows, attributes, None)
        else:
            with _growing(partial) as (file, reserve):
                _write_growing(file, totals, blocks, layout, shape, reserve)
                write_attributes(file, attributes)


def _write_contiguous(
    path: Path,
    columns: Mapping[str, contiguous.Column],
    rows: Iterable[Mapping[str, NDArray[np.integer]]],
    attributes: Mapping[str, str | int | None],
    version: tuple[str, str] | None,
) -> None:
    """Write datasets whose size is known. version: of HDF5; only the compact layout has one, and checksums."""
    checksums = version is not None
    with _growing(path, version) as (file, reserve):
        reserve(sum(column.num_bytes for column in columns.values()))
        contiguous.create_datasets(file, columns, checksums=checksums)
        write_attributes(file, attributes)
    contiguous.fill(path, columns, rows, checksums=checksums, version=version)


def _write_growing(
    file: h5py.File,
    totals: Totals,
    blocks: SampleBlocks,
    layout: LayoutName,
    shape: tuple[int, int],
    reserve: contiguous.ReserveSpace,
) -> None:
    """Write datasets whose size in the file is known only when they are written: compressed, or in heaps."""
    if layout == "nvidia":
        kind = fixed.NVIDIA
        columns = fixed.columns(kind, totals.rows, *shape)
        fixed.write(
            file, kind, columns, lambda: (fixed.values(block.to_padded(*shape), kind) for block in blocks()), reserve
        )
    elif layout == "mlperf-variable":
        variable.write(
            file, totals.rows, lambda: (variable.rows_of(block) for block in blocks()), packed=False, reserve=reserve
        )
    elif layout == "mlperf-packed":

        def packed() -> Iterator[variable.Block]:
            for window in _regrouped(blocks(), window_rows(shape[0])):
                yield variable.packed_rows_of(window, shape[0])

        variable.write(file, variable.count_rows(packed()), packed, packed=True, reserve=reserve)
    else:
        raise unknown_layout(layout)


@contextmanager
def _growing(path: Path, version: tuple[str, str] | None = None) -> Iterator[tuple[h5py.File, contiguous.ReserveSpace]]:
    """Create a file whose disk space can be allocated ahead; the surplus is truncated at the end."""
    # HDF5 counts on its own idea of the file's end, so allocated bytes behind it do no harm.
    with h5py.File(path, "w", libver=version) as file, path.open("r+b") as raw:
        allocated = 0

        def reserve(num_bytes: int) -> None:
            nonlocal allocated
            wanted = file.id.get_filesize() + num_bytes + _SPARE_BYTES
            if wanted > allocated:
                os.posix_fallocate(raw.fileno(), allocated, wanted - allocated)
                allocated = wanted

        reserve(0)
        yield file, reserve
        file.flush()
        # Asked while the file is open: closing it writes nothing more after the flush.
        size = file.id.get_filesize()
    os.truncate(path, size)


def _regrouped(blocks: Iterable[RaggedSamples], rows: int) -> Iterator[RaggedSamples]:
    """Yield the same samples in blocks of ``rows``; the last one may be smaller."""
    waiting: list[RaggedSamples] = []
    for block in blocks:
        waiting.append(block)
        if sum(map(len, waiting)) < rows:
            continue
        together = RaggedSamples.concatenate(waiting)
        whole = len(together) // rows * rows
        yield from (together.take(slice(start, start + rows)) for start in range(0, whole, rows))
        waiting = [together.take(slice(whole, None))]
    if any(map(len, waiting)):
        yield RaggedSamples.concatenate(waiting)
