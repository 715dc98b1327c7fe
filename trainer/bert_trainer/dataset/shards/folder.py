"""Folders of shards: the files of a split, whether they belong together, and whether they are still the same."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bert_trainer.dataset.shards.file_names import (
    HELD_OUT_WORDS,
    TRAINING_WORDS,
    check_numbers,
    select_split,
    split_of,
)
from bert_trainer.dataset.shards.files import read_header, read_ragged
from bert_trainer.dataset.shards.header import ShardHeader, Split, is_hdf5
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.tfrecord_file import has_tfrecord_name, is_tfrecord, without_suffix
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import EXIT_INFRASTRUCTURE, DataUnreadable, InputError, StorageFailed
from bert_trainer.system.atomic_files import PARTIAL_SUFFIX, disk_errors, refuse_others_links
from bert_trainer.system.files import files_below, files_in

SUFFIXES = (".hdf5", ".h5")
"""Of HDF5 files."""
GONE, CHANGED = "is gone", "has changed"
"""What has become of a file with which a run began, in the words of messages."""
_FIRST_ROWS = 1024
_NAMED_FILES = 5
"""Of those that have changed, in a message."""


@dataclass(frozen=True, slots=True)
class KnownShard:
    """Identity of a shard, to detect a replacement."""

    rows: int
    num_bytes: int
    content: str | None = None
    """As in its header."""
    modified_ns: int | None = field(default=None, compare=False)
    """As it was when this run opened the file; copies of a data set on other machines have other times."""

    @classmethod
    def read(cls, path: Path) -> tuple[ShardHeader, KnownShard]:
        """Read the header of a file and describe the file.

        Raises:
            InputError: as ``read_header``.
        """
        # Before its content: a file that is exchanged in between then has another time when its rows are read.
        state = path.stat() if path.exists() else None
        header = read_header(path)
        state = state or path.stat()
        return header, cls(header.rows, state.st_size, header.content, state.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class ShardFolder:
    """The shards of one split in one folder, all of one shape. Holds no open file."""

    paths: tuple[Path, ...]
    rows: tuple[int, ...]
    """Samples in each file."""
    vocabulary_size: int | None
    sequence_length: int
    max_predictions: int
    documents: bool = False
    """Whether the rows are pieces of documents; otherwise they are pairs."""
    known: tuple[KnownShard, ...] = ()
    """What each file has to be; empty: nobody looks whether one changes."""
    _modified_ns: dict[int, int] = field(default_factory=dict, compare=False, repr=False)
    """When each file that this process has read was modified."""

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

        # What is evaluated on may be whole where a shard to train on is gone, and left out.
        check_complete(folder, lambda path: split_of(path) == split)
        paths = _list_split(folder, split)
        check_numbers(folder, paths)
        looks = [KnownShard.read(path) for path in paths]
        headers, known = [header for header, _ in looks], tuple(known for _, known in looks)
        for path, header in zip(paths, headers, strict=True):
            _check_header(path, header, sequence_length, max_predictions, vocabulary)
            if masked:
                _check_masked(path, header)
            if header.documents != headers[0].documents:
                raise InputError(
                    f"{path}: holds {_what(header)}, {paths[0].name} beside it {_what(headers[0])}; allowed: one kind",
                    hint="put them into folders of their own",
                )
        if not any(header.rows for header in headers):
            raise InputError(f"{folder}: the {split} shards hold no samples")
        rows = tuple(header.rows for header in headers)
        size = vocabulary.size if vocabulary else None
        return cls(tuple(paths), rows, size, sequence_length, max_predictions, headers[0].documents, known)

    @classmethod
    def of_known(
        cls,
        folder: Path,
        known: Mapping[str, KnownShard],
        *,
        sequence_length: int,
        max_predictions: int,
        documents: bool,
        vocabulary: Vocabulary,
    ) -> ShardFolder:
        """Return a folder as it was when the run began, without opening a file. known: by name, sorted.

        A file that is gone or has changed since is found when it is read, whatever its time says.
        """
        # Recorded by another process, maybe on another machine with a copy: no file counts as looked at yet.
        known = {name: replace(shard, modified_ns=None) for name, shard in known.items()}
        rows = tuple(shard.rows for shard in known.values())
        paths = tuple(folder / name for name in known)
        return cls(paths, rows, vocabulary.size, sequence_length, max_predictions, documents, tuple(known.values()))

    def check_same(self, known: Mapping[str, KnownShard]) -> None:
        """Compare the files with those that the run began with.

        Raises:
            DataUnreadable: files are others, gone, or new; names the first of them.
        """
        now = self.known_by_name
        if now == known:
            return
        problems = {name: CHANGED if name in now else GONE for name in known if now.get(name) != known[name]}
        if problems:
            raise other_shards(self.paths[0].parent, problems, len(known))
        new = [name for name in now if name not in known]
        named = _shortened(new)
        raise DataUnreadable(
            f"{self.paths[0].parent}: {len(new)} shards were not there when this run began: {named}",
            hint="move them out of the folder, or start over with them (output.ifExists: New)",
        )

    def check_masked(self) -> None:
        """Check that the samples have masks, of those that are left of what ``of_known`` returned.

        Raises:
            InputError: they have none.
        """
        for path in self.paths:
            try:
                header = read_header(path)
            except InputError:
                continue
            _check_masked(path, header)
            return

    @property
    def known_by_name(self) -> dict[str, KnownShard]:
        """What each file was when the folder was opened, or as it was given to ``of_known``; in their order."""
        return {path.name: shard for path, shard in zip(self.paths, self.known, strict=True)}

    @property
    def num_samples(self) -> int:
        """Samples in all files."""
        return sum(self.rows)

    def read_ragged(self, shard_index: int, rows: slice = slice(None)) -> RaggedSamples:
        """Read rows of one file without padding.

        Raises:
            DataUnreadable: as ``shards.read_ragged``, a row is longer than the folder's other files are, or the file is
                not the one that the run began with.
            StorageFailed: the folder itself is gone, as when its volume is no longer mounted; with exit code 4.
        """
        path = self.paths[shard_index]
        try:
            self._check_unchanged(shard_index)
            samples = read_ragged(path, self.vocabulary_size, rows)
            _check_widths(path, samples, self.sequence_length, self.max_predictions)
            if len(samples) != len(range(*rows.indices(self.rows[shard_index]))):
                raise _changed(path, f"holds {len(samples)} of the rows {rows.start} to {rows.stop}")
        except (InputError, OSError) as error:
            cause = error.__cause__ if isinstance(error, InputError) else error
            self._check_folder(path.parent, cause)
            if isinstance(error, InputError):
                raise DataUnreadable(error.message, hint=error.hint) from cause
            raise DataUnreadable(f"{path}: cannot be read ({error.strerror})", hint=_RESTORE) from error
        return samples

    def _check_unchanged(self, shard_index: int) -> None:
        """Compare a file with what it was: its size always, its checksums where the time says that it was written.

        No time alone condemns a file that has checksums: copying a data set anew changes nothing in it.
        """
        if not self.known:
            return
        path, known = self.paths[shard_index], self.known[shard_index]
        state = path.stat()
        if state.st_size != known.num_bytes:
            raise _changed(path, f"had {known.num_bytes} bytes, now it has {state.st_size}")
        before_ns = self._modified_ns.get(shard_index)
        if known.content is None:
            if before_ns not in (None, state.st_mtime_ns):
                raise _changed(path, "was written while the run read it, and its layout has no checksums to compare")
        elif (known.modified_ns if before_ns is None else before_ns) != state.st_mtime_ns:
            header = read_header(path)
            if (header.content, header.rows) != (known.content, known.rows):
                raise _changed(path, "its checksums are others")
        self._modified_ns[shard_index] = state.st_mtime_ns

    def _check_folder(self, folder: Path, cause: BaseException | None) -> None:
        """Tell a folder that is gone from a file in it."""
        problem = None
        try:
            with os.scandir(folder) as entries:
                next(entries, None)
        except OSError as error:
            problem, cause = error.strerror, error
        # Where a volume was mounted, an empty folder is left.
        if problem is None and any(os.path.exists(path) for path in self.paths):  # noqa: PTH110 - never raises
            return
        raise StorageFailed(
            f"{folder}: the folder of shards is gone ({problem or 'none of its files is there'})",
            hint="check that the dataset's volume is mounted on this node and that its server answers",
            exit_code=EXIT_INFRASTRUCTURE,
        ) from cause


_RESTORE = (
    "restore the file and resume, or leave out what cannot be read (dataset.onUnreadableShard: Skip); list all that is "
    "wrong with 'bert-data verify FOLDER'"
)


def other_shards(folder: Path, problems: Mapping[str, str], num_known: int, *, may_skip: bool = True) -> DataUnreadable:
    """Return the error for shards that have changed since the run began.

    Args:
        folder: Where they are.
        problems: What has become of them, by name.
        num_known: Files with which the run began.
        may_skip: Whether the run could go on without them.
    """
    named = _shortened([f"{name} {problem}" for name, problem in problems.items()])
    skip = ", or go on without those that are gone or have changed (dataset.onUnreadableShard: Skip)"
    return DataUnreadable(
        f"{folder}: {len(problems)} of {num_known} shards are not those that this run began with: {named}",
        hint="restore them ('bert-data build' builds again what is missing of its data set, so delete damaged ones "
        f"first), or start over (output.ifExists: New){skip if may_skip else ''}",
    )


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED_FILES]) + (", ..." if len(names) > _NAMED_FILES else "")


def _changed(path: Path, what: str) -> DataUnreadable:
    return DataUnreadable(f"{path}: not the shard that the run began with: {what}", hint=_RESTORE)


def shard_folder_name(sequence_length: int, max_predictions: int) -> str:
    """Return the name of a length's folder below a dataset."""
    return f"seq_len_{sequence_length}_max_pred_{max_predictions}"


def make_shard_folder(folder: Path, *, root: Path) -> None:
    """Create a folder for shards and remove the partial files of writers that were killed.

    Only for the process that holds the dataset's lock: partial files of a running writer would go, too.

    Args:
        folder: the folder.
        root: the dataset's, which is the same one or above.

    Raises:
        InputError: it cannot be written, or is a link of somebody else in the dataset's folder.
    """
    refuse_others_links(root, [folder])
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f".*{PARTIAL_SUFFIX}"):
            leftover.unlink(missing_ok=True)


def is_shard(path: Path) -> bool:
    """Return whether a file holds HDF5 or TensorFlow's records: by its name, or without a suffix by its first bytes."""
    if path.suffix:
        return path.suffix in SUFFIXES or has_tfrecord_name(path)
    # part-00000-of-00500: MLPerf's text has such names as well.
    return is_hdf5(path) or is_tfrecord(path)


def written_name(name: str) -> str:
    """Return the name of the HDF5 file that a shard is converted to: its own, but for the suffix of a TFRecord file."""
    return name if Path(name).suffix in SUFFIXES else f"{without_suffix(name)}{SUFFIXES[0]}"


def shards_below(root: Path) -> list[Path]:
    """Return the shards at any depth, sorted by path, hidden ones left out."""
    return [path for path in files_below(root) if is_shard(path)]


def list_shards(folder: Path) -> list[Path]:
    """Return the shards directly in a folder, sorted by name, hidden ones left out."""
    return [path for path in files_in(folder) if is_shard(path)]


def _list_split(folder: Path, split: Split) -> list[Path]:
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such folder of shards",
            hint="build them with 'bert-data build', or name another folder as the stage's shards "
            "(spec.stages[].pretrain.shards, .evaluate.shards)",
        )
    files = list_shards(folder)
    if found := select_split(files, split):
        return found
    words = TRAINING_WORDS if split == "training" else HELD_OUT_WORDS
    names = ", ".join(path.name for path in files[:5]) or "no shard"
    raise InputError(
        f"{folder}: no {split} shards; found {names}{', ...' if len(files) > 5 else ''}",
        hint=f"expected .hdf5 or .tfrecord files with {' or '.join(words)} in their names; the stage's shards "
        "(spec.stages[].pretrain.shards, .evaluate.shards) names the folder",
    )


def _what(header: ShardHeader) -> str:
    return "documents" if header.documents else "pairs"


def _check_masked(path: Path, header: ShardHeader) -> None:
    if not header.masked:
        raise InputError(
            f"{path}: its samples hold no masks, which this stage needs",
            hint="set the stage's masking to dynamic, or use shards whose masks are in the file",
        )


def _check_header(
    path: Path, header: ShardHeader, sequence_length: int, max_predictions: int, vocabulary: Vocabulary | None
) -> None:
    for name, setting, width, wanted in (
        ("input_ids", "sequenceLength", header.sequence_length, sequence_length),
        ("masked_lm_positions", "maxPredictionsPerSequence", header.max_predictions, max_predictions),
    ):
        # Variable-length files of other programs do not state it; their rows are checked when they are read.
        if width is not None and width != wanted:
            raise InputError(
                f"{path}: dataset {name!r} has shape {(header.rows, width)}, wanted {(header.rows, wanted)}",
                hint=f"set the stage's {setting}: {width}, which the file has, or name other shards",
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
            hint="set the stage's sequenceLength and maxPredictionsPerSequence to the file's, or name other shards",
        )
