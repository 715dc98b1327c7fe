"""How much memory a process may still take: of the machine, and of its container as cgroups tell it."""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
_FILES = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def available_bytes(cgroups: Path = CGROUPS) -> int:
    """Return what can be taken before the kernel swaps or kills: the smaller of the machine's and the container's."""
    machine = int(psutil.virtual_memory().available)
    container = container_bytes(cgroups)
    return machine if container is None else min(machine, container)


def total_bytes(cgroups: Path = CGROUPS) -> int:
    """Return the machine's memory or the container's limit, whichever is smaller."""
    machine = int(psutil.virtual_memory().total)
    for limit, _, _ in _FILES:
        try:
            text = (cgroups / limit).read_text().strip()
        except OSError:
            continue
        return min(machine, int(text)) if text.isdecimal() else machine
    return machine


def container_bytes(cgroups: Path) -> int | None:
    """Return what is left below the container's limit, file cache counted as free; None where there is no limit."""
    for limit, used, detail in _FILES:
        try:
            limit_text = (cgroups / limit).read_text().strip()
            used_bytes = int((cgroups / used).read_text())
            details = (cgroups / detail).read_text()
        except (OSError, ValueError):
            continue
        if not limit_text.isdecimal():
            return None
        fields = dict(line.split(maxsplit=1) for line in details.splitlines() if " " in line)
        cached = int(fields.get("inactive_file", "0"))
        return max(0, int(limit_text) - used_bytes + cached)
    return None
