"""Which nodes the next attempt should avoid: sick ones, and those on which attempts failed again and again. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bert_operator.api.schema.conditions import FailureReason
from bert_operator.api.schema.status import MAX_AVOIDED_NODES, Failure

_FAILURES = 2
"""One says nothing about a node, unless it was sick."""
# What would have happened on any node.
_OF_NO_NODE = frozenset(
    {
        FailureReason.EVICTED,
        FailureReason.DISRUPTED,
        FailureReason.STOPPED_UNASKED,
        FailureReason.INIT_CONTAINER_FAILED,
        FailureReason.OUT_OF_MEMORY,
        FailureReason.STORAGE_FAILED,
        FailureReason.LOST,
    }
)

# A node that says itself that it is sick, or that it does not take the pod, needs no second attempt to show it.
_AT_ONCE = frozenset({FailureReason.DEVICE_UNHEALTHY, FailureReason.POD_REJECTED})


def find_bad_nodes(failures: Iterable[Failure]) -> tuple[str, ...]:
    """Return nodes that were unhealthy, refused a pod, or failed first in two attempts; the newest last."""
    failures = tuple(failures)
    blamed = [
        failure.node
        for failure in failures
        if failure.node is not None and failure.kind == "Infrastructure" and not _blames_none(failure)
    ]
    counts = Counter(blamed)
    sick = {failure.node for failure in failures if failure.reason in _AT_ONCE}
    often = [node for node, count in counts.items() if count >= _FAILURES or node in sick]
    newest_last = sorted(often, key=lambda node: len(blamed) - blamed[::-1].index(node))
    return tuple(newest_last[-MAX_AVOIDED_NODES:])


def _blames_none(failure: Failure) -> bool:
    # A hang in which all ranks wait for each other names none of them, and the launcher's pod stands in its place.
    is_launcher_s = failure.reason == FailureReason.HUNG and "-launcher" in (failure.pod or "")
    return failure.reason in _OF_NO_NODE or is_launcher_s
