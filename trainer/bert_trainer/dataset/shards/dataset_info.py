"""``dataset.json``: what a dataset is built from, whether it is complete, and which files it has.

It is written when a build starts and replaced when it ends, so a folder always states whether it can be trained on and
whether a build may resume in it. HDF5 is not needed to read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from bert_trainer.errors import InputError
from bert_trainer.system.atomic_files import write_json_atomically

DATASET_FILE = "dataset.json"
_MAX_BYTES = 8 << 20
"""Of such a file, whoever wrote it; it names every shard, in some 40 bytes."""


class _Part(BaseModel):
    # A newer release may add fields.
    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class BuildSettings(_Part):
    """Everything but text and lengths that decides the content of the shards."""

    # Unlike the rest of the file: a setting that this version does not know cannot be compared.
    model_config = ConfigDict(extra="forbid")

    # A setting that is added needs a default, what builds did before it: dataset.json of earlier releases lacks it.
    generator_version: int
    vocabulary_size: int | None
    """Empty where the vocabulary was given."""
    vocabulary: str
    """``trained``, or the SHA-256 of the given one."""
    lower_case: bool
    held_out_fraction: float
    near_duplicate_similarity: float
    samples: str = "pairs"
    """``documents``: rows are pieces of documents."""
    dupe_factor: int
    masked_lm_probability: float
    short_sequence_probability: float
    seed: int
    masking: str = "static"
    """``dynamic``: training files hold no masks."""
    whole_word_masking: bool = False
    recipe: str | None = None
    """The recipe that names folders and files."""
    layout: str = "compact"
    """Layout of the files that training reads."""
    num_balanced_shards: int | None = None
    """Files that the training parts of a length are resharded into; empty: they are not."""
    corpus_name: str | None = None
    """Name of the text when the build was started, if it is part of file names."""
    weights: tuple[float, ...] = ()
    """Weights of the corpora, in order; empty if all are 1."""
    tokenizer: str | None = None
    """How text is split, as files beside the vocabulary say; empty if as BERT does."""
    num_shards: int | None
    """Empty if the size of the text decided."""


class Counts(_Part):
    """Counts of the corpus's documents and tokens."""

    documents_read: int
    duplicates_dropped: int
    """Near-duplicates of an earlier document."""
    documents_not_drawn: int = 0
    """Training documents left out by a small weight of their corpus."""
    documents_training: int
    documents_held_out: int
    tokens_training: int
    """WordPieces of the text, each counted once."""
    tokens_held_out: int


class BalancedShards(_Part):
    """The files that a length's training parts were resharded into: training reads these."""

    folder: str
    """Below the dataset's folder."""
    training: dict[str, int]
    """Samples by file name."""


class LengthInfo(_Part):
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
    row_tokens_training: int | None = None
    """Tokens of the training rows, [CLS] and [SEP] of every piece included; of documents alone."""
    balanced: BalancedShards | None = None

    @property
    def files(self) -> dict[str, dict[str, int]]:
        """Samples of every file that must exist: by folder below the dataset's, then by file name."""
        files = {self.folder: {**self.training, **self.held_out}}
        return files if self.balanced is None else {**files, self.balanced.folder: self.balanced.training}


class DatasetInfo(_Part):
    """The whole file."""

    format: Literal[1] = 1
    """Raised by changes that older readers would misunderstand."""
    complete: bool = False
    settings: BuildSettings
    source: str
    """The text as the user named it. Not compared: only the content decides."""
    fingerprint: str
    """Of the corpus's files. While it stays the same, the content is not read again."""
    corpus_sha256: str | None = None
    """Of the text; empty until it was read to its end."""
    vocabulary_sha256: str | None = None
    vocabulary_entries: int | None = None
    counts: Counts | None = None
    lengths: tuple[LengthInfo, ...] = ()
    word_hit_rate: float | None = None
    """Share of the text's words that were in the cache of the process that encoded them."""
    unknown_share: float | None = None
    """Share of the text's tokens that are [UNK], in [0, 1]."""
    seconds: float = 0.0
    """Time of the build, all attempts together."""
    cpu_seconds: float = 0.0
    """Processor time of the build and its workers, all attempts together."""

    def write(self, root: Path) -> None:
        """Replace the file in the dataset's folder."""
        write_json_atomically(root / DATASET_FILE, self.model_dump(mode="json"))


def read_dataset_info(root: Path) -> DatasetInfo | None:
    """Read ``dataset.json`` from a dataset's folder; None if there is none.

    Raises:
        InputError: it cannot be read, or another version wrote it.
    """
    path = root / DATASET_FILE
    document = read_json_object(path, hint="delete the folder or choose another one")
    if document is None:
        return None
    try:
        return DatasetInfo.model_validate(document)
    except ValidationError as error:
        raise InputError(
            f"{path}: not readable by this version ({error.error_count()} problem(s); format "
            f"{document.get('format')!r}, this version writes 1)",
            hint="if a newer release wrote it, use that one; otherwise delete the folder or choose another one",
        ) from error


def find_dataset_info(shard_folder: Path) -> tuple[Path, DatasetInfo] | None:
    """Return the folder and the info of the dataset that a folder of shards belongs to; None if it belongs to none.

    Raises:
        InputError: as ``read_dataset_info``.
    """
    # The shards of NVIDIA's recipe are one folder deeper, below the name of their corpus.
    roots = (shard_folder.parent, shard_folder.parent.parent)
    return next(((root, found) for root in roots if (found := read_dataset_info(root))), None)


def check_complete(shard_folder: Path, is_wanted: Callable[[Path], bool] = lambda _: True) -> None:
    """Refuse a folder of shards that belongs to a dataset whose build has not finished.

    Shards of other programs have no ``dataset.json`` above them and pass. is_wanted: which files have to be there.

    Raises:
        InputError: the build was interrupted or is running, or files of it are missing.
    """
    found = find_dataset_info(shard_folder)
    if found is None:
        return
    root, info = found
    relative = shard_folder.relative_to(root).as_posix()
    names = next((length.files[relative] for length in info.lengths if relative in length.files), None)
    if not info.complete or names is None:
        raise _not_complete(shard_folder)
    paths = [path for name in names if is_wanted(path := shard_folder / name)]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise InputError(
            f"{shard_folder}: {len(missing)} of {len(paths)} shards are missing, first {missing[0]}",
            hint="run 'bert-data build' again: it builds what is missing",
        )


def refuse_half_built(shard_folder: Path) -> None:
    """Refuse a folder of a dataset that is being built anew, whatever is in it by now.

    Raises:
        InputError: the build was interrupted or is running.
    """
    found = find_dataset_info(shard_folder)
    if found is not None and not found[1].complete:
        raise _not_complete(shard_folder)


def _not_complete(shard_folder: Path) -> InputError:
    return InputError(
        f"{shard_folder}: the dataset is not complete", hint="run its prepare stage ('bert-data build') to the end"
    )


def read_json_object(path: Path, *, hint: str) -> dict[str, Any] | None:
    """Read a JSON object; None if the file does not exist.

    Raises:
        InputError: it cannot be read, or holds something else; with the given hint.
    """
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: got a folder, a pipe or a device; allowed: a file", hint=hint)
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise InputError(
                f"{path}: got more than {_MAX_BYTES >> 20} MiB; allowed: a JSON object of settings", hint=hint
            )
        document = json.loads(content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({error})", hint=hint) from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: not a JSON object", hint=hint)
    return document
