"""Lets the trainer start where packages are missing that it imports and the report does not need.

``install`` leaves alone what is there. pydantic's and psutil's places are taken by the little of them that a run uses;
of the others every name is there and raises when it is called.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import sys
import time
from types import ModuleType
from typing import Any

UNUSED = ("prometheus_client", "yaml", "google_crc32c", "sentencex", "mwparserfromhell", "backports")
"""Imported by the trainer; no part of the report calls them."""


@functools.cache
def install() -> tuple[str, ...]:
    """Put something in the place of every missing package; return their names, however often it is called."""
    missing = tuple(name for name in ("pydantic", "psutil", *UNUSED) if not _is_there(name))
    for name in missing:
        sys.modules[name] = _make(name)
    return missing


def _is_there(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


def _make(name: str) -> ModuleType:
    if name == "pydantic":
        from gpu_report import document_reader

        sys.modules["pydantic.alias_generators"] = document_reader

        return document_reader
    module: ModuleType = _Absent(name)
    # Libraries look for one another by their specs.
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    if name == "psutil":
        vars(module).update(Process=Process, virtual_memory=virtual_memory)
    return module


class _Absent(ModuleType):
    """A package that is not installed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Uncallable,), {"package": self.__name__})


class _Uncallable:
    package = ""

    def __init__(self, *_: object, **__: object) -> None:
        raise ModuleNotFoundError(f"{self.package} is not installed; {type(self).__name__} needs it", name=self.package)


class _Memory:
    """Bytes by name."""

    def __init__(self, **values: int) -> None:
        vars(self).update(values)


class Process:
    """This process, as psutil's, from Linux's /proc."""

    def memory_info(self) -> _Memory:
        """Return the resident set."""
        with open("/proc/self/statm") as file:
            return _Memory(rss=int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))

    def create_time(self) -> float:
        """Return when it began, in seconds since 1970."""
        with open("/proc/self/stat") as file:
            # Behind the name in parentheses, which may hold spaces: field 22 of the whole.
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def virtual_memory() -> _Memory:
    """Return the machine's memory."""
    with open("/proc/meminfo") as file:
        found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file if line.split()[1:]}
    return _Memory(total=found["MemTotal"], available=found["MemAvailable"])
