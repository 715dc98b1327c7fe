"""One file at a time: which layout it has, reading it, writing it whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

import h5py
import numpy as np

from bert_trainer.atomic_files import replaced_atomically, write_atomically
from bert_trainer.dataset.ragged import RaggedSamples, UnorderedSegmentsError
from bert_trainer.dataset.samples import Samples
from bert_trainer.dataset.shards import compact, fixed, variable
from bert_trainer.dataset.shards.header import ShardHeader, opened
from bert_trainer.errors import InputError
from bert_trainer.layout_names import LayoutName

LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)
_BLOCK_ROWS = 4096
_FIXED = {kind.name: kind for kind in (fixed.NVIDIA, fixed.INTEL, fixed.MLPERF)}


def write_shard(
    path: Path,
    samples: Samples | RaggedSamples,
    *,
    vocabulary_sha256: str | None,
    generator_version: int | None,
    layout: LayoutName = "compact",
    shape: tuple[int, int] | None = None,
    masked: bool = True,
    made_from: str | None = None,
) -> None:
    """Write one file, whole or not at all. The same samples give the same bytes.

    shape: tokens and predictions of a row at most; needed for samples without padding. masked: whether the
    samples hold predictions. made_from: fingerprint of the source, for files made from others.
    Memory: the file once. It is put together in memory because HDF5 reports a full disk unreliably,
    sometimes only after the file was closed.

    Raises:
        TrainerError, InputError: as ``atomic_files.disk_errors``; the layout cannot hold the samples.
    """
    if shape is None:
        assert isinstance(samples, Samples), "only padded samples state their shape"
        shape = (samples.input_ids.shape[1], samples.masked_lm_positions.shape[1])
    if not masked and layout != "compact":
        raise InputError(
            f"{path}: layout {layout} cannot hold samples without masks; allowed: compact",
            hint="only the compact layout holds samples that the loader masks",
        )
    # The name is of no use to a file in memory, but HDF5 refuses a second open one of the same name.
    versions = compact.LIBRARY_VERSION if layout == "compact" else None
    with h5py.File(path.name, "w", driver="core", backing_store=False, libver=versions) as file:
        try:
            _write(file, samples, layout, shape)
        except (InputError, UnorderedSegmentsError) as error:
            hint = error.hint if isinstance(error, InputError) else None
            what = error.args[0] if isinstance(error, InputError) else f"layout {layout} cannot hold it: {error}"
            raise InputError(f"{path}: {str(what).partition(chr(10))[0]}", hint=hint) from error
        _state(
            file,
            {
                "sequence_length": shape[0],
                "max_predictions": shape[1],
                "vocabulary_sha256": vocabulary_sha256,
                "generator_version": generator_version,
                "made_from": made_from,
                "masking": ("static" if masked else "none") if layout == "compact" else None,
            },
        )
        file.flush()
        content = file.id.get_file_image()
    write_atomically(path, content)


def write_shard_blocks(
    path: Path,
    totals: compact.Totals,
    blocks: Iterable[RaggedSamples],
    *,
    vocabulary_sha256: str,
    generator_version: int,
    shape: tuple[int, int],
    masked: bool = True,
) -> None:
    """Write one file of the compact layout, whole or not at all, from blocks of samples; memory: one block.

    totals: of all blocks together. masked: whether the samples hold predictions. The datasets are as
    ``write_shard`` writes them.

    Raises:
        TrainerError, InputError: as ``atomic_files.disk_errors``.
    """
    with replaced_atomically(path) as partial:
        with h5py.File(partial, "w", libver=compact.LIBRARY_VERSION) as file:
            compact.reserve(file, totals)
            stated: dict[str, str | int | None] = {
                "sequence_length": shape[0],
                "max_predictions": shape[1],
                "vocabulary_sha256": vocabulary_sha256,
                "generator_version": generator_version,
                "masking": "static" if masked else "none",
            }
            _state(file, stated)
        compact.fill(partial, totals, blocks)


def _state(file: h5py.File, attributes: dict[str, str | int | None]) -> None:
    """Write the attributes that are not empty."""
    for name, value in attributes.items():
        if isinstance(value, str):
            # Of fixed length, so that it lies in the file's header and in no heap.
            file.attrs[name] = np.array(value.encode(), dtype=f"S{max(1, len(value.encode()))}")
        elif value is not None:
            file.attrs[name] = value


def _write(file: h5py.File, samples: Samples | RaggedSamples, layout: LayoutName, shape: tuple[int, int]) -> None:
    if layout in _FIXED:
        padded = samples.to_padded(*shape) if isinstance(samples, RaggedSamples) else samples
        fixed.write(file, padded, _FIXED[layout])
        return
    ragged = RaggedSamples.from_padded(samples) if isinstance(samples, Samples) else samples
    if layout == "compact":
        compact.write(file, ragged)
    elif layout == "mlperf-variable":
        variable.write(file, ragged)
    else:
        variable.write_packed(file, ragged, shape[0])


def read_header(path: Path) -> ShardHeader:
    """Open a file, tell its layout by its datasets, and check everything but its rows.

    Raises:
        InputError: damaged, not HDF5, of no known layout, a dataset missing, not of integers, of other
            dimensions or with another number of rows than the rest.
    """
    with opened(path) as file:
        return _header(path, file)


def _header(path: Path, file: h5py.File) -> ShardHeader:
    # Intel's loaders tell the layouts apart in the same way.
    if compact.KEY in file:
        return compact.header(path, file)
    if "input_mask" in file:
        return fixed.header(path, file)
    runs = file.get("input_ids")
    if isinstance(runs, h5py.Dataset) and h5py.check_vlen_dtype(runs.dtype) is not None:
        return variable.header(path, file)
    return fixed.header(path, file)  # which says what is missing


def read_ragged(path: Path, vocabulary_size: int | None = None, rows: slice = slice(None)) -> RaggedSamples:
    """Read rows of one file without padding; every number is in its range.

    Raises:
        InputError: as ``read_header``, or the rows are not as above; in particular the vocabulary has fewer
            entries than the file's token ids need.
    """
    with opened(path) as file:
        found = _header(path, file)
        reader = {"compact": compact.read, "mlperf-variable": variable.read, "mlperf-packed": variable.read}
        return reader.get(found.layout, fixed.read)(path, file, found, rows, vocabulary_size)


def read_blocks(path: Path, vocabulary_size: int | None = None) -> Iterator[Samples]:
    """Yield all rows of one file, padded, some thousand at a time; a file without samples yields nothing.

    Memory: for the fixed layouts one block, for the others the file without padding and one block.

    Raises:
        InputError: as ``read_shard``.
    """
    found = read_header(path)
    if found.layout in _FIXED:
        for rows in _blocks(found.rows):
            with opened(path) as file:
                block = fixed.read_padded(path, file, found, rows, vocabulary_size)
            yield block
        return
    ragged = read_ragged(path, vocabulary_size)
    shape = _shape(found, ragged)
    for rows in _blocks(len(ragged)):
        yield ragged.take(rows).to_padded(*shape)


def read_ragged_blocks(path: Path, vocabulary_size: int | None = None) -> Iterator[RaggedSamples]:
    """Yield all rows of one file without padding, some thousand at a time; memory and errors as ``read_ragged``."""
    found = read_header(path)
    if found.layout in _FIXED:
        yield from (read_ragged(path, vocabulary_size, rows) for rows in _blocks(found.rows))
        return
    ragged = read_ragged(path, vocabulary_size)
    yield from (ragged.take(rows) for rows in _blocks(len(ragged)))


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK_ROWS, rows)) for start in range(0, rows, _BLOCK_ROWS))


def read_shard(path: Path, vocabulary_size: int | None = None) -> Samples:
    """Read all rows of one file, padded; every number is in its range and real tokens come before padding.

    Raises:
        InputError: as ``read_ragged``.
    """
    with opened(path) as file:
        found = _header(path, file)
        if found.layout in _FIXED:
            return fixed.read_padded(path, file, found, slice(None), vocabulary_size)
    ragged = read_ragged(path, vocabulary_size)
    return ragged.to_padded(*_shape(found, ragged))


def _shape(found: ShardHeader, samples: RaggedSamples) -> tuple[int, int]:
    """Return tokens and predictions of a row at most: the longest row's, where the file does not say."""
    return (
        found.sequence_length or int(samples.token_counts.max(initial=1)),
        found.max_predictions or int(samples.prediction_counts.max(initial=1)),
    )
