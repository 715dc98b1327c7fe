"""A process and all below it, and the processor time that they have used, by /proc (procfs(5))."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

_PROC = Path("/proc")
_CLOCK_HZ = os.sysconf("SC_CLK_TCK")


def find_descendants(root: int) -> dict[int, list[int]]:
    """Return the children of root and of each process below it, by process id; without zombies."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in _PROC.iterdir():
        if folder.name.isdecimal() and (parent := _read_parent(folder)) is not None:
            children[parent].append(int(folder.name))
    found, queue = {}, [root]
    while queue:
        process = queue.pop()
        found[process] = children.get(process, [])
        queue += found[process]
    return found


def processor_time_s(root: int) -> float:
    """Return the seconds of processor time of root and all below it, with those of children that have been reaped."""
    return sum(map(_processor_time_s, find_descendants(root)))


def _read_parent(folder: Path) -> int | None:
    try:
        state, parent = _stat_fields(folder)[:2]
    except (OSError, ValueError):
        return None  # it has just ended
    return None if state in "ZX" else int(parent)


def _processor_time_s(process: int) -> float:
    try:
        # utime, stime, cutime and cstime: fields 14 to 17, of which the first two are cut off.
        return sum(map(int, _stat_fields(_PROC / str(process))[11:15])) / _CLOCK_HZ
    except (OSError, ValueError):
        return 0.0  # it has just ended


def _stat_fields(folder: Path) -> list[str]:
    # PID (NAME) STATE PARENT ...; the name may hold blanks and parentheses, so split behind the last one.
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
