"""Asks a child to stop when this process is asked to: first SIGUSR1, on which ranks save and leave, then SIGTERM.

mpirun forwards SIGUSR1 to its ranks and waits for them; SIGTERM would make it end them where they stand.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Ask for a stop. The image's ``bert-pod`` holds them back from its first instruction on."""

_INSIST_S = 5.0


def release_signals() -> None:
    """Let those through that ask for a stop, also what has come so far: handlers are there, or none is wanted."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


class StopRequest:
    """Counts SIGTERM and SIGINT and passes them on to one child."""

    def __init__(self) -> None:
        """Handlers are installed while the object is entered."""
        self.count = 0
        self.has_begun: Callable[[], bool] = lambda: True
        """Whether the child's ranks can be asked: what mpirun forwards before they are there reaches nobody. Until
        then a stop ends the child."""
        self.came_early = False
        """The child was ended because its ranks were not there yet."""
        self._child: int | None = None
        self._sent = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        release_signals()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_to(self, child: int | None) -> None:
        """Name the process that is told from now on, also of what came before; None: nobody."""
        self._child = child
        self._send()

    def end_child(self, after_s: float = 0.0) -> None:
        """End the child without a chance to save, unless it has ended by itself until then."""
        for wait_s, number in ((after_s, signal.SIGTERM), (after_s + _INSIST_S, signal.SIGKILL)):
            timer = threading.Timer(wait_s, self._kill_child, (number,))
            timer.daemon = True
            timer.start()

    def _kill_child(self, number: signal.Signals) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, number)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._send()

    def _send(self) -> None:
        while self._child is not None and self._sent < self.count:
            self._sent += 1
            if not self.has_begun():
                self.came_early = True
                self.end_child()
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGUSR1 if self._sent == 1 else signal.SIGTERM)
