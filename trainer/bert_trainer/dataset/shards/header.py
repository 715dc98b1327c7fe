"""A shard's header: what a file states without its rows, and the checks and errors that all layouts share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from bert_job.dataset_names import LayoutName
from bert_job.foreign_text import printable
from bert_trainer.errors import InputError

Split = Literal["training", "held_out"]

REBUILD = "look at the whole folder with 'bert-data verify FOLDER'; delete the bad file and build again"

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
MAX_CHUNK_BYTES = 1 << 26
"""Of a compressed dataset: HDF5 inflates a chunk as a whole. h5py itself makes chunks of at most 1 MiB."""
MAX_ROW_TOKENS = 1 << 15
"""Most tokens of a row, in any layout: positions are int16 in some."""
# Limits of attributes: rows are padded to these sizes, so a damaged value would exhaust the memory.
_LARGEST = {"sequence_length": MAX_ROW_TOKENS, "max_predictions": MAX_ROW_TOKENS}


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """What a file states about its rows."""

    rows: int
    """Samples; in a packed file several of them share a row of the file."""
    sequence_length: int | None
    """Most tokens of a row; not stated in variable-length files of other programs."""
    max_predictions: int | None
    """Most predictions of a row, likewise."""
    vocabulary_sha256: str | None
    """Of the vocabulary; not stated in files of other programs."""
    layout: LayoutName = field(default="compact", compare=False)
    masked: bool = field(default=True, compare=False)
    """Whether the file holds predictions; otherwise the data loader draws them."""
    documents: bool = field(default=False, compare=False)
    """Whether its rows are pieces of documents, [CLS] piece [SEP] each; otherwise they are pairs."""
    generator_version: int | None = field(default=None, compare=False)
    num_tokens: int | None = field(default=None, compare=False)
    """Of all rows; None where a file does not say it."""
    made_from: str | None = field(default=None, compare=False)
    """Fingerprint of the sources of a file that ``convert`` or ``chop`` wrote."""
    content: str | None = field(default=None, compare=False)
    """Made of the checksums in the file, so that another content has another one; None where a layout has none."""


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading; errors inside the block become InputErrors that name the file."""
    try:
        # Unlocked: files are replaced as a whole, and some NFS servers have no locks.
        with h5py.File(path, "r", locking=False) as file:
            yield file
    # h5py has no exception class of its own: damage shows as any of these, when opening or when reading.
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError, OverflowError) as error:
        if not path.is_file():
            raise InputError(f"{path}: no such file", hint=REBUILD) from error
        if isinstance(error, PermissionError):
            raise InputError(
                f"{path}: cannot be read (permission denied)", hint="check its owner and rights"
            ) from error
        raise InputError(f"{path}: damaged or not an HDF5 file ({error})", hint=REBUILD) from _with_errno(error)


def _with_errno(error: Exception) -> Exception:
    """Return an error with the number of the operating system's, which HDF5 has put into words."""
    number = re.search(r"\berrno = (\d+)", str(error))
    if not isinstance(error, OSError) or error.errno is not None or number is None:
        return error
    named = OSError(int(number[1]), str(error))
    named.__cause__ = error
    return named


def is_hdf5(path: Path) -> bool:
    """Return whether a file begins as HDF5 does, whatever its name is."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SIGNATURE)) == _SIGNATURE
    except OSError:
        return False  # whoever opens it next reports that


def read_attributes(file: h5py.File, layout: LayoutName) -> dict[str, Any]:
    """Return the header fields that attributes hold in every layout; None for missing ones."""

    def attribute(name: str) -> Any:
        # Text of variable length would make HDF5 follow a heap reference (see ``vlen_reader``). Our files have none.
        known = name in file.attrs and not file.attrs.get_id(name).dtype.hasobject
        return file.attrs[name] if known else None

    def number(name: str) -> int | None:
        value = attribute(name)
        if not isinstance(value, np.integer):
            return None
        if name in _LARGEST and not 1 <= value <= _LARGEST[name]:
            raise ValueError(f"its attribute {name} is {value}, allowed 1 to {_LARGEST[name]}")
        return int(value)

    def text(name: str) -> str | None:
        value = attribute(name)
        return value.decode() if isinstance(value, bytes) else None

    return {
        "sequence_length": number("sequence_length"),
        "max_predictions": number("max_predictions"),
        "generator_version": number("generator_version"),
        "vocabulary_sha256": text("vocabulary_sha256"),
        "made_from": text("made_from"),
        "layout": layout,
        "masked": text("masking") != "none",
        "documents": text("samples") == "documents",
    }


def require(path: Path, file: h5py.File, names: list[str]) -> dict[str, h5py.Dataset]:
    """Return some datasets of a file by name; refuse a file in which one is missing.

    Opening one again takes as long as most checks of it.
    """
    datasets = {name: file.get(name) for name in names}
    missing = [name for name, dataset in datasets.items() if not isinstance(dataset, h5py.Dataset)]
    if missing:
        found = printable(", ".join(sorted(file))) or "nothing"
        raise InputError(
            f"{path}: lacks the dataset(s) {', '.join(missing)}; found {found}",
            hint="take files of other programs out of the folder; shards are what 'bert-data build' writes",
        )
    return datasets


def require_integers(path: Path, name: str, dataset: h5py.Dataset, dimensions: int) -> None:
    """Refuse a dataset of another type or number of dimensions."""
    if dataset.dtype.kind not in "iu":
        raise InputError(f"{path}: dataset {name!r} has type {dataset.dtype}, wanted integers", hint=REBUILD)
    if dataset.ndim != dimensions:
        raise InputError(f"{path}: dataset {name!r} has {dataset.ndim} dimension(s), wanted {dimensions}", hint=REBUILD)


def require_shape(path: Path, name: str, dataset: h5py.Dataset, wanted: tuple[int, ...]) -> None:
    """Refuse a dataset of another shape."""
    _require_storage(path, name, dataset)
    if dataset.shape != wanted:
        raise InputError(f"{path}: dataset {name!r} has shape {dataset.shape}, wanted {wanted}", hint=REBUILD)


def _require_storage(path: Path, name: str, dataset: h5py.Dataset) -> None:
    """Refuse a shape that the file cannot hold, before memory is allocated for it."""
    if dataset.chunks is None:
        held = dataset.nbytes <= path.stat().st_size
    else:
        wanted = prod(-(-size // piece) for size, piece in zip(dataset.shape, dataset.chunks, strict=True))
        chunk_bytes = prod(dataset.chunks) * dataset.dtype.itemsize
        if chunk_bytes > MAX_CHUNK_BYTES:
            raise InputError(
                f"{path}: dataset {name!r} has chunks of {chunk_bytes} bytes; allowed: up to {MAX_CHUNK_BYTES}",
                hint="write it again with smaller chunks: h5repack -l CHUNK=1024x512",
            )
        stored = dataset.id.get_storage_size()
        # Deflate compresses at most 1032:1, so a larger ratio of shape to stored bytes is damage or an attack.
        held = dataset.id.get_num_chunks() >= wanted and wanted * chunk_bytes <= 1032 * max(stored, 1)
    if not held:
        raise InputError(f"{path}: parts of the dataset {name!r} of shape {dataset.shape} are missing", hint=REBUILD)
