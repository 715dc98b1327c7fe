"""A bounded table that namespaces share: whoever has most in it loses its own oldest entry first. Pure.

One bound for all would let one tenant push out what is known of the others; a fixed bound for each would let memory
grow with the number of namespaces.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class FairTable(Generic[Value]):
    """A bounded table of values by namespace and key."""

    def __init__(self, most: int) -> None:
        """Start empty. most: entries of all namespaces together."""
        self._most = most
        self._entries: dict[str, OrderedDict[str, Value]] = {}
        self._total = 0

    def __len__(self) -> int:
        """Return the number of entries."""
        return self._total

    def get(self, namespace: str, key: str) -> Value | None:
        """Return a value; None if there is none."""
        entries = self._entries.get(namespace)
        return None if entries is None else entries.get(key)

    def put(self, namespace: str, key: str, value: Value) -> None:
        """Add the newest value of a namespace; beyond the limit, evict the oldest value of the largest namespace.

        Of namespaces that are as large as each other the newcomer's loses one: it is the one that grows.
        """
        self.pop(namespace, key)
        entries = self._entries.setdefault(namespace, OrderedDict())
        entries[key] = value
        self._total += 1
        if self._total > self._most:
            largest = max(self._entries, key=lambda name: (len(self._entries[name]), name == namespace))
            self.pop(largest, next(iter(self._entries[largest])))

    def pop(self, namespace: str, key: str) -> Value | None:
        """Remove a value and return it; None if there is none."""
        entries = self._entries.get(namespace)
        if entries is None or key not in entries:
            return None
        self._total -= 1
        value = entries.pop(key)
        if not entries:
            del self._entries[namespace]
        return value
