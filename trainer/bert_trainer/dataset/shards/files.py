"""One shard: recognizes its layout, reads it, writes it atomically."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import h5py

from bert_job.dataset_names import LayoutName, WrittenLayout
from bert_trainer.dataset.shards import compact, fixed, tfrecord, variable
from bert_trainer.dataset.shards.attributes import errors_naming, name_attributes, write_attributes
from bert_trainer.dataset.shards.header import ShardHeader, opened
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.shards.tfrecord_file import is_tfrecord
from bert_trainer.system.atomic_files import write_atomically

LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)
WRITTEN_LAYOUTS: tuple[WrittenLayout, ...] = get_args(WrittenLayout)
_READERS: dict[LayoutName, Any] = {
    "compact": compact.read,
    **dict.fromkeys(fixed.KINDS, fixed.read),
    "mlperf-variable": variable.read,
    "mlperf-packed": variable.read,
}
"""Of HDF5 files."""


def write_shard(
    path: Path,
    samples: Samples | RaggedSamples,
    *,
    vocabulary_sha256: str | None,
    generator_version: int | None,
    layout: WrittenLayout = "compact",
    shape: tuple[int, int] | None = None,
    masked: bool = True,
    documents: bool = False,
    made_from: str | None = None,
) -> None:
    """Write one file atomically. The same samples give the same bytes.

    Memory: the file once; ``write_shard_blocks`` needs less.

    Args:
        path: the file; replaced if it exists.
        samples: its rows.
        vocabulary_sha256: of the vocabulary, as an attribute.
        generator_version: of the generator, as an attribute.
        layout: of the file.
        shape: most tokens and predictions of a row; required for samples without padding.
        masked: whether the samples hold predictions.
        documents: whether they are pieces of documents, not pairs.
        made_from: fingerprint of the sources, for files written by ``convert`` and ``chop``.

    Raises:
        TrainerError, InputError: as ``atomic_files.disk_errors``; the layout cannot hold the samples.
    """
    if shape is None:
        assert isinstance(samples, Samples), "only padded samples state their shape"
        shape = (samples.input_ids.shape[1], samples.masked_lm_positions.shape[1])
    attributes = name_attributes(
        shape,
        layout,
        vocabulary_sha256=vocabulary_sha256,
        generator_version=generator_version,
        masked=masked,
        documents=documents,
        made_from=made_from,
    )
    # In memory first: HDF5 reports a full disk unreliably, sometimes only after the file was closed. The name means
    # nothing to a file in memory, but HDF5 refuses to open two of the same name.
    versions = compact.LIBRARY_VERSION if layout == "compact" else None
    with (
        errors_naming(path, layout, masked=masked, documents=documents),
        h5py.File(path.name, "w", driver="core", backing_store=False, libver=versions) as file,
    ):
        _write(file, samples, layout, shape)
        write_attributes(file, attributes)
        file.flush()
        content = file.id.get_file_image()
    write_atomically(path, content)


def _write(file: h5py.File, samples: Samples | RaggedSamples, layout: WrittenLayout, shape: tuple[int, int]) -> None:
    if layout == "compact":
        compact.write(file, RaggedSamples.from_padded(samples) if isinstance(samples, Samples) else samples)
    else:
        padded = samples.to_padded(*shape) if isinstance(samples, RaggedSamples) else samples
        kind = fixed.KINDS[layout]
        rows = fixed.values(padded, kind)
        fixed.write(file, kind, fixed.columns(kind, len(padded), *shape), lambda: [rows])


def read_header(path: Path) -> ShardHeader:
    """Open a file, recognize its layout by its name and its datasets, and check everything but its rows.

    Raises:
        InputError: damaged, neither HDF5 nor TFRecord, of no known layout, a dataset missing, not of integers, of other
            dimensions or with another number of rows than the rest.
    """
    if is_tfrecord(path):
        return tfrecord.header(path)
    with opened(path) as file:
        return _header(path, file)


def _header(path: Path, file: h5py.File) -> ShardHeader:
    # No attribute names the layout in files of other programs; Intel's loaders look at the datasets, too.
    if compact.KEY in file:
        return compact.header(path, file)
    if "input_mask" in file:
        return fixed.header(path, file)
    ids = file.get("input_ids")
    if isinstance(ids, h5py.Dataset) and h5py.check_vlen_dtype(ids.dtype) is not None:
        return variable.header(path, file)
    return fixed.header(path, file)  # raises: names what is missing


def read_ragged(path: Path, vocabulary_size: int | None = None, rows: slice = slice(None)) -> RaggedSamples:
    """Read rows of one file without padding; every number is in its range.

    Raises:
        InputError: as ``read_header``, or a number is out of range; in particular a token id that the vocabulary
            does not have.
    """
    if is_tfrecord(path):
        return tfrecord.read(path, tfrecord.header(path), rows, vocabulary_size)
    with opened(path) as file:
        found = _header(path, file)
        samples: RaggedSamples = _READERS[found.layout](path, file, found, rows, vocabulary_size)
        return samples


def read_shard(path: Path, vocabulary_size: int | None = None) -> Samples:
    """Read all rows of one file, padded; every number is in its range and real tokens come before padding.

    Raises:
        InputError: as ``read_ragged``.
    """
    if is_tfrecord(path):
        return tfrecord.read_padded(path, tfrecord.header(path), slice(None), vocabulary_size)
    with opened(path) as file:
        found = _header(path, file)
        if found.layout in fixed.KINDS:
            return fixed.read_padded(path, file, found, slice(None), vocabulary_size)
    ragged = read_ragged(path, vocabulary_size)
    return ragged.to_padded(*_shape(found, ragged))


def _shape(found: ShardHeader, samples: RaggedSamples) -> tuple[int, int]:
    """Return most tokens and predictions of a row; the longest row's if the file does not state them."""
    return (
        found.sequence_length or int(samples.token_counts.max(initial=1)),
        found.max_predictions or int(samples.prediction_counts.max(initial=1)),
    )
