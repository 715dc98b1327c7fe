"""Which programs this machine has for running children. Looks for files and asks mpirun for its version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_VERSION_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What children are started with. ``prepare`` and ``train`` take ``--config FILE``."""

    prepare: tuple[str, ...]
    train: tuple[str, ...]
    mpirun: str | None = None
    """Open MPI's; another MPI's mpirun has other options and is not used."""
    horovodrun: str | None = None
    cores: int = 1
    """That this process may use."""
    is_root: bool = False


def find_programs() -> Programs:
    """Look beside the running interpreter first, then in PATH."""
    mpirun = _find("mpirun")
    return Programs(
        prepare=(sys.executable, "-m", "bert_trainer.dataset", "build"),
        train=(sys.executable, "-m", "bert_trainer"),
        mpirun=mpirun if mpirun and _is_open_mpi(mpirun) else None,
        horovodrun=_find("horovodrun"),
        cores=_count_cores(),
        is_root=os.geteuid() == 0,
    )


def _find(name: str) -> str | None:
    # Not resolved: in a virtual environment the interpreter is a link to one that has no such neighbours.
    beside = Path(sys.executable).parent / name
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name)


def _is_open_mpi(mpirun: str) -> bool:
    try:
        answer = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(name in answer.stdout for name in ("Open MPI", "OpenRTE", "PRRTE"))


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
