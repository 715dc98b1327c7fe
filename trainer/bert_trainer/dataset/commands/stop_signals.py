"""Signals that ask a command to stop, which it does between two units of work."""

from __future__ import annotations

import signal
from types import FrameType

from bert_trainer.dataset.workers.pool import STOP_SIGNALS
from bert_trainer.errors import Stopped


class StopSignals:
    """Catches the signals that ask for a stop; after one of them ``check`` raises. A context manager.

    A handler that raised by itself could do so anywhere, also between a file's last byte and its rename.
    """

    def __init__(self, consequence: str) -> None:
        """consequence: what becomes of the work done so far, for the message."""
        self._consequence = consequence
        self._received: str | None = None

    def __enter__(self) -> StopSignals:
        """Install the handlers."""
        self._previous = {number: signal.signal(number, self._receive) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        """Put the previous handlers back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received = signal.Signals(number).name

    def check(self) -> None:
        """Raise Stopped if a signal has asked for it."""
        if self._received is not None:
            raise Stopped(f"stopped by {self._received}; {self._consequence}")
