"""Finds the ranks among the processes that descend from this one. Reads /proc, as procfs(5) describes it."""

from __future__ import annotations

import ctypes
import os
import signal
from collections import defaultdict
from pathlib import Path

_PROC = Path("/proc")
_RANK_VARIABLES = (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"PMIX_RANK")
_ATTEMPT_VARIABLE = b"BERT_ATTEMPT"
# They stand between a launcher and a rank, or are the launcher; a signal would only end them.
_NO_RANKS = frozenset(
    {"sh", "bash", "dash", "ash", "busybox", "ksh", "zsh", "ssh", "sshd", "sshd-session", "sshd-auth"}
    | {"mpirun", "mpiexec", "mpiexec.hydra", "prte", "prted", "prterun", "orted", "hydra_pmi_proxy"}
)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of every orphan below this process, as process 1 of a container is anyway.

    mpirun's helper on a worker leaves the session that started it; it is to stay a descendant.
    """
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Be killed when the parent ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def find_descendants(root: int) -> dict[int, list[int]]:
    """Return the children of every process that descends from root, root included; the dead are left out."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in _PROC.iterdir():
        if folder.name.isdecimal() and (parent := _parent(folder)) is not None:
            children[parent].append(int(folder.name))
    found, queue = {}, [root]
    while queue:
        process = queue.pop()
        found[process] = children.get(process, [])
        queue += found[process]
    return found


def find_ranks(root: int) -> list[int]:
    """Return the ranks below root.

    A rank's own children have its variables too; they are its business.
    """
    tree = find_descendants(root)
    ranks, queue = [], list(tree[root])
    while queue:
        process = queue.pop()
        if _is_rank(_PROC / str(process)):
            ranks.append(process)
        else:
            queue += tree[process]
    return ranks


def _parent(folder: Path) -> int | None:
    try:
        # PID (NAME) STATE PARENT ...; the name may hold anything.
        state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None  # it has just ended
    return None if state in "ZX" else int(parent)


def _is_rank(folder: Path) -> bool:
    try:
        if (folder / "comm").read_text(errors="replace").strip() in _NO_RANKS:
            return False
        names = {entry.partition(b"=")[0] for entry in (folder / "environ").read_bytes().split(b"\0")}
    except OSError:
        return False
    return _ATTEMPT_VARIABLE in names and any(name in names for name in _RANK_VARIABLES)


def signal_process(process: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):
        return
