"""Folders of shards: the files of a split, whether they belong together, and finding folders by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from bert_trainer.config.dataset_names import LayoutName
from bert_trainer.dataset.shards.file_names import HELD_OUT_WORDS, TRAINING_WORDS, check_numbers, select_split
from bert_trainer.dataset.shards.files import read_header, read_ragged
from bert_trainer.dataset.shards.header import ShardHeader, Split
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.tfrecord_file import has_tfrecord_name, is_tfrecord, without_suffix
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import InputError
from bert_trainer.system.atomic_files import PARTIAL_SUFFIX, disk_errors
from bert_trainer.system.files import files_below, files_in

SUFFIXES = (".hdf5", ".h5")
"""Of HDF5 files."""
_FIRST_ROWS = 1024


@dataclass(frozen=True, slots=True)
class ShardFolder:
    """The shards of one split in one folder, all of one shape. Holds no open file."""

    paths: tuple[Path, ...]
    rows: tuple[int, ...]
    """Samples in each file."""
    vocabulary_size: int | None
    sequence_length: int
    max_predictions: int

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        split: Split,
        sequence_length: int,
        max_predictions: int,
        vocabulary: Vocabulary | None,
        masked: bool = True,
    ) -> ShardFolder:
        """List the shards of a split, sorted by name, and read each header.

        Training files have "training" in their name, or, if there are none, "part" (MLPerf's and Intel's); held-out
        files have "held_out", "test" (NVIDIA's) or "eval" (MLPerf's). masked: whether the files must hold predictions;
        a loader that draws masks itself takes both.

        Raises:
            InputError: no such folder or file, a dataset that is still being built, a number missing in a numbered
                set of files, a file as in ``read_header``, another shape than asked for, made with another
                vocabulary, or without masks.
        """
        # Deferred: it imports pydantic, which the workers that write shards do not need.
        from bert_trainer.dataset.shards.dataset_info import check_complete  # noqa: PLC0415

        check_complete(folder)
        paths = _list_split(folder, split)
        check_numbers(folder, paths)
        headers = [read_header(path) for path in paths]
        for path, header in zip(paths, headers, strict=True):
            _check_header(path, header, sequence_length, max_predictions, vocabulary)
            if masked and not header.masked:
                raise InputError(
                    f"{path}: its samples hold no masks, which this stage needs",
                    hint="set the stage's masking to dynamic, or use shards whose masks are in the file",
                )
        if not any(header.rows for header in headers):
            raise InputError(f"{folder}: the {split} shards hold no samples")
        rows = tuple(header.rows for header in headers)
        size = vocabulary.size if vocabulary else None
        return cls(tuple(paths), rows, size, sequence_length, max_predictions)

    @property
    def num_samples(self) -> int:
        """Samples in all files."""
        return sum(self.rows)

    def read_ragged(self, shard_index: int, rows: slice = slice(None)) -> RaggedSamples:
        """Read rows of one file without padding.

        Raises:
            InputError: as ``shards.read_ragged``, or a row is longer than the folder's other files are.
        """
        path = self.paths[shard_index]
        samples = read_ragged(path, self.vocabulary_size, rows)
        _check_widths(path, samples, self.sequence_length, self.max_predictions)
        return samples


def shard_folder_name(sequence_length: int, max_predictions: int) -> str:
    """Return the name of a length's folder below a dataset."""
    return f"seq_len_{sequence_length}_max_pred_{max_predictions}"


def find_shard_folder(
    dataset_root: Path, sequence_length: int, max_predictions: int, split: Split = "training"
) -> Path:
    """Find the folder of one length below a dataset, by its name.

    Names that hold ``seq_len_<T>_max_pred_<P>`` count, so NVIDIA's long ones do; then Intel's and MLPerf's, which name
    T only or nothing, cut shards before the parts that they were cut from. Where shards lie deeper (NVIDIA: a folder
    per corpus), the one folder that holds the split's is returned.

    Raises:
        InputError: no folder fits, or several do; the message lists what is there.
    """
    if not dataset_root.is_dir():
        raise InputError(f"{dataset_root}: no such dataset folder", hint="build it with 'bert-data build'")
    folders = [dataset_root, *sorted(path for path in dataset_root.iterdir() if path.is_dir())]
    fallback: Path | None = None
    for pattern in (
        # No digit behind it: max_pred_20 is also the beginning of max_pred_200.
        rf"{shard_folder_name(sequence_length, max_predictions)}(?!\d)",
        rf"_shards_(un)?compressed_{sequence_length}$",
        rf"^hdf5_seq_{sequence_length}$",
        # NVIDIA's MLPerf recipe has one length.
        r"^hdf5_\d+_shards_(uncompressed|varlength)$" if split == "training" else r"^eval(_varlength)?$",
    ):
        named = [folder for folder in folders if re.search(pattern, folder.name)]
        deepest = [found for folder in named for found in _folders_with_shards(folder)]
        found = [folder for folder in deepest if select_split(list_shards(folder), split)]
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(
                f"{dataset_root}: {len(found)} folders hold shards of {sequence_length} tokens and "
                f"{max_predictions} predictions: {', '.join(map(str, found))}",
                hint="name one of them as the stage's shards",
            )
        fallback = fallback or next(iter(deepest), None)
    if fallback is not None:
        return fallback  # has no files of this split: opening it names the files that it has
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


def make_shard_folder(folder: Path) -> None:
    """Create a folder for shards and remove the partial files of writers that were killed.

    Only for the process that holds the dataset's lock: partial files of a running writer would go, too.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f".*{PARTIAL_SUFFIX}"):
            leftover.unlink(missing_ok=True)


def is_shard(path: Path) -> bool:
    """Return whether a file is one of HDF5 or of TensorFlow's records, by its name; the latter may have no suffix."""
    # MLPerf's text has such names as well: the first bytes tell.
    return path.suffix in SUFFIXES or has_tfrecord_name(path) or (not path.suffix and is_tfrecord(path))


def shard_name(name: str, layout: LayoutName) -> str:
    """Return the name of a shard in a layout: with another suffix if files of the layout are of the other kind."""
    path = Path(name)
    is_hdf5 = path.suffix in SUFFIXES
    if layout == "tfrecord":
        return f"{path.stem}.tfrecord" if is_hdf5 else name
    return name if is_hdf5 else f"{without_suffix(name)}{SUFFIXES[0]}"


def shards_below(root: Path) -> list[Path]:
    """Return the shards at any depth, sorted by path, hidden ones left out."""
    return [path for path in files_below(root) if is_shard(path)]


def list_shards(folder: Path) -> list[Path]:
    """Return the shards directly in a folder, sorted by name, hidden ones left out."""
    return [path for path in files_in(folder) if is_shard(path)]


def _list_split(folder: Path, split: Split) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of shards", hint="build them with 'bert-data build'")
    files = list_shards(folder)
    if found := select_split(files, split):
        return found
    words = TRAINING_WORDS if split == "training" else HELD_OUT_WORDS
    names = ", ".join(path.name for path in files[:5]) or "no shard"
    raise InputError(
        f"{folder}: no {split} shards; found {names}{', ...' if len(files) > 5 else ''}",
        hint=f"expected .hdf5 or .tfrecord files with {' or '.join(words)} in their names",
    )


def _check_header(
    path: Path, header: ShardHeader, sequence_length: int, max_predictions: int, vocabulary: Vocabulary | None
) -> None:
    found = {"input_ids": header.sequence_length, "masked_lm_positions": header.max_predictions}
    wanted = {"input_ids": sequence_length, "masked_lm_positions": max_predictions}
    for name, width in found.items():
        # Variable-length files of other programs do not state it; their rows are checked when they are read.
        if width is not None and width != wanted[name]:
            raise InputError(
                f"{path}: dataset {name!r} has shape {(header.rows, width)}, wanted {(header.rows, wanted[name])}",
                hint="set sequence length and predictions to the file's, or build shards of this length",
            )
    if header.sequence_length is None and header.rows:
        # The first rows show a folder of another length before training starts.
        first = read_ragged(path, vocabulary.size if vocabulary else None, slice(0, _FIRST_ROWS))
        _check_widths(path, first, sequence_length, max_predictions)
    if vocabulary and header.vocabulary_sha256 not in (None, vocabulary.sha256):
        raise InputError(
            f"{path}: made with a vocabulary that does not fit: SHA-256 {header.vocabulary_sha256}, "
            f"the one given has {vocabulary.sha256}",
            hint="use the vocab.txt that lies beside the dataset, or build the dataset again",
        )


def _check_widths(path: Path, samples: RaggedSamples, sequence_length: int, max_predictions: int) -> None:
    longest, most = int(samples.token_counts.max(initial=0)), int(samples.prediction_counts.max(initial=0))
    if longest > sequence_length or most > max_predictions:
        raise InputError(
            f"{path}: a row has {longest} tokens, another {most} predictions; allowed: {sequence_length} and "
            f"{max_predictions} at most",
            hint="set sequence length and predictions to the file's, or build shards of this length",
        )
