"""Which nodes and devices under a child are sick: conditions of nodes, and what kubelet says of devices. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bert_operator.api.schema.conditions import FailureReason, Reason
from bert_operator.cluster.node_summaries import NodeProblem, NodeSummary
from bert_operator.cluster.object_summaries import PodSummary
from bert_operator.render import names
from bert_operator.state.observed import EXIT_BAD_INPUT, EXIT_FAILED, Child, Finding
from bert_operator.timestamps import render_time

# Conditions in which a program may raise an error of its own. Whatever else is wrong with a node kills its processes or
# loses them; a user's mistake must not count as infrastructure because a node happens to be short of memory.
_BREAKS_PROGRAMS = re.compile(r"Xid|G[Pp][Uu]|Nv[Ll]ink|Hardware|Read-?[Oo]nly|Corrupt|Fault|Deadlock")
# What explains a failure by itself, and better: kubelet's answer to pressure, the pod's own limit, the volume.
_EXPLAINED = frozenset(
    {
        FailureReason.EVICTED,
        FailureReason.OUT_OF_MEMORY,
        FailureReason.STORAGE_FAILED,
        FailureReason.USER_NAMESPACE_FAILED,
    }
)
_GOES_ON = "The attempt goes on"
_BY_TAINT = "DeletionByTaintManager"
"""Of a pod on a node that does not answer. Other disruptions are intended: a drain, a preemption, a shutdown."""


def find_node_problem(pods: Sequence[PodSummary], nodes: Mapping[str, NodeSummary]) -> Finding | None:
    """Return the problem of a node or device under a running child's pods; None if none is known."""
    alive = sorted((pod for pod in pods if pod.node and pod.phase == "Running"), key=lambda pod: pod.name)
    for pod in alive:
        if pod.sick_devices:
            message = f"Pod {pod.name} on node {pod.node}: {pod.sick_devices}. {_GOES_ON}"
            return Finding(reason=Reason.DEVICE_UNHEALTHY, message=message)
    found = [(pod, problem) for pod in alive for problem in _problems_of(pod, nodes)]
    if not found:
        return None
    # Nodes that do not answer first, then in the order of names: the text must not change while nothing else does.
    pod, problem = min(found, key=lambda item: (item[1].kind != "Ready", item[0].name))
    others = len({other.node for other, _ in found} - {pod.node})
    message = f"{_describe_problem(pod.node, problem)}; pod {pod.name} runs there"
    message += f". {others} more nodes of this job are not healthy" if others else ""
    reason = Reason.NODE_NOT_READY if problem.kind == "Ready" else Reason.NODE_CONDITION
    return Finding(reason=reason, message=f"{message}. {_GOES_ON}")


def attribute_to_node(failed: Child, pods: Sequence[PodSummary], nodes: Mapping[str, NodeSummary]) -> Child:
    """Return a failed child with an unhealthy node or device as its cause, if one explains the failure.

    Args:
        failed: As it is without that.
        pods: Of the child.
        nodes: What is known of nodes, by name.
    """
    if failed.state != "Failed" or _is_explained(failed, pods):
        return failed
    # The pod that failed first before all others: its peers fail as well, of which it says nothing.
    suspects = sorted((pod for pod in pods if pod.node), key=lambda pod: (pod.name != failed.pod, pod.name))
    sick = next((pod for pod in suspects if pod.sick_devices), None)
    if sick is not None:
        return _blame(failed, sick, f"Pod {sick.name} on node {sick.node}: {sick.sick_devices}")
    # The loss, or the run's own judgement of it, is the same on every node.
    if failed.exit_code == EXIT_BAD_INPUT or failed.reason == FailureReason.TRAINING_UNHEALTHY:
        return failed
    is_programs_own = failed.exit_code == EXIT_FAILED
    for pod in suspects:
        if pod.role == names.LAUNCHER and pod.name != failed.pod:
            continue  # it computes nothing
        for problem in _problems_of(pod, nodes):
            if not is_programs_own or _BREAKS_PROGRAMS.search(problem.kind):
                return _blame(failed, pod, _describe_problem(pod.node, problem))
    return failed


def _is_explained(failed: Child, pods: Iterable[PodSummary]) -> bool:
    is_intended = any(pod.disruption not in ("", _BY_TAINT) for pod in pods)
    # A GPU that has fallen off its bus is missing when the next process looks for it.
    is_input = failed.exit_code == EXIT_BAD_INPUT and failed.reason != FailureReason.DEVICE_UNUSABLE
    return failed.reason in _EXPLAINED or is_intended or is_input


def _blame(failed: Child, pod: PodSummary, cause: str) -> Child:
    how = f"{failed.reason or 'Failed'}: {failed.message}" if failed.message else failed.reason
    end = f"exit code {failed.exit_code}" if failed.exit_code is not None else ""
    told = "; ".join(filter(None, (end, how)))
    return replace(
        failed,
        reason=FailureReason.DEVICE_UNHEALTHY.value,
        message=cause + (f". The attempt ended with: {told}" if told else ""),
        pod=pod.name,
        node=pod.node,
        # Not the program's failure, whatever it exits with on broken hardware.
        exit_code=None,
    )


def _problems_of(pod: PodSummary, nodes: Mapping[str, NodeSummary]) -> tuple[NodeProblem, ...]:
    known = nodes.get(pod.node)
    return () if known is None else known.problems


def _describe_problem(node: str, problem: NodeProblem) -> str:
    what = f"has been not ready since {_since(problem)}" if problem.kind == "Ready" else f"has {problem.kind}"
    why = ": ".join(filter(None, (problem.reason, problem.message)))
    since = "" if problem.kind == "Ready" else f" since {_since(problem)}"
    return f"Node {node} {what}{since}" + (f" ({why})" if why else "")


def _since(problem: NodeProblem) -> str:
    return "an unknown time" if problem.since_s is None else render_time(problem.since_s)
