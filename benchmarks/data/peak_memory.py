"""Peak memory of a process and of all its children, as the kernel counts it.

Not ``ru_maxrss``: a new process inherits the peak of the one that forked it. ``VmHWM`` in ``/proc`` is the peak since
exec; it only grows, so sampling misses at most a peak in the last 50 ms. Linux only.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

_EVERY_S = 0.05


class PeakMemory:
    """Samples the memory of a process and its children until the block ends. A context manager."""

    def __init__(self, pid: int) -> None:
        """pid: of a process that has been started."""
        self._root = psutil.Process(pid)
        self._peaks: dict[int, int] = {}
        self._together = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        """Start sampling."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop sampling."""
        self._ended.set()
        self._thread.join()

    @property
    def largest_mb(self) -> float:
        """Largest peak of any process."""
        return max(self._peaks.values(), default=0) / 1e6

    @property
    def together_mb(self) -> float:
        """Largest sum over all processes at one moment; shared pages count once per process."""
        return self._together / 1e6

    @property
    def num_processes(self) -> int:
        """Processes seen."""
        return len(self._peaks)

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_S):
            together = 0
            # A process may end at any moment, the watched one too.
            with suppress(psutil.Error):
                for process in [self._root, *self._root.children(recursive=True)]:
                    memory = resident_bytes(process.pid)
                    together += memory.get("VmRSS", 0)
                    peak = memory.get("VmHWM", 0)
                    self._peaks[process.pid] = max(peak, self._peaks.get(process.pid, 0))
            self._together = max(self._together, together)


def resident_bytes(pid: int) -> dict[str, int]:
    """Return ``VmRSS`` and ``VmHWM`` of a process, in bytes; nothing where it has ended."""
    found = {}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("VmRSS", "VmHWM"):
                found[name] = 1024 * int(value.split()[0])
    return found
