"""Asks a child to stop when this process is asked to: first SIGUSR1, on which ranks save and leave, then SIGTERM.

mpirun forwards SIGUSR1 to its ranks and waits for them; SIGTERM would make it end them where they stand.
"""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType
from typing import Self


class StopRequest:
    """Counts SIGTERM and SIGINT and passes them on to one child."""

    def __init__(self) -> None:
        """Handlers are installed while the object is entered."""
        self.count = 0
        self._child: int | None = None
        self._sent = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._receive) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_to(self, child: int | None) -> None:
        """Name the process that is told from now on, also of what came before; None: nobody."""
        self._child = child
        self._send()

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._send()

    def _send(self) -> None:
        while self._child is not None and self._sent < self.count:
            self._sent += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGUSR1 if self._sent == 1 else signal.SIGTERM)
