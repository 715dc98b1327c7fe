"""Children as those need them who look at many: by namespace, and the ones of queues.

Kept up with every change, so that a look costs what it finds: jobs that wait for room look every few seconds, and to
search the children of all namespaces each time took longer with every job in the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable

from bert_operator.cluster.object_summaries import ChildSummary
from bert_operator.names import JobRef

Entry = tuple[JobRef, ChildSummary]
"""A child, and the job that its labels name."""


class ChildLists:
    """All children by UID, with lists by namespace and of those in queues."""

    def __init__(self) -> None:
        """Know none."""
        self._by_namespace: dict[str, dict[str, Entry]] = {}
        self._queued: dict[str, Entry] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is stored, not even a namespace."""
        return not self._by_namespace and not self._queued

    def put(self, ref: JobRef, child: ChildSummary) -> None:
        """Add or update a child of a job. It never changes its namespace."""
        entry = ref, child
        self._by_namespace.setdefault(ref.namespace, {})[child.uid] = entry
        if _is_queued(child):
            self._queued[child.uid] = entry
        else:
            self._queued.pop(child.uid, None)

    def drop(self, namespace: str, uid: str) -> None:
        """Forget a child, if it is known."""
        self._queued.pop(uid, None)
        children = self._by_namespace.get(namespace, {})
        children.pop(uid, None)
        if not children:
            self._by_namespace.pop(namespace, None)

    def of(self, namespace: str) -> Iterable[Entry]:
        """Return a live view of the children of a namespace; do not keep it across an await."""
        return self._by_namespace.get(namespace, {}).values()

    def queued(self) -> list[Entry]:
        """Return the children that are, or were, managed by a queue and have not ended."""
        return list(self._queued.values())


def _is_queued(child: ChildSummary) -> bool:
    return (child.is_suspended or bool(child.queue)) and not child.is_deleting and child.completed_at_s is None
