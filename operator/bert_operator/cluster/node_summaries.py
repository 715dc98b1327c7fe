"""Summaries of nodes: what is not as it should be, from their conditions. Pure.

Conditions come from kubelet, from the node controller and from agents of many makers, so everything is bounded and
parsed defensively.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_operator.timestamps import time_of

_MAX_TEXT = 200
# Conditions as agents of nodes call them: KernelReady and AcceleratedHardwareReady (EKS) are good if True, while
# KernelDeadlock, ReadonlyFilesystem, FrequentKubeletRestart (node-problem-detector) and GpuXidError (NVSentinel) are
# not. What matches neither, such as VMEventScheduled (AKS), says nothing about the node's health.
_GOOD_ENDINGS = ("Ready", "Healthy", "OK")
_TROUBLE = re.compile(
    r"Pressure|Problem|Deadlock|Read-?[Oo]nly|Corrupt|Unhealthy|Error|Fail|Fault|Frequent|Xid|NetworkUnavailable|Hung|Lost"
)


class NodeProblem(NamedTuple):
    """A condition of a node that indicates a problem."""

    kind: str
    """Its type: Ready if the node is not."""
    reason: str
    message: str
    since_s: float | None


class NodeSummary(NamedTuple):
    """A node that runs pods of jobs."""

    name: str
    problems: tuple[NodeProblem, ...]


def read_node(name: str, body: Mapping[str, Any]) -> NodeSummary:
    """Return the problems of a node."""
    problems = (
        NodeProblem(
            sys.intern(str(item.get("type"))),
            str(item.get("reason") or "")[:_MAX_TEXT],
            str(item.get("message") or "")[:_MAX_TEXT],
            time_of(item.get("lastTransitionTime")),
        )
        for item in (body.get("status") or {}).get("conditions") or ()
        if _is_problem(str(item.get("type")), str(item.get("status")))
    )
    return NodeSummary(name, tuple(problems))


def _is_problem(kind: str, status: str) -> bool:
    """Return whether a condition of a node tells of trouble. Others than Kubernetes' own have no agreed sense."""
    # Unknown is what the node controller writes when kubelet is silent.
    if kind == "Ready":
        return status != "True"
    if kind.endswith(_GOOD_ENDINGS):
        return status == "False"
    return status == "True" and _TROUBLE.search(kind) is not None
