"""Files that appear whole or not at all, and what a failing disk is called.

Content is written beside its place, flushed to the disk and renamed. Nothing here knows what the files hold.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert_trainer.errors import EXIT_FAILED, EXIT_INFRASTRUCTURE, InputError, StorageFailed, TrainerError

PARTIAL_SUFFIX = ".partial"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)

# What a volume answers with that is full, has become read-only, was taken away or cannot be reached.
_TROUBLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT),
    *(errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EREMOTEIO),
)


def is_full(error: OSError) -> bool:
    """Tell whether an error says that there is no room."""
    return error.errno in _FULL


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says while ``path`` is written into an error that names it.

    Raises:
        InputError: the place cannot be written at all (rights, read-only, a file where a folder should be).
        TrainerError: the disk is full or failing.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise TrainerError(
                f"{path}: cannot be written, the disk is full ({reason})",
                hint="free space or choose another folder, then start again: finished files are kept",
            ) from error
        if error.errno in _FORBIDDEN:
            raise InputError(
                f"{path}: cannot be written ({reason})",
                hint="check the folder's owner, rights and mount options",
            ) from error
        raise TrainerError(f"{path}: cannot be written ({reason})") from error


@contextmanager
def storage_errors(has_trained: Callable[[], bool]) -> Iterator[None]:
    """Call trouble with files by its name, whichever error it came as; what was told already stays as it is.

    has_trained: whether a step was taken, so that neither settings nor rights can be to blame.

    Raises:
        StorageFailed: with exit code 4 after the first step, with that of the error itself before it.
    """
    try:
        yield
    except (TrainerError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        is_told = isinstance(error, TrainerError) and error.told
        if is_told or not isinstance(cause, OSError) or cause.errno not in _TROUBLE:
            raise
        message, exit_code = str(error), EXIT_FAILED
        if isinstance(error, TrainerError):
            exit_code = error.exit_code
        raise StorageFailed(message, exit_code=EXIT_INFRASTRUCTURE if has_trained() else exit_code) from cause


@contextmanager
def replaced_atomically(path: Path) -> Iterator[Path]:
    """Give a file beside ``path`` to write; flush it to the disk and rename it, or, on failure, leave nothing behind.

    Raises:
        InputError, TrainerError: as ``disk_errors``.
    """
    # The process number keeps two writers of the same file apart; their content is the same.
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
    with disk_errors(path):
        try:
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file beside its place, flush it to the disk, rename it; on failure nothing is left behind.

    Raises:
        InputError, TrainerError: as ``disk_errors``.
    """
    # The process number keeps two writers of the same file apart; their content is the same.
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
    with disk_errors(path):
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def write_json_atomically(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON object, readable by people; raises as ``write_atomically``."""
    write_atomically(path, (json.dumps(document, indent=2, sort_keys=False) + "\n").encode())
