"""``dataset.json``: what a dataset was made from, how far it is, and what is in it.

It is written when a build starts and replaced when it ends, so that a folder always says whether it can be
trained on and whether a build may go on in it. It holds no samples and knows nothing of HDF5.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from bert_trainer.errors import InputError
from bert_trainer.system.atomic_files import write_json_atomically

RECORD_FILE = "dataset.json"


class _Part(BaseModel):
    # A newer release may tell more of what it made.
    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class BuildSettings(_Part):
    """Everything but text and lengths that decides what the shards hold."""

    # What is not known here cannot be compared.
    model_config = ConfigDict(extra="forbid")

    generator_version: int
    vocabulary_size: int | None
    """Empty where the vocabulary was given."""
    vocabulary: str
    """``trained``, or the SHA-256 of the one that was given."""
    lower_case: bool
    held_out_fraction: float
    near_duplicate_similarity: float
    dupe_factor: int
    masked_lm_probability: float
    short_sequence_probability: float
    seed: int
    masking: str = "static"
    """``dynamic``: training files hold no masks."""
    whole_word_masking: bool = False
    recipe: str | None = None
    """Whose names folders and files have."""
    layout: str = "compact"
    """Of the files that a loader reads."""
    num_balanced_shards: int | None = None
    """Files that the training parts of a length are cut into again; empty: none."""
    corpus_name: str | None = None
    """Of the text when the build was begun, where names of files hold it."""
    weights: tuple[float, ...] = ()
    """Of the corpora, in order; empty where all are 1."""
    num_shards: int | None
    """Empty where the size of the text decided."""


class Counts(_Part):
    """What became of the text."""

    documents_read: int
    duplicates_dropped: int
    """Documents that nearly repeat an earlier one."""
    documents_not_drawn: int = 0
    """Training documents that the small weight of their corpus leaves out."""
    documents_training: int
    documents_held_out: int
    tokens_training: int
    """WordPieces of the text, each counted once."""
    tokens_held_out: int


class BalancedShards(_Part):
    """What a length's training parts were cut into again: the files that training reads."""

    folder: str
    """Below the dataset's folder."""
    training: dict[str, int]
    """Samples by file name."""


class LengthRecord(_Part):
    """One folder of shards."""

    sequence_length: int
    max_predictions: int
    folder: str
    """Below the dataset's folder."""
    training: dict[str, int]
    """Samples by file name."""
    held_out: dict[str, int]
    """Samples by file name."""
    samples_training: int
    samples_held_out: int
    balanced: BalancedShards | None = None

    @property
    def files(self) -> dict[str, dict[str, int]]:
        """All files that have to be there and their samples, by their folder below the dataset's."""
        files = {self.folder: {**self.training, **self.held_out}}
        return files if self.balanced is None else {**files, self.balanced.folder: self.balanced.training}


class DatasetRecord(_Part):
    """The whole file."""

    format: Literal[1] = 1
    """Raised whenever a reader of the file would have to know."""
    complete: bool = False
    settings: BuildSettings
    source: str
    """The text as the user named it; only its content matters."""
    fingerprint: str
    """Of the corpus' files; as long as it stays, the content is not read again."""
    corpus_sha256: str | None = None
    """Of the text. Empty until it was read to its end."""
    vocabulary_sha256: str | None = None
    vocabulary_entries: int | None = None
    counts: Counts | None = None
    lengths: tuple[LengthRecord, ...] = ()
    word_hit_rate: float | None = None
    """Share of the words of the text that were not new to the process that encoded them."""
    unknown_share: float | None = None
    """Share of the text's tokens that are [UNK], in [0, 1]."""
    seconds: float = 0.0
    """Spent on building, all attempts together."""
    cpu_seconds: float = 0.0
    """Processor time of the build and its workers, all attempts together."""

    def write(self, root: Path) -> None:
        """Replace the file in the dataset's folder."""
        write_json_atomically(root / RECORD_FILE, self.model_dump(mode="json"))


def read_record(root: Path) -> DatasetRecord | None:
    """Read the file of a dataset; ``None`` where there is none.

    Raises:
        InputError: it cannot be read or was written by another version.
    """
    path = root / RECORD_FILE
    document = _read_json(path)
    if document is None:
        return None
    try:
        return DatasetRecord.model_validate(document)
    except ValidationError as error:
        raise InputError(
            f"{path}: not readable by this version ({error.error_count()} problem(s); format "
            f"{document.get('format')!r}, this version writes 1)",
            hint="where a newer release made it, use that one; otherwise delete the folder or choose another one",
        ) from error


def find_record(shard_folder: Path) -> tuple[Path, DatasetRecord] | None:
    """Return the dataset that a folder of shards is part of, its folder and its record; ``None``: of none.

    Raises:
        InputError: as ``read_record``.
    """
    # The shards of a recipe lie a folder deeper, below their corpus' name.
    roots = (shard_folder.parent, shard_folder.parent.parent)
    return next(((root, found) for root in roots if (found := read_record(root))), None)


def check_complete(shard_folder: Path) -> None:
    """Make sure that a folder of shards is not part of a dataset whose build has not ended.

    Folders of ready shards have no ``dataset.json`` above them and pass.

    Raises:
        InputError: the build was interrupted or goes on, or files that it made are gone.
    """
    found = find_record(shard_folder)
    if found is None:
        return
    root, record = found
    relative = shard_folder.relative_to(root).as_posix()
    names = next((length.files[relative] for length in record.lengths if relative in length.files), None)
    if not record.complete or names is None:
        raise InputError(
            f"{shard_folder}: the dataset is not complete",
            hint="run its prepare stage ('bert-data build') to the end",
        )
    missing = [name for name in names if not (shard_folder / name).is_file()]
    if missing:
        raise InputError(
            f"{shard_folder}: {len(missing)} of {len(names)} shards are gone, first {missing[0]}",
            hint="run 'bert-data build' again: it makes what is missing",
        )


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})", hint="delete the folder or choose another one") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: not a JSON object", hint="delete the folder or choose another one")
    return document
