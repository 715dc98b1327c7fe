"""How much memory a process may still take: of the machine, and of its container by cgroups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from bert_trainer.system.machine import CGROUPS

_FILES = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def available_bytes(cgroups: Path = CGROUPS) -> int:
    """Return the memory available before swapping or OOM kill: the smaller of machine's and container's."""
    machine = int(psutil.virtual_memory().available)
    container = container_bytes(cgroups)
    return machine if container is None else min(machine, container)


def total_bytes(cgroups: Path = CGROUPS) -> int:
    """Return the machine's memory or the container's limit, whichever is smaller."""
    machine = int(psutil.virtual_memory().total)
    found = _find_limit(cgroups)
    return machine if found is None else min(machine, found.limit)


def container_bytes(cgroups: Path) -> int | None:
    """Return what is left below the container's limit, file cache counted as free; None where there is no limit."""
    found = _find_limit(cgroups)
    if found is None:
        return None
    try:
        used = int((cgroups / found.used_file).read_text())
        details = (cgroups / found.detail_file).read_text()
    except (OSError, ValueError):
        return None
    fields = dict(line.split(maxsplit=1) for line in details.splitlines() if " " in line)
    # As kubelet counts a working set: the cache of files that were not used lately is given back first.
    return max(0, found.limit - used + int(fields.get("inactive_file", "0")))


@dataclass(frozen=True, slots=True)
class _Limit:
    limit: int
    used_file: str
    detail_file: str


def _find_limit(cgroups: Path) -> _Limit | None:
    """Return a container's limit, in either version of cgroups; None where there is none."""
    for limit, used, detail in _FILES:
        try:
            text = (cgroups / limit).read_text().strip()
        except OSError:
            continue
        # Version 2 writes "max".
        return _Limit(int(text), used, detail) if text.isdecimal() else None
    return None
