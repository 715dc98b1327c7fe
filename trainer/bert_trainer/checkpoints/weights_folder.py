"""Weights in a folder of their own, with a record of what they are: swapped as a whole, verified before use.

``model.safetensors`` and a JSON record with its SHA-256. Of such a folder there is always one complete version on disk:
the one before is moved aside until the next one is in its place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bert_trainer.checkpoints.checkpoint import MODEL_FILE, save_tensors, sha256_of
from bert_trainer.checkpoints.tensor_files import read_safetensors
from bert_trainer.config.json_files import read_json_file
from bert_trainer.errors import InputError
from bert_trainer.output.run_folder import remove_folder
from bert_trainer.system.atomic_files import disk_errors, random_suffix, write_json_atomically

SUM_KEY = "model_sha256"


def write_weights_folder(
    target: Path,
    tensors: Mapping[str, Tensor],
    record: Mapping[str, Any],
    record_file: str,
    *,
    before_commit: Callable[[], None],
) -> None:
    """Replace a folder of weights.

    Args:
        target: The folder.
        tensors: By name.
        record: What the JSON file says besides the weights' SHA-256.
        record_file: Its name.
        before_commit: Called when everything is written and nothing is replaced yet; may raise.

    Raises:
        TrainerError: the disk is full or failing, or what ``before_commit`` raises.
    """

    def fill(staging: Path) -> None:
        on_host = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
        save_tensors(on_host, staging / MODEL_FILE)
        record_with_sum = {**record, SUM_KEY: sha256_of(staging / MODEL_FILE)}
        write_json_atomically(staging / record_file, record_with_sum)

    swap_folder(target, fill, before_commit=before_commit)


def read_weights_folder(folder: Path, record_file: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a folder's tensors, by name, and its record.

    Raises:
        InputError: it is incomplete or damaged.
    """
    hint = "restore the folder from a copy, or start over (output.ifExists: New)"
    if not (folder / record_file).exists():
        raise InputError(f"{folder / record_file}: is missing", hint=hint)
    record = read_json_file(folder / record_file)
    path = folder / MODEL_FILE
    try:
        found = sha256_of(path) if path.is_file() else None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="check the output volume") from error
    if found is None or found != record.get(SUM_KEY):
        raise InputError(
            f"{path}: {'is missing' if found is None else f'its SHA-256 is not the one in {record_file}'}",
            hint=hint,
        )
    return read_safetensors(path), record


def swap_folder(target: Path, fill: Callable[[Path], None], *, before_commit: Callable[[], None]) -> None:
    """Write a folder and put it in the place of the one that is there.

    Args:
        target: The folder.
        fill: Writes the files into the folder that it is given.
        before_commit: Called when everything is written and nothing is replaced yet; may raise.

    Raises:
        TrainerError: the disk is full or failing, or what ``before_commit`` raises.
    """
    staging, before = target.with_name(f".{target.name}.{random_suffix()}.aside"), _before_of(target)
    with disk_errors(target):
        remove_aside(target)
        staging.mkdir(parents=True)
        try:
            fill(staging)
            for path in staging.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            before_commit()
        except BaseException:
            remove_folder(staging)
            raise
        remove_folder(before)
        if target.exists():
            # Not deleted first: a kill at this point would leave no version at all (see restore_folder).
            target.rename(before)
        staging.rename(target)
        _sync_folder(target.parent)
        remove_folder(before)


def restore_folder(target: Path) -> None:
    """Clean up after a kill in ``swap_folder``: afterwards the newest version that was in place is there again."""
    with disk_errors(target):
        before = _before_of(target)
        # A link is not ours: a folder was renamed to that name.
        if not target.exists() and before.exists() and not before.is_symlink():
            before.rename(target)
    remove_folder(_before_of(target))
    remove_aside(target)


def remove_aside(target: Path) -> None:
    """Delete what killed processes have left of folders that were to get the name of ``target``."""
    # Without the random part: as a release before named them.
    name = re.compile(rf"\.{re.escape(target.name)}(\.[0-9a-f]{{16}})?\.aside")
    # A folder that is not there yet holds nothing.
    for path in target.parent.glob(".*.aside"):
        if name.fullmatch(path.name):
            remove_folder(path)


def _before_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.before")


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
