"""Sockets, NUMA nodes and cores of this machine, from sysfs as the kernel's documentation describes it.

A container sees the whole machine here, whatever share of it the container may use.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys/devices/system")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Counts of sockets and NUMA nodes that have processors; NUMA nodes of memory alone don't count."""

    sockets: int
    numa_nodes: int
    core_of: dict[int, tuple[int, int]]
    """Socket and core of every logical processor."""

    def count_cores(self, processors: Iterable[int]) -> int:
        """Return how many physical cores some logical processors belong to."""
        return len({self.core_of.get(number, (-1, number)) for number in processors})


def read_machine(sysfs: Path = SYSFS) -> Machine:
    """Read this machine's topology; where sysfs lacks it, one socket and one NUMA node are assumed."""
    cores = {}
    for folder in (sysfs / "cpu").glob("cpu[0-9]*"):
        number = folder.name.removeprefix("cpu")
        socket, core = (_read_number(folder / "topology" / name) for name in ("physical_package_id", "core_id"))
        # A processor that is switched off has no topology.
        if number.isdecimal() and socket is not None and core is not None:
            cores[int(number)] = (socket, core)
    lists = [_read(folder / "cpulist") for folder in (sysfs / "node").glob("node[0-9]*")]
    return Machine(
        sockets=max(1, len({socket for socket, _ in cores.values()})),
        numa_nodes=max(1, len([text for text in lists if text])),
        core_of=cores,
    )


def bound_processors() -> tuple[int, ...]:
    """Return the logical processors that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def quota_cores(cgroups: Path = CGROUPS) -> float | None:
    """Return how many cores' time the container gets, of either version of cgroups; None where there is no limit."""
    # In a container this is its own group. The root group of a machine has no limits, and no such file.
    path = cgroups / "cpu.max"
    if path.exists():
        words = _read(path).split()
    else:
        words = [_read(cgroups / "cpu" / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    try:
        cores = int(words[0]) / int(words[1])
    except (IndexError, ValueError, ZeroDivisionError):  # version 2 writes "max"
        return None
    return cores if cores > 0 else None  # version 1 writes -1


def render_processors(processors: Iterable[int]) -> str:
    """Return them as the kernel writes a list: ``0-27,56-83``."""
    runs: list[list[int]] = []
    for number in sorted(processors):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _read_number(path: Path) -> int | None:
    text = _read(path)
    # Virtual machines without sockets write -1, all of them alike.
    return int(text) if text.lstrip("-").isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
