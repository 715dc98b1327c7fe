"""Files of a folder. One that may not be looked into is an error: what is in there would be left out in silence."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from bert_trainer.errors import InputError

_SYSTEM_FOLDERS = frozenset({"lost+found"})
"""At the top of a volume; for nobody but its file system."""


def files_below(root: Path) -> list[Path]:
    """Return all files at any depth, sorted by path; hidden ones, and those of hidden folders, are left out.

    Links to folders are followed, each folder once.

    Raises:
        InputError: a folder cannot be listed or entered.
    """
    found: list[Path] = []
    seen: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(root, onerror=_refuse, followlinks=True):
        state = Path(folder).stat()
        if (state.st_dev, state.st_ino) in seen:
            folders.clear()
            continue
        seen.add((state.st_dev, state.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SYSTEM_FOLDERS)
        paths = (Path(folder, name) for name in names if not name.startswith("."))
        found += [path for path in paths if _is_file(path)]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def files_in(folder: Path) -> list[Path]:
    """Return the files directly in a folder, sorted by name, hidden ones left out. Raises InputError as above."""
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        _refuse(error)
        raise
    return [path for path in paths if _is_file(path)]


def _is_file(path: Path) -> bool:
    """Return whether there is a file; a folder that may be listed but not entered does not let anybody know."""
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
