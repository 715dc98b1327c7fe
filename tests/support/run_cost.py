"""The last line of a test run: processor time and peak memory of all of its processes together.

A plugin of pytest, loaded by tests/conftest.py. Memory is the sum of resident sizes, looked at every second: pages that
processes share count once for each.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import psutil
import pytest

SAMPLE_S = 1.0


class MemoryWatch:
    """Samples the resident memory of this process and of all below it, until it is stopped."""

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
            self.peak_bytes = max(self.peak_bytes, sum(_resident_bytes()))
            if self._done.wait(SAMPLE_S):
                return


def _resident_bytes() -> Iterator[int]:
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        try:
            yield process.memory_info().rss
        except psutil.Error:  # it has ended
            continue


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
