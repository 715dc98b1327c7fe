"""Sockets, NUMA nodes and cores of this machine, from sysfs as the kernel's documentation describes it.

A container sees the whole machine here, whatever share of it the container may use.
"""

from __future__ import annotations

import os
from collections import Counter
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
    node_of: dict[int, int]
    """NUMA node of every logical processor."""

    @property
    def threads_per_core(self) -> int:
        """Hardware threads of a physical core that are switched on; the most that any core has."""
        return max(Counter(self.core_of.values()).values(), default=1)

    def group_by_core(self, processors: Iterable[int]) -> dict[tuple[int, int], tuple[int, ...]]:
        """Return some logical processors by socket and core, in the order of sockets, NUMA nodes and processors."""
        cores: dict[tuple[int, int], list[int]] = {}
        for number in sorted(processors, key=self._place):
            cores.setdefault(self.core_of.get(number, (-1, number)), []).append(number)
        return {core: tuple(threads) for core, threads in cores.items()}

    def _place(self, number: int) -> tuple[int, int, int]:
        # By first thread and not by core id: ids have gaps, and firmware numbers them in an order of its own.
        return (self.core_of.get(number, (-1, 0))[0], self.node_of.get(number, 0), number)

    def count_cores(self, processors: Iterable[int]) -> int:
        """Return how many physical cores some logical processors belong to."""
        return len(self.group_by_core(processors))

    def describe_processors(self, processors: Iterable[int]) -> str:
        """Return some logical processors in words: ``0-26,56-82 (27 cores)``; cores that lack threads are counted."""
        numbers = tuple(processors)
        cores = self.group_by_core(numbers).values()
        half = sum(len(threads) < self.threads_per_core for threads in cores)
        lacking = f", {half} of them without all of their {self.threads_per_core} threads" if half else ""
        return f"{render_processors(numbers)} ({len(cores)} cores{lacking})"


def read_machine(sysfs: Path = SYSFS) -> Machine:
    """Read this machine's topology; where sysfs lacks it, one socket and one NUMA node are assumed."""
    cores = {}
    for folder in (sysfs / "cpu").glob("cpu[0-9]*"):
        number = folder.name.removeprefix("cpu")
        socket, core = (_read_number(folder / "topology" / name) for name in ("physical_package_id", "core_id"))
        # A processor that is switched off has no topology.
        if number.isdecimal() and socket is not None and core is not None:
            cores[int(number)] = (socket, core)
    nodes = {
        number: int(folder.name.removeprefix("node"))
        for folder in (sysfs / "node").glob("node[0-9]*")
        for number in parse_processors(_read(folder / "cpulist"))
    }
    return Machine(
        sockets=max(1, len({socket for socket, _ in cores.values()})),
        numa_nodes=max(1, len(set(nodes.values()))),
        core_of=cores,
        node_of=nodes,
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


def parse_processors(text: str) -> tuple[int, ...]:
    """Return the processors of a list as the kernel writes it: ``0-27,56-83``."""
    ranges = (part.partition("-") for part in text.split(",") if part)
    return tuple(number for first, _, last in ranges for number in range(int(first), int(last or first) + 1))


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
