"""Finding the shards of one length below a folder, however a recipe has left them: by name, else by what files hold.

Reads names and one header per folder, never a folder's every file; hidden folders are left out. Links to folders are
followed, each folder once. What cannot be decided is an error that lists the candidates.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bert_job.foreign_text import printable
from bert_trainer.dataset.shards.file_names import HELD_OUT_WORDS, TRAINING_WORDS, last_word, select_split
from bert_trainer.dataset.shards.files import read_header, read_ragged
from bert_trainer.dataset.shards.folder import SUFFIXES, is_shard, shard_folder_name
from bert_trainer.dataset.shards.header import Split
from bert_trainer.dataset.shards.tfrecord_file import has_tfrecord_name
from bert_trainer.errors import InputError

_MAX_DEPTH = 5
"""Folders below the one that is searched: NVIDIA's shards lie three deep, below ``hdf5/`` and a corpus."""
_MAX_ENTRIES = 200_000
"""Files and folders looked at, by name alone: some seconds on a share."""
_FILES_TRIED = 8
"""Of a folder, until one is a shard."""
_FIRST_ROWS = 1024
_CANDIDATES_SHOWN = 8
_SYSTEM_FOLDERS = frozenset({"lost+found"})
# What other shards are cut from: MLPerf's and Intel's parts, beside which their scripts put the shards to train on.
_PARTS = re.compile(r"^(hdf5|training|hdf5_seq_\d+)$")
_NUMBER = re.compile(r"\d")
_FIELDS = (
    "spec.dataset.path names the folder above the shards, shards of the stage (spec.stages[].pretrain.shards, "
    ".evaluate.shards) a folder of them"
)


@dataclass(slots=True)
class _Tree:
    """What has been listed, and what could not be."""

    root: Path
    entries: int = 0
    unreadable: list[Path] = field(default_factory=list)
    damaged: list[InputError] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)

    def list(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """Return the folders and the possible shards in a folder, by their names, sorted; nothing twice."""
        folders, files = [], []
        try:
            state = folder.stat()
            if (state.st_dev, state.st_ino) in self.seen:
                return [], []
            self.seen.add((state.st_dev, state.st_ino))
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._count()
                    if entry.name.startswith(".") or entry.name in _SYSTEM_FOLDERS:
                        continue
                    # Folders may be named like shards without a suffix: training_128, part1.
                    if _is_folder(entry):
                        folders.append(folder / entry.name)
                    elif _may_be_shard(entry.name):
                        files.append(folder / entry.name)
        except OSError:
            # Often somebody else's; if it held what is looked for, it is named.
            self.unreadable.append(folder)
        return sorted(folders), sorted(files)

    def _count(self) -> None:
        self.entries += 1
        if self.entries > _MAX_ENTRIES:
            raise InputError(
                f"{printable(self.root)}: got more than {_MAX_ENTRIES} files and folders to search for shards; "
                f"allowed: {_MAX_ENTRIES}",
                hint=_FIELDS,
            )


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A folder with shards, and what its first file holds."""

    folder: Path
    has_split: bool
    sequence_length: int
    max_predictions: int
    is_stated: bool
    """Whether the file says so, or its first rows do."""

    def has_length(self, tokens: int, *, named: bool = False) -> bool:
        """Return whether the rows are of a length. named: the folder's name says so."""
        if self.is_stated:
            return self.sequence_length == tokens
        # A quarter of the rows of English text are full: rows of half the length are of shards of that length.
        return (0 if named else tokens // 2) < self.sequence_length <= tokens

    def has_predictions(self, predictions: int) -> bool:
        return self.max_predictions == predictions or (not self.is_stated and self.max_predictions <= predictions)

    def __str__(self) -> str:
        at_most = "" if self.is_stated else "at most "
        return f"{printable(self.folder)} ({at_most}{self.sequence_length} tokens, {self.max_predictions} predictions)"


def find_shard_folder(
    dataset_root: Path, sequence_length: int, max_predictions: int, split: Split = "training"
) -> Path:
    """Find the folder of one length below a dataset.

    Folders directly below whose names say so come first: those with ``seq_len_<T>_max_pred_<P>``, NVIDIA's long ones
    among them, then Intel's and MLPerf's, which name T only or nothing, cut shards before the parts that they were cut
    from. Where none of these holds rows of the length, all folders are looked into, to a bounded depth: the one whose
    rows have the length is returned, whatever its name.

    Raises:
        InputError: no folder fits, or several do; the message lists what is there and says which field would name it.
    """
    if not dataset_root.is_dir():
        raise InputError(
            f"{printable(dataset_root)}: no such dataset folder", hint=f"build it with 'bert-data build'; {_FIELDS}"
        )
    wanted = _Wanted(sequence_length, max_predictions, split)
    by_name, has_split = _find_by_name(dataset_root, wanted)
    if by_name is not None and has_split:
        return by_name
    try:
        return _find_by_rows(dataset_root, wanted)
    except InputError:
        # Opening it says what it lacks.
        if by_name is not None:
            return by_name
        raise


def find_named_shards(folder: Path, sequence_length: int, max_predictions: int, split: Split = "training") -> Path:
    """Return the folder that a stage names, or the one below it that holds its shards.

    Raises:
        InputError: as ``find_shard_folder``, where the folder itself holds no shard.
    """
    if not folder.is_dir():
        return folder  # opening it says so
    _, files = _Tree(folder).list(folder)
    if any(is_shard(path) for path in files[:_FILES_TRIED]):
        return folder
    return find_shard_folder(folder, sequence_length, max_predictions, split)


@dataclass(frozen=True, slots=True)
class _Wanted:
    tokens: int
    predictions: int
    split: Split

    def fits(self, candidate: _Candidate, *, named: bool = False) -> bool:
        return candidate.has_length(self.tokens, named=named) and candidate.has_predictions(self.predictions)

    def __str__(self) -> str:
        return f"{self.tokens} tokens and {self.predictions} predictions"


def _find_by_name(root: Path, wanted: _Wanted) -> tuple[Path | None, bool]:
    """Return the folder that a known name leads to, and whether it holds the split; None where rows must decide."""
    tree = _Tree(root)
    children, own = tree.list(root)
    fallback: Path | None = None
    for pattern in (
        # No digit behind it: max_pred_20 is also the beginning of max_pred_200.
        rf"{shard_folder_name(wanted.tokens, wanted.predictions)}(?!\d)",
        rf"_shards_(un)?compressed_{wanted.tokens}$",
        rf"^hdf5_seq_{wanted.tokens}$",
        # NVIDIA's MLPerf recipe has one length.
        r"^hdf5_\d+_shards_(uncompressed|varlength)$" if wanted.split == "training" else r"^eval(_varlength)?$",
    ):
        named = [folder for folder in children if re.search(pattern, folder.name)]
        below = [found for folder in named for found in _walk(tree, folder)]
        if own and re.search(pattern, root.name):
            below.insert(0, (root, own))
        looked = [(folder, _look(tree, folder, files, wanted.split)) for folder, files in below]
        # Rows of another length: the name says nothing.
        fitting = [candidate for _, candidate in looked if candidate and wanted.fits(candidate, named=True)]
        holding = [candidate for candidate in fitting if candidate.has_split]
        if len(holding) > 1:
            raise _several(root, wanted, holding)
        if holding:
            return holding[0].folder, True
        # No files of this split, or none that can be read.
        fallback = fallback or next((it.folder for it in fitting), None)
        fallback = fallback or next((folder for folder, candidate in looked if candidate is None), None)
    return fallback, False


def _find_by_rows(root: Path, wanted: _Wanted) -> Path:
    """Return the one folder below whose first rows have the length.

    Raises:
        InputError: there is none, or more than one.
    """
    tree = _Tree(root)
    candidates = [found for folder, files in _walk(tree, root) if (found := _look(tree, folder, files, wanted.split))]
    fitting = [candidate for candidate in candidates if candidate.has_split and wanted.fits(candidate)]
    if stated := [candidate for candidate in fitting if candidate.is_stated]:
        fitting = stated
    best = min((_rank(candidate, root) for candidate in fitting), default=0)
    chosen = [candidate for candidate in fitting if _rank(candidate, root) == best]
    if len(chosen) == 1:
        return chosen[0].folder
    if chosen:
        raise _several(root, wanted, chosen)
    raise _none(tree, wanted, candidates)


def _walk(tree: _Tree, top: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yield folders and what may be shards in them, those above before those below, to a bounded depth."""
    level = [top]
    for _ in range(_MAX_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            folders, files = tree.list(folder)
            if files:
                yield folder, files
            below += folders
        level = below


def _look(tree: _Tree, folder: Path, files: list[Path], split: Split) -> _Candidate | None:
    """Read the first shard of a folder, of the split if it has any; None if none of its first files is one."""
    of_split = select_split(files, split)
    for path in [*of_split[:_FILES_TRIED], *files[:_FILES_TRIED]]:
        try:
            if not (path.is_file() and is_shard(path)):
                continue
            header = read_header(path)
            tokens, predictions = header.sequence_length, header.max_predictions
            is_stated = tokens is not None and predictions is not None
            if not is_stated:
                rows = read_ragged(path, None, slice(0, _FIRST_ROWS))
                tokens = tokens or int(rows.token_counts.max(initial=0))
                predictions = predictions or int(rows.prediction_counts.max(initial=0))
        except InputError as error:
            tree.damaged.append(error)
            continue
        except OSError:
            tree.unreadable.append(path)
            continue
        return _Candidate(folder, path in of_split, tokens or 0, predictions or 0, is_stated)
    return None


def _rank(candidate: _Candidate, root: Path) -> int:
    """Return what names say where rows do not decide: 0 is best."""
    if candidate.folder == root:
        return 0
    if last_word(candidate.folder.name) in HELD_OUT_WORDS:
        return 2  # an evaluation set whose files are named like parts
    return 1 if _PARTS.match(candidate.folder.name) else 0


def _may_be_shard(name: str) -> bool:
    """Return whether a file of this name may be a shard; without a suffix, if its first bytes say so as well."""
    path = Path(name)
    if path.suffix in SUFFIXES or has_tfrecord_name(path):
        return True
    # Not each of the thousands of wiki_00 beside the shards.
    return not path.suffix and _NUMBER.search(name) is not None and any(word in name for word in TRAINING_WORDS)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _several(root: Path, wanted: _Wanted, candidates: list[_Candidate]) -> InputError:
    return InputError(
        f"{printable(root)}: {len(candidates)} folders hold shards of {wanted}: "
        f"{', '.join(printable(candidate.folder) for candidate in candidates[:_CANDIDATES_SHOWN])}"
        f"{', ...' if len(candidates) > _CANDIDATES_SHOWN else ''}",
        hint="name one of them as the stage's shards (spec.stages[].pretrain.shards, .evaluate.shards)",
    )


def _none(tree: _Tree, wanted: _Wanted, candidates: list[_Candidate]) -> InputError:
    same = [candidate for candidate in candidates if candidate.has_length(wanted.tokens)]
    if candidates:
        # Those of the length first.
        listed = [*same, *(candidate for candidate in candidates if candidate not in same)]
        found = ", ".join(map(str, listed[:_CANDIDATES_SHOWN]))
        found += ", ..." if len(listed) > _CANDIDATES_SHOWN else ""
    else:
        folders, _ = _Tree(tree.root).list(tree.root)
        found = ", ".join(printable(folder.name) for folder in folders[:_CANDIDATES_SHOWN]) or "no folder"
        found += ", ..." if len(folders) > _CANDIDATES_SHOWN else ""
    if tree.damaged:
        found += f"; unusable: {str(tree.damaged[0]).splitlines()[0]}"
    if tree.unreadable:
        found += f"; not readable: {', '.join(map(printable, tree.unreadable[:_CANDIDATES_SHOWN]))}"
    return InputError(
        f"{printable(tree.root)}: no shards of {wanted}; found {found}", hint=_remedy(wanted, candidates, same)
    )


def _remedy(wanted: _Wanted, candidates: list[_Candidate], same: list[_Candidate]) -> str:
    without_split = [candidate for candidate in same if wanted.fits(candidate)]
    if without_split:
        kind = "held-out" if wanted.split == "held_out" else "training"
        return f"these have no {kind} files; {_FIELDS}"
    if same:
        numbers = sorted({candidate.max_predictions for candidate in same if candidate.has_split} or {0})
        return f"set maxPredictionsPerSequence: {' or '.join(map(str, numbers))}, which these files have; or {_FIELDS}"
    if candidates:
        lengths = sorted({candidate.sequence_length for candidate in candidates})
        return f"set sequenceLength: {' or '.join(map(str, lengths))}, which these files have; or {_FIELDS}"
    name = shard_folder_name(wanted.tokens, wanted.predictions)
    return f"{_FIELDS}; 'bert-data build' makes one like {name}"
