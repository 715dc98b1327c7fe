"""Which pod ended an attempt, and how: one order for all that may befall pods. Pure.

What a node or the cluster did to a pod comes before what any program says, since the program says it as a consequence.
Then comes a worker that was lost, a launcher that refused its input, and a worker that ended by itself: its launcher
only knows that it is gone. What the launcher, or the single pod, says of itself comes last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bert_operator.api.schema.conditions import FailureReason
from bert_operator.cluster.blockers import is_about_user_namespaces
from bert_operator.cluster.object_summaries import PodSummary
from bert_operator.render import names
from bert_operator.state.observed import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_INFRASTRUCTURE,
    EXIT_STOPPED,
    ChildOutcome,
    read_outcome,
    read_termination_record,
)

_LOST_SIGHT = ("ContainerStatusUnknown", "Unknown")
"""Reasons by which kubelet and containerd say that they found a container gone, as after a reboot. The exit code beside
them is made up."""
_NO_ONES_WORD = (EXIT_DONE, EXIT_STOPPED, EXIT_INFRASTRUCTURE)
"""Exit codes of a worker that say that it was stopped, or that its sshd was lost."""


class Cause(NamedTuple):
    """Cause of a failed attempt."""

    reason: str
    message: str
    pod: PodSummary | None
    exit_code: int | None = None
    """None: not a program's, so that it counts as infrastructure."""
    signal: int | None = None


def find_cause(
    pods: Sequence[PodSummary], main: PodSummary | None = None, conditions: Mapping[str, str] | None = None
) -> Cause | None:
    """Return the cause of failure other than the main pod's own exit code; None if that says it all.

    Args:
        pods: That ended before the main one did, and it.
        main: The launcher's pod, or the single one; None if it has no exit code.
        conditions: Reasons of the conditions of the Job or MPIJob that hold, by type.
    """
    for find in (_disruption, _out_of_memory, _user_namespace, _rejection, _failed_init):
        for pod in pods:
            if (cause := find(pod)) is not None:
                return cause
    if (conditions or {}).get("Failed") == "MPIJobEvicted":
        return Cause(FailureReason.EVICTED.value, FailureReason.EVICTED.sentence, _first_failure(pods))
    workers = [pod for pod in pods if pod.role == names.WORKER and pod.has_ended and not pod.is_deleting]
    for pod in workers:
        if pod.phase == "Failed" and not _has_own_word(pod):
            return _killed(pod)
    if main is not None and _is_lost_from_sight(main):
        return _killed(main)
    if main is not None and main.exit_code == EXIT_BAD_INPUT:
        return None
    return next((_own_word(pod) for pod in workers if _has_own_word(pod)), None)


def describe_end(pod: PodSummary) -> str:
    """Describe how a pod's trainer ended, with its last message: ``exit code 1 (Error): ValueError: no``."""
    record, text = parse_termination_message(pod.message)
    said = read_outcome(pod.exit_code or 1, record).message or text or pod.told
    code = f"exit code {pod.exit_code} " if pod.exit_code is not None else ""
    how = f"({pod.ended_by or pod.disruption or 'no reason given'})"
    return f"{code}{how}{f': {said}' if said else ''}"


def pod_and_node(pod: PodSummary) -> str:
    """Return the name of a pod and of its node, for messages."""
    return f"Pod {pod.name}" + (f" on node {pod.node}" if pod.node else "")


def failed_before_start(pod: PodSummary) -> bool:
    """Return whether a pod failed before its trainer started, so that there will be no exit code."""
    return pod.phase == "Failed" and (_rejection(pod) or _failed_init(pod)) is not None


def parse_termination_message(message: str) -> tuple[Mapping[str, Any] | None, str]:
    """Return the termination record of a container, or the last line of a message that is plain text."""
    if (record := read_termination_record(message)) is not None:
        return record, ""
    lines = [line for line in message.splitlines() if line.strip()]
    return None, lines[-1] if lines else ""


def _first_failure(pods: Iterable[PodSummary]) -> PodSummary | None:
    """Return the pod that failed first; its death brings down the others of an MPI job."""
    failed = [pod for pod in pods if pod.phase == "Failed" or (pod.exit_code or 0) != 0]
    return min(failed, key=lambda pod: (pod.finished_at_s or float("inf"), pod.role), default=None)


def _disruption(pod: PodSummary) -> Cause | None:
    if not pod.disruption:
        return None
    reason = FailureReason.EVICTED if pod.disruption == "Evicted" else FailureReason.DISRUPTED
    return Cause(reason.value, f"{pod_and_node(pod)}: {reason.sentence}{_say_told(pod)}", pod)


def _out_of_memory(pod: PodSummary) -> Cause | None:
    if pod.ended_by != "OOMKilled":
        return None
    reason = FailureReason.OUT_OF_MEMORY
    # The OOM killer's SIGKILL, for messages.
    return Cause(reason.value, f"{pod_and_node(pod)}: {reason.sentence}", pod, signal=9)


def _user_namespace(pod: PodSummary) -> Cause | None:
    # The container is set up after its volumes are, so this is no blocker: the pod has failed, and another node may do
    # better.
    if pod.ended_by != "StartError" or not is_about_user_namespaces(pod.message):
        return None
    reason = FailureReason.USER_NAMESPACE_FAILED
    return Cause(reason.value, f"{pod_and_node(pod)}: {reason.sentence} {pod.message}", pod)


def _rejection(pod: PodSummary) -> Cause | None:
    """Return that a node's kubelet did not take a pod: whatever it calls that, no container has started."""
    if pod.phase != "Failed" or not pod.told or not (pod.exit_code is None or _is_lost_from_sight(pod)):
        return None
    return Cause(FailureReason.POD_REJECTED.value, f"{pod_and_node(pod)} was refused by its kubelet: {pod.told}", pod)


def _failed_init(pod: PodSummary) -> Cause | None:
    ended = pod.foreign_end
    if ended is None or not ended.is_init or pod.phase != "Failed" or pod.exit_code is not None:
        return None
    _, said = parse_termination_message(ended.message)
    message = (
        f"{pod_and_node(pod)}: init container {ended.container} ended with exit code {ended.exit_code} "
        f"({ended.reason or 'no reason given'}) before the trainer's started{f': {said}' if said else ''}"
    )
    return Cause(FailureReason.INIT_CONTAINER_FAILED.value, message, pod)


def _killed(pod: PodSummary) -> Cause:
    outcome = _outcome(pod)
    is_signal = outcome is not None and outcome.signal is not None and not _is_lost_from_sight(pod)
    return Cause(
        (outcome.reason if outcome is not None else None) or FailureReason.KILLED.value,
        f"{pod_and_node(pod)}: ended with {describe_end(pod)}",
        pod,
        # Of the codes a worker may end with these two count as infrastructure.
        exit_code=pod.exit_code if is_signal or pod.exit_code == EXIT_INFRASTRUCTURE else None,
        signal=outcome.signal if outcome is not None and is_signal else None,
    )


def _own_word(pod: PodSummary) -> Cause:
    outcome = _outcome(pod)
    assert outcome is not None, "a pod with a word of its own has an exit code"
    usual = FailureReason.REFUSED_INPUT if outcome.exit_code == EXIT_BAD_INPUT else FailureReason.EXITED
    message = f"{pod_and_node(pod)}: ended with {describe_end(pod)}"
    return Cause(outcome.reason or usual.value, message, pod, outcome.exit_code)


def _has_own_word(pod: PodSummary) -> bool:
    """Return whether a worker ended by itself, with the exit code of a program that failed."""
    outcome = _outcome(pod)
    return (
        outcome is not None
        and pod.ended_by == "Error"
        and outcome.signal is None
        and outcome.exit_code not in _NO_ONES_WORD
    )


def _outcome(pod: PodSummary) -> ChildOutcome | None:
    return None if pod.exit_code is None else read_outcome(pod.exit_code, parse_termination_message(pod.message)[0])


def _is_lost_from_sight(pod: PodSummary) -> bool:
    return pod.ended_by in _LOST_SIGHT


def _say_told(pod: PodSummary) -> str:
    return f" {pod.told}" if pod.told else ""
