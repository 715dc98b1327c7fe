"""A queue that is fair to namespaces: they take turns, however many items each of them has. Pure.

In a single first-in-first-out queue everybody else would wait for a tenant with ten thousand items.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class RoundRobin(Generic[Item]):
    """A queue that serves namespaces round robin; within a namespace, first in, first out."""

    def __init__(self) -> None:
        """Start empty."""
        # In the order in which namespaces are served next.
        self._waiting: OrderedDict[str, deque[Item]] = OrderedDict()
        self._total = 0

    def __len__(self) -> int:
        """Return the number of items."""
        return self._total

    def put(self, namespace: str, item: Item) -> None:
        """Append an item to its namespace's; a namespace that had none is served after all others."""
        self._waiting.setdefault(namespace, deque()).append(item)
        self._total += 1

    def next_namespace(self) -> str:
        """Return the namespace that is served next. Raises StopIteration if the queue is empty."""
        return next(iter(self._waiting))

    def take(self) -> Item:
        """Remove and return the next item. Raises StopIteration if the queue is empty."""
        return self._take_from(self.next_namespace())

    def drop(self) -> Item:
        """Remove and return the oldest item of the fullest namespace. Raises ValueError if the queue is empty."""
        return self._take_from(max(self._waiting, key=lambda name: len(self._waiting[name])))

    def _take_from(self, namespace: str) -> Item:
        """Remove and return the oldest item of a namespace, which then goes to the end of the round."""
        of_namespace = self._waiting.pop(namespace)
        oldest = of_namespace.popleft()
        self._total -= 1
        if of_namespace:
            self._waiting[namespace] = of_namespace
        return oldest
