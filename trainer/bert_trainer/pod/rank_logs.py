"""Files with the lines of each rank, to read after the pods are gone. Trouble with them never stops a run.

They are bounded, since whatever a rank prints would otherwise fill the volume that checkpoints are written to: all of a
run's together take at most ``MAX_BYTES``. Half of that is the newest attempt's, shared alike by its ranks; a rank has
two files, ``rank-N.log`` and, older, ``rank-N.log.1``, so that of what it printed at least the newest half of its share
is there. The other half is that of earlier attempts, of which the oldest are deleted.

This runs before rank 0 has looked at the output folder, which others may write in: the folder of logs and that of the
attempt are opened without following links, and all else is named relative to them.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from bert_trainer.system.atomic_files import open_no_link

MAX_BYTES = 512 * 1_048_576
"""Of the files of all attempts of a run."""

_FILES_PER_RANK = 2
_ATTEMPT = re.compile(r"attempt-([0-9]+)")


class RankLogFiles:
    """Writes a file for each rank of one attempt."""

    def __init__(self, environment: Mapping[str, str], *, ranks: int = 1, max_bytes: int = MAX_BYTES) -> None:
        """Write below BERT_LOG_FOLDER; nothing if it is not set.

        Args:
            environment: Of this pod.
            ranks: How many there are. Lines of others, which a program can pretend, get no file.
            max_bytes: Of all files.
        """
        root, attempt = environment.get("BERT_LOG_FOLDER"), environment.get("BERT_ATTEMPT", "1")
        self._root = Path(root) if root else None
        self._attempt = f"attempt-{attempt}"
        self._folder: int | None = None
        self._ranks = ranks
        self._bytes_of_earlier = max_bytes // 2
        self._bytes_per_file = max_bytes // 2 // ranks // _FILES_PER_RANK
        self._files: dict[int, IO[bytes]] = {}
        self._sizes: dict[int, int] = {}

    def append(self, rank: int, line: bytes) -> None:
        """Add one line; of one that is longer than a file may be, its end."""
        if self._root is None or not 0 <= rank < self._ranks:
            return
        line = line[-self._bytes_per_file :]
        try:
            if self._folder is None:
                self._folder = _open_attempt(self._root, self._attempt, max_bytes_of_earlier=self._bytes_of_earlier)
            if rank not in self._files:
                self._open(rank, self._folder)
            if self._sizes[rank] + len(line) > self._bytes_per_file:
                self._files.pop(rank).close()
                name = _name_of(rank)
                os.replace(name, f"{name}.1", src_dir_fd=self._folder, dst_dir_fd=self._folder)
                self._open(rank, self._folder)
            self._files[rank].write(line)
            self._sizes[rank] += len(line)
        except OSError as error:
            folder = self._root / self._attempt
            sys.stderr.write(f"bert-pod: {folder}: no more log files are written ({error.strerror})\n")
            self.close()
            self._root = None

    def _open(self, rank: int, folder: int) -> None:
        # Unbuffered: each line is one write, and none is lost when the pod dies.
        self._files[rank] = open_no_link(Path(_name_of(rank)), "ab", buffering=0, dir_fd=folder)
        self._sizes[rank] = self._files[rank].tell()

    def close(self) -> None:
        """Close them all."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None


def _name_of(rank: int) -> str:
    return f"rank-{rank}.log"


def _open_attempt(root: Path, attempt: str, *, max_bytes_of_earlier: int) -> int:
    """Return the folder of an attempt, open, with room made beside it; nothing is reached through a link."""
    with suppress(FileExistsError):
        root.mkdir(parents=True)
    with _opened(str(root)) as folders:
        with suppress(FileExistsError):
            os.mkdir(attempt, dir_fd=folders)
        _drop_oldest(folders, attempt, max_bytes_of_earlier)
        return _open_folder(attempt, folders)


def _open_folder(name: str, dir_fd: int | None = None) -> int:
    """Open a folder that others may have put a link in the place of, before anything is written or deleted there."""
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    except NotADirectoryError as error:  # of a link, too
        if not stat.S_ISLNK(os.lstat(name, dir_fd=dir_fd).st_mode):
            raise
        raise OSError(errno.ELOOP, f"{name} is a symbolic link", name) from error


@contextmanager
def _opened(name: str, dir_fd: int | None = None) -> Iterator[int]:
    folder = _open_folder(name, dir_fd)
    try:
        yield folder
    finally:
        os.close(folder)


def _drop_oldest(folders: int, attempt: str, max_bytes: int) -> None:
    """Delete the oldest attempts beside one until the others have no more than so many bytes."""
    earlier = sorted(
        (int(match[1]), name)
        for name in os.listdir(folders)
        if name != attempt and (match := _ATTEMPT.fullmatch(name)) and _is_folder(name, folders)
    )
    sizes = {name: _size_of(name, folders) for _, name in earlier}
    for _, name in earlier:
        if sum(sizes.values()) <= max_bytes:
            return
        del sizes[name]
        shutil.rmtree(name, ignore_errors=True, dir_fd=folders)  # which follows no link either


def _is_folder(name: str, dir_fd: int) -> bool:
    with suppress(FileNotFoundError):  # another attempt that still ends may make room, too
        return stat.S_ISDIR(os.lstat(name, dir_fd=dir_fd).st_mode)
    return False


def _size_of(name: str, dir_fd: int) -> int:
    size = 0
    with suppress(FileNotFoundError), _opened(name, dir_fd) as folder:
        for path in os.listdir(folder):
            with suppress(FileNotFoundError):  # another attempt that still ends may rename its own
                size += os.lstat(path, dir_fd=folder).st_size
    return size
