"""Finding the files of a folder, and digests of files that may be large.

A folder that cannot be read is an error: skipping it would silently leave data out.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bert_job.foreign_text import printable
from bert_trainer.errors import InputError
from bert_trainer.system.heartbeat import watched

_SYSTEM_FOLDERS = frozenset({"lost+found"})
"""At the top of a volume; for nobody but its file system."""


@dataclass(frozen=True, slots=True)
class Search:
    """What lies below a folder, each list sorted by path."""

    files: list[Path] = field(default_factory=list)
    hidden: list[Path] = field(default_factory=list)
    """Files and folders whose names begin with a full stop."""
    no_files: list[Path] = field(default_factory=list)
    """Links to nothing, and what is neither a file nor a folder."""


def unreadable(path: Path | str, error: OSError | ValueError) -> InputError:
    """Return the refusal of a file that the system does not give: no right to it, a broken disk, a NUL in its path."""
    cause = getattr(error, "strerror", None) or error
    return InputError(f"{printable(path)}: cannot be read ({cause})", hint="check its owner and rights, and its disk")


def files_below(root: Path) -> list[Path]:
    """Return the files that ``search_below`` finds; raises as that does."""
    return search_below(root).files


def search_below(root: Path) -> Search:
    """Find all files at any depth; hidden ones, and those of hidden folders, are left out.

    Links to folders are followed, each folder once.

    Raises:
        InputError: a folder cannot be listed or entered.
    """
    found = Search()
    seen: set[tuple[int, int]] = set()
    # By device and inode: links to folders may lead back to where they are.
    for folder, folders, names in os.walk(root, onerror=_refuse, followlinks=True):
        state = Path(folder).stat()
        if (state.st_dev, state.st_ino) in seen:
            folders.clear()
            continue
        seen.add((state.st_dev, state.st_ino))
        found.hidden.extend(Path(folder, name) for name in (*folders, *names) if name.startswith("."))
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SYSTEM_FOLDERS)
        for path in (Path(folder, name) for name in names if not name.startswith(".")):
            watched().alive()  # over a network a listing takes long, and next to no processor
            (found.files if _is_file(path) else found.no_files).append(path)
    for paths in (found.files, found.hidden, found.no_files):
        paths.sort(key=lambda path: path.relative_to(root).as_posix())
    return found


def files_in(folder: Path) -> list[Path]:
    """Return the files directly in a folder, sorted by name, hidden ones left out. Raises InputError as above."""
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        _refuse(error)
        raise
    return [path for path in paths if _is_file(path)]


def _is_file(path: Path) -> bool:
    """Return whether it is a regular file.

    Raises:
        InputError: its folder may be listed but not entered.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False  # a link to nothing
    except OSError as error:
        _refuse(error)
        raise


def _refuse(error: OSError) -> None:
    raise InputError(
        f"{error.filename}: cannot be listed ({error.strerror})",
        hint="check its owner and rights, or take it out of the folder",
    ) from error


_PIECE_BYTES = 1 << 20


def digest_file(path: Path, algorithm: str, advance: Callable[[int], None] = lambda _: None) -> str:
    """Return a file's digest, hexadecimal, in constant memory.

    Args:
        path: The file.
        algorithm: As hashlib names it.
        advance: Called with the number of bytes after each read; may raise.

    Raises:
        OSError: the file cannot be read.
    """
    # Against transfer errors, not attackers: OpenSSL in FIPS mode refuses MD5 otherwise, and MD5 is what some publish.
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            advance(len(piece))
    return digest.hexdigest()


def bytes_in_holes(path: Path, enough: int) -> int:
    """Return how much of a file reads as zeros without being stored; 0 where the file system does not tell.

    A file of a few kilobytes may claim any size that way. Counting ends where more than ``enough`` are found.

    Raises:
        OSError: the file cannot be read.
    """
    found, at, size = 0, 0, path.stat().st_size
    with path.open("rb", buffering=0) as file:
        while at < size and found <= enough:
            hole = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            if hole >= size:
                break
            try:
                at = os.lseek(file.fileno(), hole, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # nothing but a hole up to the end
                    raise
                at = size
            found += at - hole
    return found
