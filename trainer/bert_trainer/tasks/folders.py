"""Where in a folder a task's official files lie."""

from __future__ import annotations

from pathlib import Path

from bert_job.foreign_text import printable
from bert_trainer.errors import InputError
from bert_trainer.tasks.delimited import listed


def find_folder(folder: Path, name: str, choices: list[list[str]]) -> Path:
    """Return the folder that has the files: the given one, or the one in it that is called as the task's.

    Args:
        folder: As it was named.
        name: Of the task's own folder; capital letters and hyphens do not matter.
        choices: Sets of file names, of which one suffices.

    Raises:
        InputError: there is no such folder, or it lacks the files; names what it has.
    """
    entries = _names_in(folder, choices)
    below = [folder / entry for entry in entries if _plain(entry) == _plain(name)]
    for candidate in (folder, *below):
        if any(find_files(candidate, choice) for choice in choices):
            return candidate
    place = below[0] if below and below[0].is_dir() else folder
    raise InputError(
        f"{printable(place)}: has {listed(_names_in(place, choices))}; "
        f"allowed: the folder of {name} with {_described(choices)}",
        hint=f"name the folder of {name}'s files, or the one that holds a folder {name}",
    )


def find_files(folder: Path, names: list[str]) -> bool:
    """Return whether the folder has all of these; what cannot be read counts, to be refused where it is read."""
    try:
        return all((folder / name).exists() for name in names)
    except OSError:
        return True


def _names_in(folder: Path, choices: list[list[str]]) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except (OSError, ValueError) as error:  # the second from a NUL in the path
        raise InputError(
            f"{printable(folder)}: cannot be listed ({getattr(error, 'strerror', None) or error}); "
            f"allowed: the folder with {_described(choices)}",
            hint="name a folder that every rank's machine sees; nothing is downloaded",
        ) from error


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _described(choices: list[list[str]]) -> str:
    return " or ".join(" and ".join(choice) for choice in choices)
