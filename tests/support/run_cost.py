"""The last line of a test run: processor time and peak memory of all of its processes together.

A plugin of pytest, loaded by tests/conftest.py. Memory is looked at every second: what each process has of its own, and
once what most of them share, the files that they have mapped (PyTorch's libraries).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import psutil
import pytest

SAMPLE_S = 1.0


class MemoryWatch:
    """Samples the memory of this process and of all below it, until it is stopped."""

    def __init__(self) -> None:
        """Start at once."""
        self.peak_bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; ``peak_bytes`` changes no more."""
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            own, shared = zip(*_own_and_shared_bytes(), strict=True)
            self.peak_bytes = max(self.peak_bytes, sum(own) + max(shared))
            if self._done.wait(SAMPLE_S):
                return


def _own_and_shared_bytes() -> Iterator[tuple[int, int]]:
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            memory = process.memory_info()
        except psutil.Error:  # it has ended
            continue
        shared = getattr(memory, "shared", 0)  # not told outside Linux
        yield memory.rss - shared, shared


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    if hasattr(session.config, "workerinput"):
        return (yield)
    watch = session.config.stash[_WATCH] = MemoryWatch()
    try:
        return (yield)
    finally:
        watch.stop()


_WATCH = pytest.StashKey[MemoryWatch]()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    watch = config.stash.get(_WATCH, None)
    if watch is not None:
        spent = os.times()
        cpu_s = spent.user + spent.system + spent.children_user + spent.children_system
        terminalreporter.write_line(f"tests: cpu_s={cpu_s:.0f} peak_memory_gb={watch.peak_bytes / 1e9:.1f}")
