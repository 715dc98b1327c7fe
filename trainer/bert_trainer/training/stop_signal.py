"""The request to stop, as a flag that is read once per step."""

from __future__ import annotations

import signal
from types import FrameType


class StopSignal:
    """Turns SIGUSR1 and SIGTERM into a flag that the loop reads once per step.

    mpirun forwards SIGUSR1 to its ranks and then waits for them. Until ``listen`` is called these signals end the
    process: a rank that waits for its peers, opens its data or times micro-batches has nothing to save, and would
    see the flag only afterwards.
    """

    def __init__(self) -> None:
        self.received = False

    def listen(self) -> None:
        """Install the handlers for the rest of the process."""
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._receive)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True
