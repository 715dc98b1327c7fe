"""What a processor can do, and the memory allocator and OpenMP runtime that this process has loaded."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # mallopt(3)
_NEVER = 2**31 - 1
ALLOCATORS = (("libjemalloc", "jemalloc"), ("libtcmalloc", "tcmalloc"))
OPENMP = (("libiomp5", "Intel"), ("libomp", "LLVM"), ("libgomp", "GNU"))


def read_flags(cpuinfo: str) -> frozenset[str]:
    """Return what /proc/cpuinfo says that the first processor can do; ARM calls it features."""
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return frozenset(match[1].split() if match else ())


def keep_freed_memory() -> None:
    """Have glibc's allocator keep what is freed; nothing where another one is loaded.

    It hands large blocks back to the kernel, which clears every page anew when the next layer asks for as much: a
    fifth of a step's time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and find_library(read_text("/proc/self/maps"), ALLOCATORS) is None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)


def release_freed_memory() -> None:
    """Have glibc's allocator give what is free back to the kernel once; nothing where another one is loaded."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None and find_library(read_text("/proc/self/maps"), ALLOCATORS) is None:
        trim(0)


def find_library(maps: str, names: tuple[tuple[str, str], ...]) -> str | None:
    """Return which of some libraries a process has loaded, with its file's name; the first ones come first.

    maps: the text of /proc/PID/maps.
    """
    files = [os.path.basename(line.split(maxsplit=5)[5]) for line in maps.splitlines() if line.count("/")]
    for beginning, name in names:
        found = next((file for file in files if file.startswith(beginning)), None)
        if found:
            return f"{name} ({found})"
    return None


def read_text(path: str) -> str:
    """Return the text of a file of /proc or /sys; nothing where there is none."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
