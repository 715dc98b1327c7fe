"""Which checkpoint a folder holds: the prefix of its files, and the file ``checkpoint`` that names the latest.

That file is a ``CheckpointState`` of TensorFlow's ``python/training/checkpoint_state.proto`` in protobuf's text format.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from bert_job.foreign_text import printable
from bert_trainer.errors import InputError

_INDEX = ".index"
_STATE_FILE = "checkpoint"
_MAX_STATE_BYTES = 64 << 10
# White space within a line alone: beyond it, every line would be looked at once for each one before it.
_LATEST = re.compile(r'^[ \t]*model_checkpoint_path[ \t]*:[ \t]*"([^"]*)"', re.MULTILINE)
_NAME_ONE = "name one of them: its path without .index"


def find_prefix(path: Path) -> Path:
    """Return the prefix of the checkpoint at a path.

    Args:
        path: A prefix, an index file, or a folder. Of several checkpoints in a folder the one that its file
            ``checkpoint`` names is taken.

    Raises:
        InputError: there is none, or it cannot be told which.
        OSError: the folder cannot be read.
    """
    if not path.is_dir():
        prefix = path.with_name(path.name.removesuffix(_INDEX)) if path.name else path
        if prefix.with_name(f"{prefix.name}{_INDEX}").is_file():
            return prefix
        raise InputError(
            f"{path}: got no {printable(prefix.name)}{_INDEX} there; allowed: a checkpoint's path without its "
            "endings, or its folder",
            hint="name the folder that holds bert_model.ckpt.index and bert_model.ckpt.data-00000-of-00001",
        )
    names = sorted(file.name.removesuffix(_INDEX) for file in path.glob(f"[!.]*{_INDEX}") if file.is_file())
    if len(names) == 1:
        return path / names[0]
    if not names:
        raise InputError(
            f"{path}: got no file whose name ends in {_INDEX}; allowed: a folder with a TensorFlow checkpoint",
            hint="it consists of NAME.index and NAME.data-00000-of-00001; a single file NAME is of the older format, "
            "which TensorFlow's Saver reads and writes anew",
        )
    latest = _read_latest(path / _STATE_FILE)
    if latest in names:
        return path / latest
    found = ", ".join(printable(name) for name in names[:5])
    raise InputError(
        f"{path}: got {len(names)} checkpoints ({found}{', ...' if len(names) > 5 else ''}), and "
        f"{_STATE_FILE} there names {'none' if latest is None else printable(latest)}; allowed: one that it names",
        hint=_NAME_ONE,
    )


def describe_choice(path: Path) -> str:
    """Return which of several checkpoints at a path is read, for the log; nothing where there is one."""
    if not path.is_dir():
        return ""
    prefix = find_prefix(path)
    others = sum(file.is_file() for file in path.glob(f"[!.]*{_INDEX}")) - 1
    return f"{prefix.name}, which `{_STATE_FILE}` there names, of {others + 1}" if others else ""


def _read_latest(path: Path) -> str | None:
    """Return the name of the checkpoint that a state file calls the latest; None where there is no such file.

    A path from the root, as a training elsewhere has left it, counts by its last part.

    Raises:
        InputError: the file names none, or one outside its folder.
        OSError: the file cannot be read.
    """
    if not path.is_file():  # also a pipe, which would never end
        return None
    with path.open("rb") as file:
        text = file.read(_MAX_STATE_BYTES).decode(errors="replace")
    match = _LATEST.search(text)
    got = "" if match is None else match[1]
    named = PurePosixPath(got)
    is_here = named.is_absolute() or len(named.parts) == 1
    if not is_here or named.name in ("", ".."):
        raise InputError(
            f'{path}: model_checkpoint_path: got "{printable(got[:200])}"; allowed: the name of a checkpoint beside it',
            hint=_NAME_ONE,
        )
    return named.name


def write_state(folder: Path, name: str) -> None:
    """Write the file that names a folder's only checkpoint. Raises OSError."""
    (folder / _STATE_FILE).write_text(f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n')
