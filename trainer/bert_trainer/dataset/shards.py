"""Sharded samples in HDF5: the one module that reads and writes the files.

The layout is that of NVIDIA's BERT scripts (``create_pretraining_data.py``): flat datasets, a row per sample,
padded with 0. MLPerf's fixed layout differs in integer widths only and is read, too; its variable-length and
packed layouts are told apart and refused. Files are opened for one call and closed again, never kept: HDF5
must not be used by two threads or across a fork. Whether rows make sense is for ``shard_checks``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import h5py

from bert_trainer.atomic_files import write_atomically
from bert_trainer.dataset.record import check_complete
from bert_trainer.dataset.samples import DATASETS, Samples
from bert_trainer.dataset.shard_checks import check_padding, check_range
from bert_trainer.dataset.wordpiece import Vocabulary
from bert_trainer.errors import InputError

# Samples is handed out by the reader, so it is found here, too.
__all__ = [
    "Samples",
    "ShardFolder",
    "ShardHeader",
    "Split",
    "find_shard_folder",
    "list_shards",
    "read_header",
    "read_shard",
    "shard_folder_name",
    "write_shard",
]

Split = Literal["training", "held_out"]

SUFFIXES = (".hdf5", ".h5")
_CHUNK_BYTES = 1 << 18
"""Size of the pieces that are compressed; larger ones would cost memory, smaller ones time."""
_REBUILD = "look at the whole folder with 'bert-data verify FOLDER'; delete the bad file and build again"


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """What a file says about itself without its rows being read."""

    rows: int
    sequence_length: int
    max_predictions: int
    vocabulary_sha256: str | None
    """Of the vocabulary it was made with; files of others do not say."""


def write_shard(path: Path, samples: Samples, *, vocabulary_sha256: str, generator_version: int) -> None:
    """Write one file, whole or not at all. The same samples give the same bytes.

    Memory: the compressed file once. It is put together in memory because HDF5 reports a full disk
    unreliably, sometimes only after the file was closed.

    Raises:
        TrainerError, InputError: as ``atomic_files.disk_errors``.
    """
    with h5py.File(path.name, "w", driver="core", backing_store=False) as file:
        for name, kind in DATASETS.items():
            values = getattr(samples, name)
            row_bytes = max(1, values[:1].nbytes)
            chunk_rows = max(1, min(len(values), _CHUNK_BYTES // row_bytes))
            file.create_dataset(
                name, data=values.astype(kind), compression="gzip", chunks=(chunk_rows, *values.shape[1:])
            )
        file.attrs["sequence_length"] = samples.input_ids.shape[1]
        file.attrs["max_predictions"] = samples.masked_lm_positions.shape[1]
        file.attrs["vocabulary_sha256"] = vocabulary_sha256
        file.attrs["generator_version"] = generator_version
        file.flush()
        content = file.id.get_file_image()
    write_atomically(path, content)


def read_header(path: Path) -> ShardHeader:
    """Open a file and check everything but its rows.

    Raises:
        InputError: damaged, not HDF5, of another layout, a dataset missing, not of integers, of other
            dimensions or with another number of rows than the rest.
    """
    with _opened(path) as file:
        _check_layout(path, file)
        rows, sequence_length = file["input_ids"].shape
        max_predictions = file["masked_lm_positions"].shape[1]
        for name in DATASETS:
            wanted = _shape(name, rows, sequence_length, max_predictions)
            if file[name].shape != wanted:
                raise InputError(
                    f"{path}: dataset {name!r} has shape {file[name].shape}, wanted {wanted}", hint=_REBUILD
                )
        sha256 = file.attrs.get("vocabulary_sha256")
        return ShardHeader(rows, sequence_length, max_predictions, sha256 if isinstance(sha256, str) else None)


def read_shard(path: Path, vocabulary_size: int | None = None) -> Samples:
    """Read all rows of one file; every number is in its range and real tokens come before padding.

    Raises:
        InputError: as ``read_header``, or the rows are not as above; in particular the vocabulary has fewer
            entries than the file's token ids need.
    """
    header = read_header(path)
    arrays = {}
    with _opened(path) as file:
        for name, kind in DATASETS.items():
            values = file[name][...]
            check_range(path, name, values, header.sequence_length, vocabulary_size)
            arrays[name] = values.astype(kind, copy=False)
    samples = Samples(**arrays)
    check_padding(path, samples)
    return samples


@dataclass(frozen=True, slots=True)
class ShardFolder:
    """The shards of one split in one folder, all of one shape. Holds no open file."""

    paths: tuple[Path, ...]
    rows: tuple[int, ...]
    """Samples in each file."""
    vocabulary_size: int | None

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        split: Split,
        sequence_length: int,
        max_predictions: int,
        vocabulary: Vocabulary | None,
    ) -> ShardFolder:
        """List the shards of a split, sorted by name, and look into each once.

        Training files have "training" in their name, or, where there are none, "part" (as MLPerf's and
        Intel's); held-out files have "held_out".

        Raises:
            InputError: no such folder or file, a dataset that is still being built, a file as in
                ``read_header``, another shape than asked for, or made with another vocabulary.
        """
        check_complete(folder)
        paths = _list_split(folder, split)
        headers = [read_header(path) for path in paths]
        for path, header in zip(paths, headers, strict=True):
            _check_header(path, header, sequence_length, max_predictions, vocabulary)
        if not any(header.rows for header in headers):
            raise InputError(f"{folder}: the {split} shards hold no samples")
        rows = tuple(header.rows for header in headers)
        return cls(tuple(paths), rows, vocabulary.size if vocabulary else None)

    @property
    def num_samples(self) -> int:
        """Samples in all files."""
        return sum(self.rows)

    def read(self, shard_index: int) -> Samples:
        """Read one whole file; raises InputError as ``read_shard``."""
        return read_shard(self.paths[shard_index], self.vocabulary_size)


def shard_folder_name(sequence_length: int, max_predictions: int) -> str:
    """Return the name of a length's folder below a dataset."""
    return f"seq_len_{sequence_length}_max_pred_{max_predictions}"


def find_shard_folder(dataset_root: Path, sequence_length: int, max_predictions: int) -> Path:
    """Find the folder of one length below a dataset, by its name.

    Names that hold ``seq_len_<T>_max_pred_<P>`` count, so NVIDIA's long ones do; then Intel's, which name T
    only. Where shards lie deeper (NVIDIA: a folder per corpus), the one folder that holds them is returned.

    Raises:
        InputError: no folder fits, or several do; the message lists what is there.
    """
    if not dataset_root.is_dir():
        raise InputError(f"{dataset_root}: no such dataset folder", hint="build it with 'bert-data build'")
    folders = [dataset_root, *sorted(path for path in dataset_root.iterdir() if path.is_dir())]
    for pattern in (
        rf"{shard_folder_name(sequence_length, max_predictions)}(?!\d)",
        rf"(^hdf5_seq_|_shards_(un)?compressed_){sequence_length}$",
    ):
        named = [folder for folder in folders if re.search(pattern, folder.name)]
        found = [deepest for folder in named for deepest in _folders_with_shards(folder)]
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(
                f"{dataset_root}: {len(found)} folders hold shards of {sequence_length} tokens and "
                f"{max_predictions} predictions: {', '.join(map(str, found))}",
                hint="name one of them as the stage's shards",
            )
    names = ", ".join(folder.name for folder in folders[1:]) or "no folder"
    raise InputError(
        f"{dataset_root}: no shards of {sequence_length} tokens and {max_predictions} predictions; found {names}",
        hint=f"expected a folder like {shard_folder_name(sequence_length, max_predictions)}; build it with "
        "'bert-data build'",
    )


def _folders_with_shards(folder: Path) -> list[Path]:
    if list_shards(folder):
        return [folder]
    return [found for path in sorted(folder.iterdir()) if path.is_dir() for found in _folders_with_shards(path)]


def list_shards(folder: Path) -> list[Path]:
    """Return the HDF5 files directly in a folder, sorted by name, hidden ones left out."""
    return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and not path.name.startswith("."))


def _list_split(folder: Path, split: Split) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of shards", hint="build them with 'bert-data build'")
    files = list_shards(folder)
    words = ("training", "part") if split == "training" else ("held_out",)
    for word in words:
        found = [path for path in files if word in path.name]
        if found:
            return found
    names = ", ".join(path.name for path in files[:5]) or "no .hdf5 file"
    raise InputError(
        f"{folder}: no {split} shards; found {names}{', ...' if len(files) > 5 else ''}",
        hint=f"expected .hdf5 files with {' or '.join(words)} in their names",
    )


def _check_header(
    path: Path, header: ShardHeader, sequence_length: int, max_predictions: int, vocabulary: Vocabulary | None
) -> None:
    found = (header.rows, header.sequence_length, header.max_predictions)
    for name in DATASETS:
        shape, wanted = _shape(name, *found), _shape(name, header.rows, sequence_length, max_predictions)
        if shape != wanted:
            raise InputError(
                f"{path}: dataset {name!r} has shape {shape}, wanted {wanted}",
                hint="set sequence length and predictions to the file's, or build shards of this length",
            )
    if vocabulary and header.vocabulary_sha256 not in (None, vocabulary.sha256):
        raise InputError(
            f"{path}: made with a vocabulary that does not fit: SHA-256 {header.vocabulary_sha256}, "
            f"the one given has {vocabulary.sha256}",
            hint="use the vocab.txt that lies beside the dataset, or build the dataset again",
        )


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    try:
        with h5py.File(path, "r") as file:
            yield file
    # h5py has no error class of its own: damage shows as any of these, at opening or at reading.
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        if not path.is_file():
            raise InputError(f"{path}: no such file", hint=_REBUILD) from error
        raise InputError(f"{path}: damaged or not an HDF5 file ({error})", hint=_REBUILD) from error


def _check_layout(path: Path, file: h5py.File) -> None:
    missing = [name for name in DATASETS if not isinstance(file.get(name), h5py.Dataset)]
    if "packed_input_len" in file:
        raise InputError(f"{path}: packed layout of MLPerf, not read yet", hint="use its fixed-length layout")
    if missing == ["input_mask"]:
        raise InputError(f"{path}: variable-length layout of MLPerf, not read yet", hint="use its fixed-length layout")
    if missing:
        found = ", ".join(sorted(file)) or "nothing"
        raise InputError(
            f"{path}: lacks the dataset(s) {', '.join(missing)}; found {found}",
            hint="take files of other programs out of the folder; shards are what 'bert-data build' writes",
        )
    for name in DATASETS:
        dataset = file[name]
        if dataset.dtype.kind not in "iu":
            raise InputError(f"{path}: dataset {name!r} has type {dataset.dtype}, wanted integers", hint=_REBUILD)
        dimensions = 1 if name == "next_sentence_labels" else 2
        if dataset.ndim != dimensions:
            raise InputError(
                f"{path}: dataset {name!r} has {dataset.ndim} dimension(s), wanted {dimensions}", hint=_REBUILD
            )


def _shape(name: str, rows: int, sequence_length: int, max_predictions: int) -> tuple[int, ...]:
    if name == "next_sentence_labels":
        return (rows,)
    return (rows, max_predictions if name.startswith("masked_lm") else sequence_length)
