"""What a transfer tells whoever waits for it, written down."""

from __future__ import annotations


class Notes:
    """Takes what a transfer tells, and how long it wanted to wait."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.begun: list[tuple[str, int | None, int]] = []
        self.num_bytes = 0
        self.waits: list[float] = []

    def begin(self, name: str, total: int | None, done: int) -> None:
        """Note that a file begins."""
        self.begun.append((name, total, done))

    def advance(self, num_bytes: int) -> None:
        """Count bytes."""
        self.num_bytes += num_bytes

    def note(self, text: str) -> None:
        """Keep a line."""
        self.lines.append(text)
