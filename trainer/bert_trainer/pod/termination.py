"""Leaves the termination record where Kubernetes looks for it, and reads what a rank has left.

Neither ever fails: the record is a courtesy.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_trainer.pod.story import render_record

DEFAULT_TERMINATION_LOG = Path("/dev/termination-log")
_LONGEST_LEFT = 65_536  # bytes


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write it in place: in a pod the file is a mount."""
    # Outside of a pod nothing is to appear in /dev.
    create = 0 if path.parent == Path("/dev") else os.O_CREAT
    data = render_record(record).encode()
    with contextlib.suppress(OSError), open(os.open(path, os.O_WRONLY | os.O_TRUNC | create, 0o644), "wb") as file:
        file.write(data)


def read_left(path: Path) -> dict[str, Any] | None:
    """Return the record that a rank has written, None where there is none, or something else."""
    try:
        # Whatever the program has put there: a pipe would keep whoever opens it waiting.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            record = json.loads(file.read(_LONGEST_LEFT))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
