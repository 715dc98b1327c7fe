"""A stop signal that nobody sends: something happens before a step of a run in this process."""

from __future__ import annotations

from collections.abc import Callable


class AtStep:
    """Does something once, before a step counted from 1; what training asks before every step for a stop."""

    def __init__(self, step: int = 0, action: Callable[[], object] = lambda: None) -> None:
        """Take the step, 0: never, and what is done."""
        self._left, self._action = step, action

    def listen(self) -> None:
        """Install nothing."""

    @property
    def received(self) -> bool:
        """Answer that nobody asked to stop."""
        self._left -= 1
        if self._left == 0:
            self._action()
        return False


class StopAt(AtStep):
    """A request to stop that comes before a step counted from 1."""

    @property
    def received(self) -> bool:
        """Answer whether somebody has asked to stop by now."""
        self._left -= 1
        return self._left <= 0
