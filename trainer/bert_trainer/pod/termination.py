"""Leaves the termination record where Kubernetes looks for it. Never fails: the record is a courtesy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_trainer.pod.story import render_record

DEFAULT_TERMINATION_LOG = Path("/dev/termination-log")


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write it in place: in a pod the file is a mount."""
    # Outside of a pod nothing is to appear in /dev.
    create = 0 if path.parent == Path("/dev") else os.O_CREAT
    with contextlib.suppress(OSError), open(os.open(path, os.O_WRONLY | os.O_TRUNC | create, 0o644), "w") as file:
        file.write(render_record(record))
