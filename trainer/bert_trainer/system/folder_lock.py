"""An exclusive lock on a folder, for data builds; the kernel releases it when its holder dies.

On file systems without locks it does nothing: there, one build at a time is up to the user.
"""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bert_trainer.errors import TrainerError
from bert_trainer.system.atomic_files import disk_errors, open_no_link

_LOCK_FILE = ".lock"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


def was_ever_locked(folder: Path) -> bool:
    """Return whether the folder has a lock file, held or not."""
    return (folder / _LOCK_FILE).exists()


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it is missing.

    Raises:
        TrainerError: another process holds it.
        InputError: the folder cannot be written, or a link has the name of the lock's file.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / _LOCK_FILE
    with disk_errors(path):
        # Never deleted: a process that has just opened it would lock a file without a name, and the next one a new
        # file.
        file = open_no_link(path, "w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TrainerError(
                f"{folder}: another process is building here",
                hint="wait until it has finished, then start again",
            ) from error
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        yield
