"""What waits, by namespace: namespaces take turns, whatever each of them has. Pure.

In one line for all, a tenant with ten thousand items would have everybody else wait behind them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Turns(Generic[Item]):
    """Items in the order of their namespaces' turns; within a namespace, first in, first out."""

    def __init__(self) -> None:
        """Start empty."""
        # In the order in which namespaces are served next.
        self._waiting: OrderedDict[str, deque[Item]] = OrderedDict()
        self._total = 0

    def __len__(self) -> int:
        """Return the number of items."""
        return self._total

    def put(self, namespace: str, item: Item) -> None:
        """Put an item behind those of its namespace; a namespace that had none is served after all others."""
        self._waiting.setdefault(namespace, deque()).append(item)
        self._total += 1

    def next_namespace(self) -> str:
        """Return whose turn it is. Raises StopIteration where nothing waits."""
        return next(iter(self._waiting))

    def take(self) -> Item:
        """Remove and return the item whose turn it is. Raises StopIteration where nothing waits."""
        return self._take_from(self.next_namespace())

    def drop(self) -> Item:
        """Remove and return the oldest item of the namespace that has most. Raises ValueError where nothing waits."""
        return self._take_from(max(self._waiting, key=lambda name: len(self._waiting[name])))

    def _take_from(self, namespace: str) -> Item:
        """Return the oldest item of a namespace, which is served after all others then."""
        of_namespace = self._waiting.pop(namespace)
        oldest = of_namespace.popleft()
        self._total -= 1
        if of_namespace:
            self._waiting[namespace] = of_namespace
        return oldest
