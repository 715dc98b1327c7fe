"""Atomic file writes, and errors of disks turned into messages.

Content is written to a temporary file in the same folder, synced and renamed. Nothing here knows what the files hold.

Others may write in a run's folder, such as a group that shares it. A temporary file therefore has a name that they
cannot guess and is made anew (O_EXCL), so that no link lies in wait under that name; a file that is appended to is
never a link (O_NOFOLLOW), nor a FIFO that would keep us waiting; links of others to folders are refused as Linux does
in /tmp (``refuse_others_links``). What this does not defend: who owns a folder, or writes in one without the sticky
bit, can exchange what lies in it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from bert_trainer.errors import EXIT_FAILED, EXIT_INFRASTRUCTURE, InputError, StorageFailed, TrainerError

PARTIAL_SUFFIX = ".partial"
# A release before named them by process ids.
_PARTIAL_NAME = re.compile(rf"\..+\.([0-9]+|[0-9a-f]{{16}}){re.escape(PARTIAL_SUFFIX)}")

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WORTH_A_WORD_BYTES = 100_000
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ELOOP)

# Errors of a volume that is full, became read-only, was detached or cannot be reached, and of a machine that is short
# of files, locks or memory: none is the job's fault.
_TROUBLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT),
    *(errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EREMOTEIO),
    *(errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.ENETDOWN, errno.ENETUNREACH, errno.ENOLCK),
    *(errno.EAGAIN, errno.EBUSY, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)


def is_full(error: OSError) -> bool:
    """Return whether an error means that no space is left."""
    return error.errno in _FULL


def is_storage_error(error: BaseException | None) -> bool:
    """Return whether an error is a volume's, which may be transient and is not the user's mistake."""
    return isinstance(error, OSError) and error.errno in _TROUBLE


def is_outage(error: BaseException | None, *, was_writable: bool = True) -> bool:
    """Return whether an error is a volume's outage, not caused by the user's settings or permissions.

    was_writable: Whether something has been written where it happened, so that it is full or read-only since then.
    """
    number = getattr(error, "errno", None)
    if number in (errno.EACCES, errno.EPERM) or (number in (*_FULL, errno.EROFS) and not was_writable):
        return False
    return is_storage_error(error)


def describe_free(path: Path) -> str:
    """Return how much is free where a file lies or would lie, for a message; empty where nobody tells."""
    try:
        state = os.statvfs(next(place for place in (path, *path.parents) if place.exists()))
    except (OSError, StopIteration):
        return ""
    if state.f_files and not state.f_favail:
        return "no more files are possible there"
    return f"{state.f_bavail * state.f_frsize / 1e6:.1f} MB are free" if state.f_blocks else ""


def _describe_room(path: Path, needed_bytes: int | None) -> str:
    """Return which volume a path is on, what is needed and what is free there; empty if nothing is known."""
    needed = ""
    if needed_bytes is not None and needed_bytes >= _WORTH_A_WORD_BYTES:
        needed = f"{needed_bytes / 1e6:.1f} MB at least are needed"
    figures = ", ".join(figure for figure in (needed, describe_free(path)) if figure)
    try:
        path = path.resolve()  # "." is always a mount point, and a link leads to another volume
        mount = next((place for place in (path, *path.parents) if place.is_mount()), None)
    except OSError:  # a volume that is in more trouble than being full
        return ""
    return f" on the volume at {mount}{f' ({figures})' if figures else ''}" if mount else ""


@contextmanager
def disk_errors(path: Path, *, needed_bytes: int | None = None) -> Iterator[None]:
    """Turn an OSError that is raised while ``path`` is written into an error that names it.

    Args:
        path: A file or a folder.
        needed_bytes: What is written there at least, for the words about a full disk; None: not known.

    Raises:
        InputError: the place cannot be written at all (rights, read-only, a file where a folder should be).
        TrainerError: the disk is full or failing.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            # What a volume has free says nothing about a quota, nor about a limit on the size of a file.
            room = _describe_room(path, needed_bytes) if error.errno == errno.ENOSPC else ""
            raise TrainerError(
                f"{path}: cannot be written, the disk is full ({reason})",
                hint=f"free space{room} or choose another folder, then start again: finished files are kept",
            ) from error
        if error.errno == errno.ELOOP:
            raise InputError(
                f"{path}: got a symbolic link where a file is written; allowed: a file",
                hint="delete the link, or put the file that it leads to in its place",
            ) from error
        if error.errno in _FORBIDDEN:
            raise InputError(
                f"{path}: cannot be written ({reason})",
                hint="check the folder's owner, rights and mount options",
            ) from error
        raise TrainerError(f"{path}: cannot be written ({reason})") from error


@contextmanager
def storage_errors(has_trained: Callable[[], bool]) -> Iterator[None]:
    """Turn errors that a failing volume caused into StorageFailed; those that were reported already pass unchanged.

    Args:
        has_trained: Whether a step was taken, so that neither settings nor permissions can be the cause.

    Raises:
        StorageFailed: with exit code 4 after the first step, with that of the error itself before it.
    """
    try:
        yield
    except (TrainerError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        is_reported = isinstance(error, TrainerError) and error.is_reported
        if is_reported or not is_storage_error(cause):
            raise
        message, exit_code = str(error), EXIT_FAILED
        if isinstance(error, TrainerError):
            exit_code = error.exit_code
        raise StorageFailed(message, exit_code=EXIT_INFRASTRUCTURE if has_trained() else exit_code) from cause


@contextmanager
def replaced_atomically(path: Path, *, needed_bytes: int | None = None) -> Iterator[Path]:
    """Yield a temporary path in the same folder; sync what was written there and rename it, or delete it on failure.

    Args:
        path: The file.
        needed_bytes: As ``disk_errors`` takes it.

    Raises:
        InputError, TrainerError: as ``disk_errors``.
    """
    with disk_errors(path, needed_bytes=needed_bytes):
        # In the same folder, since a rename across file systems is a copy.
        partial = create_partial(path)
        try:
            yield partial
            # Synced before the rename: otherwise a power failure may leave the new name on an empty file.
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        # Interrupts as well: not every folder is cleared of partial files later (make_shard_folder, RunFolder).
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def random_suffix() -> str:
    """Return 64 random bits in hexadecimal, for names that cannot be guessed."""
    return secrets.token_hex(8)


def create_partial(path: Path, suffix: str = PARTIAL_SUFFIX) -> Path:
    """Create an empty file beside ``path``, for what will get its name, and return where; raises OSError."""
    partial = path.with_name(f".{path.name}.{random_suffix()}{suffix}")
    # O_EXCL alone follows no link either (POSIX open); the mode is that of any file, as the umask leaves it.
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
    return partial


def open_no_link(path: Path, mode: str, buffering: int = -1, *, dir_fd: int | None = None) -> IO[Any]:
    """Open a file as ``open`` does, for writing or appending, if its name is that of a file or of nothing.

    Args:
        path: Of the file; relative to ``dir_fd`` where that is given.
        mode: As of ``open``.
        buffering: As of ``open``.
        dir_fd: An open folder.

    Raises:
        OSError: as ``open``; ELOOP for a link; EEXIST for a FIFO, a device or a socket. A FIFO that nobody reads would
            otherwise keep whoever opens it waiting for ever.
    """

    def no_link(name: str, flags: int) -> int:
        try:
            # O_NONBLOCK: to files it means nothing (POSIX open).
            file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=dir_fd)
        except OSError as error:
            if error.errno != errno.ENXIO or stat.S_ISREG(os.lstat(name, dir_fd=dir_fd).st_mode):
                raise
            raise _no_file(name) from error
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise _no_file(name)
        return file

    return open(path, mode, buffering, opener=no_link)


def _no_file(name: str) -> OSError:
    return OSError(errno.EEXIST, "a FIFO, a device or a socket has the name, not a file", name)


def refuse_others_links(folder: Path, written: Iterable[Path]) -> None:
    """Refuse symbolic links of other users in a folder, which could redirect our writes.

    A link is followed if its owner is this process's user, or the folder's: the kernel's rule for world-writable
    folders (Documentation/admin-guide/sysctl/fs.rst, protected_symlinks). Root's links pass as well. Links that
    nothing is written through are nobody's trouble.

    Args:
        folder: whose owner is trusted.
        written: folders below it that will be written in, there or not. Each is looked at, and what is above it.

    Raises:
        InputError: there is one.
    """
    with disk_errors(folder):
        trusted = {0, os.geteuid(), folder.stat().st_uid}
        places = {place for path in written for place in (path, *path.parents) if folder in place.parents}
        found = [place for place in places if place.is_symlink() and place.lstat().st_uid not in trusted]
    if found:
        first = min(found)
        raise InputError(
            f"{first}: got a symbolic link of uid {first.lstat().st_uid}; allowed: links of uid {os.geteuid()}, which "
            "writes here, and of the folder's owner",
            hint="delete the link, or have the folder's owner make it",
        )


def remove_partial_files(folder: Path) -> None:
    """Delete the temporary files that killed processes have left directly in a folder; raises as ``disk_errors``."""
    for path in folder.glob(f".*{PARTIAL_SUFFIX}"):
        if _PARTIAL_NAME.fullmatch(path.name) and path.is_file():
            with disk_errors(path):
                path.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file through ``replaced_atomically``; raises as that does."""
    with replaced_atomically(path, needed_bytes=len(content)) as partial:
        partial.write_bytes(content)


def write_json_atomically(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON object, readable by people; raises as ``write_atomically``."""
    write_atomically(path, (json.dumps(document, indent=2, sort_keys=False) + "\n").encode())
