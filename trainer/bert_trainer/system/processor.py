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
    """Return the first processor's flags in /proc/cpuinfo; ARM calls them features."""
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return frozenset(match[1].split() if match else ())


def read_model_name(cpuinfo: str) -> str:
    """Return the first processor's name; "unknown processor" where /proc/cpuinfo has none, as on ARM."""
    match = re.search(r"^model name\s*:(.*)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else "unknown processor"


def keep_freed_memory() -> None:
    """Make glibc's allocator keep freed memory; does nothing where another allocator is loaded.

    By default it returns large blocks to the kernel, which zeroes every page again when the next layer asks for as
    much: a fifth of a step's time.
    """
    # None: this process. Other C libraries, such as musl, have no such function.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and find_library(read_text("/proc/self/maps"), ALLOCATORS) is None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)


def release_freed_memory() -> None:
    """Make glibc's allocator return its free memory to the kernel, once; does nothing with another allocator."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None and find_library(read_text("/proc/self/maps"), ALLOCATORS) is None:
        trim(0)


def find_library(maps: str, names: tuple[tuple[str, str], ...]) -> str | None:
    """Return the first of some libraries that a process has loaded, with its file name.

    Args:
        maps: The text of /proc/PID/maps.
        names: Beginnings of file names and what to call them, by precedence.
    """
    # The path is the sixth column and may hold spaces.
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
