"""Whoever a build reports to, in tests that have nobody."""

from __future__ import annotations


class Silent:
    """Says nothing, and keeps what it was told."""

    def __init__(self) -> None:
        self.records: list[dict[str, str | int | float | None]] = []

    def report(self, event: str, **fields: str | int | float | None) -> None:
        """Keep a record."""
        self.records.append({"event": event, **fields})
