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

from bert_job.dataset_names import WrittenLayout
from bert_trainer.dataset.shards import compact, contiguous, fixed
from bert_trainer.dataset.shards.attributes import errors_naming, name_attributes, write_attributes
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.totals import Totals
from bert_trainer.system.atomic_files import replaced_atomically

SampleBlocks = Callable[[], Iterator[RaggedSamples]]
"""Yields all samples in order, anew with each call."""

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
    layout: WrittenLayout = "compact",
    masked: bool = True,
    documents: bool = False,
    made_from: str | None = None,
) -> None:
    """Write one file atomically from blocks of samples. Memory: one block, padded where the layout pads.

    totals: of all blocks together. blocks: called once, for the layout nvidia once for every dataset. Other
    arguments as ``write_shard``.

    Raises:
        TrainerError, InputError: as ``write_shard``.
    """
    attributes = name_attributes(
        shape,
        layout,
        vocabulary_sha256=vocabulary_sha256,
        generator_version=generator_version,
        masked=masked,
        documents=documents,
        made_from=made_from,
    )
    with replaced_atomically(path) as partial, errors_naming(path, layout, masked=masked, documents=documents):
        if layout == "compact":
            rows = (compact.values(block) for block in blocks())
            _write_contiguous(partial, compact.columns(totals), rows, attributes, compact.LIBRARY_VERSION)
        else:
            kind = fixed.KINDS[layout]
            columns = fixed.columns(kind, totals.rows, *shape)

            def padded() -> Iterator[Mapping[str, NDArray[np.integer]]]:
                return (fixed.values(block.to_padded(*shape), kind) for block in blocks())

            if kind.compression is None:
                _write_contiguous(partial, columns, padded(), attributes, None)
            else:
                # Their size in the file is known only when they are written.
                with _growing(partial) as (file, reserve):
                    fixed.write(file, kind, columns, padded, reserve)
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
