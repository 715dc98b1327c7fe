"""Finds the programs and cores of this machine. Looks for files and runs ``mpirun --version``."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

_VERSION_TIMEOUT_S = 20
_SYSFS = Path("/sys/devices/system")


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Programs that children are started with. ``prepare`` and ``train`` take ``--config FILE``."""

    prepare: tuple[str, ...]
    train: tuple[str, ...]
    mpirun: str | None = None
    """Open MPI's; the mpirun of another MPI has other options and is not used."""
    horovodrun: str | None = None
    has_horovod: bool = True
    torchrun: tuple[str, ...] = ()
    """Starts ranks of this machine by torchrun; takes their number and their program. Empty: there is no PyTorch."""
    rank: tuple[str, ...] = ()
    """Starts a rank's program with the allocator and the OpenMP runtime of the job; takes options, ``--`` and the
    program."""
    cores: int = 1
    """Logical cores that this process may use."""
    physical_cores: int = 1
    """Physical cores, at most ``cores``."""
    sockets: int = 1
    numa_nodes: int = 1
    """NUMA nodes with cores; those with memory only do not count."""
    threads_per_core: int | None = None
    """Hardware threads of a physical core; None if this process may use only some threads of its cores, as after
    ``taskset``, or if sysfs does not show it."""
    is_root: bool = False
    folder: str = ""
    """Where the interpreter is."""


def find_programs() -> Programs:
    """Look beside the running interpreter first, then in PATH."""
    mpirun = _find("mpirun")
    return Programs(
        prepare=(sys.executable, "-m", "bert_trainer.dataset", "build"),
        train=(sys.executable, "-m", "bert_trainer"),
        mpirun=mpirun if mpirun and _is_open_mpi(mpirun) else None,
        horovodrun=_find("horovodrun"),
        # Looked for, not imported: that would take seconds.
        has_horovod=importlib.util.find_spec("horovod") is not None,
        torchrun=(sys.executable, "-m", "bert_trainer.parallel.torchrun") if importlib.util.find_spec("torch") else (),
        rank=(sys.executable, "-m", "bert_trainer.pod", "rank", "--quiet"),
        cores=_count_cores(),
        physical_cores=min(_count_cores(), psutil.cpu_count(logical=False) or _count_cores()),
        sockets=count_sockets(),
        numa_nodes=count_numa_nodes(),
        threads_per_core=count_threads_per_core(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()),
        is_root=os.geteuid() == 0,
        folder=str(Path(sys.executable).parent),
    )


def _find(name: str) -> str | None:
    # Not resolved: in a virtual environment the interpreter is a symbolic link out of the folder with mpirun.
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
        # Of this process: taskset, cpusets and batch systems give out fewer than the machine has.
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count_sockets(sysfs: Path = _SYSFS) -> int:
    """Return the number of sockets, 1 if sysfs does not show it."""
    return max(1, len({_read(path) for path in (sysfs / "cpu").glob("cpu[0-9]*/topology/physical_package_id")}))


def count_numa_nodes(sysfs: Path = _SYSFS) -> int:
    """Return the number of NUMA nodes with cores, 1 if sysfs does not show it."""
    return max(1, sum(bool(_read(path)) for path in (sysfs / "node").glob("node[0-9]*/cpulist")))


def count_threads_per_core(allowed: Collection[int], sysfs: Path = _SYSFS) -> int | None:
    """Return the hardware threads of a physical core; None if sysfs does not show them or not all may be used."""
    cores: dict[tuple[str, str], set[int]] = {}
    for folder in (sysfs / "cpu").glob("cpu[0-9]*/topology"):
        core = _read(folder / "physical_package_id"), _read(folder / "core_id")
        cores.setdefault(core, set()).add(int(folder.parent.name.removeprefix("cpu")))
    if any(threads & set(allowed) and not threads <= set(allowed) for threads in cores.values()):
        return None
    return max(map(len, cores.values()), default=None)


# Flags of x86 processors that compute with 16-bit numbers themselves; others only convert them. bf32 is a mode of AMX.
_PRECISIONS = {
    "bf16": {"avx512_bf16", "amx_bf16"},
    "fp16": {"avx512_fp16", "amx_fp16"},
    "bf32": {"amx_bf16"},
}


def find_precisions(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the numeric precisions besides fp32 that this machine's processors have."""
    line = next((line for line in _read(cpuinfo).splitlines() if line.startswith("flags")), "")
    flags = set(line.partition(":")[2].split())
    return frozenset(name for name, any_of in _PRECISIONS.items() if flags & any_of)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
