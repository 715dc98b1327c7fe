"""From what the cluster shows to what a plan is made of: how each child is, and what holds it up. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bert_operator.api.schema.conditions import FailureReason
from bert_operator.api.schema.status import ChildRef
from bert_operator.cluster.blockers import find_blocker, find_unready
from bert_operator.cluster.object_summaries import ChildSummary, PodSummary, WarningSummary
from bert_operator.render import names
from bert_operator.state.observed import Child, read_outcome, read_record

SETTLING_S = 10.0
"""Longest time from a child's failure to its pod's last word."""


def observe_child(
    child: ChildSummary,
    pods: Sequence[PodSummary],
    warnings: Mapping[str, Sequence[WarningSummary]],
    *,
    workers: int,
    now_s: float,
) -> Child:
    """Return how a child is.

    pods: those of this child. warnings: events by the name of what they are about. workers: of its run. now_s: by the
    clock of the API server, which also wrote when objects were created; nodes and controllers have clocks of their own.
    """
    base = Child(
        run=child.run,
        attempt=child.attempt,
        state="Pending",
        stopping=child.is_deleting,
        waiting_since_s=_waiting_since(child, pods, now_s),
        ref=ChildRef(kind=child.kind, name=child.name, uid=child.uid, attempt=child.attempt),
    )
    conditions = dict(child.conditions)
    if _has_succeeded(child, conditions):
        return replace(
            base, state="Succeeded", exit_code=0, finished_at_s=_ended_at(child.completed_at_s, child, now_s)
        )
    if _has_failed(child, conditions):
        if is_settling(child, pods, now_s):
            return replace(base, state="Running")
        failed = _failed(base, child, pods, conditions)
        return replace(failed, finished_at_s=_ended_at(failed.finished_at_s, child, now_s))
    if child.is_suspended:
        return replace(base, state="Queued")
    if _has_begun(child, pods, workers, conditions):
        return replace(base, state="Running", blocker=None if child.is_deleting else find_unready(pods, now_s))
    blocker = None if child.is_deleting else find_blocker(child, pods, warnings, workers=workers, now_s=now_s)
    return replace(base, blocker=blocker)


def _ended_at(time_s: float | None, child: ChildSummary, now_s: float) -> float | None:
    """Return when a child ended: not before it was created, nor later than now.

    Nodes and controllers write that time by clocks of their own; a wrong one costs a back-off at most.
    """
    return None if time_s is None else min(max(time_s, child.created_at_s), max(now_s, child.created_at_s))


def _waiting_since(child: ChildSummary, pods: Sequence[PodSummary], now_s: float) -> float | None:
    """Return since when a child may start, by the API server's clock as far as that can be known."""
    since_s = child.waiting_since_s
    if since_s is None:
        return None
    # The clock of the controller that let it go may be ahead or behind; the pods that it made then have a time that the
    # API server wrote.
    made = [pod.created_at_s for pod in pods if not pod.is_deleting]
    if since_s > now_s:
        return min(*made, now_s) if made else now_s
    was_held = since_s != child.created_at_s
    return max(since_s, min(made)) if made and was_held else since_s


def _has_succeeded(child: ChildSummary, conditions: Mapping[str, str]) -> bool:
    return "Complete" in conditions if child.kind == "Job" else "Succeeded" in conditions


def _has_failed(child: ChildSummary, conditions: Mapping[str, str]) -> bool:
    # mpi-operator marks an MPIJob as failed when a worker is evicted, and takes that back if the launcher makes
    # it nevertheless. Its ranks cannot finish without that worker, so it counts as failed at once.
    return "Failed" in conditions


def has_ended(child: ChildSummary) -> bool:
    """Tell whether a child's program is over, whatever came of it."""
    conditions = dict(child.conditions)
    return _has_succeeded(child, conditions) or _has_failed(child, conditions)


def is_settling(child: ChildSummary, pods: Sequence[PodSummary], now_s: float) -> bool:
    """Tell whether a child has failed and its pod has not yet said how: the two come over different watches."""
    # The controller's clock may be ahead or behind: what ended at another time than about now is not waited for.
    if not _has_failed(child, dict(child.conditions)) or abs(now_s - (child.completed_at_s or 0.0)) > SETTLING_S:
        return False
    main = [pod for pod in pods if pod.role in (names.LAUNCHER, names.SINGLE)]
    return any(pod.exit_code is None and not pod.is_deleting and not pod.disruption for pod in main)


def _has_begun(child: ChildSummary, pods: Iterable[PodSummary], workers: int, conditions: Mapping[str, str]) -> bool:
    """Tell whether the program may be running, or was: the single pod, or the launcher with all of its workers.

    Pods are ahead of what their controllers say: one that has ended belongs to a child that is about to end.
    """
    if "FailureTarget" in conditions or "SuccessCriteriaMet" in conditions:
        return True  # a Job that only waits for its last pod
    begun = [pod for pod in pods if pod.phase in ("Running", "Succeeded", "Failed")]
    if child.kind == "Job" or "Running" in conditions:
        return bool(begun)
    launcher = next((pod for pod in begun if pod.role == names.LAUNCHER), None)
    if launcher is None:
        return False
    return launcher.phase != "Running" or sum(pod.role == names.WORKER for pod in begun) >= workers


def _failed(base: Child, child: ChildSummary, pods: Sequence[PodSummary], conditions: Mapping[str, str]) -> Child:
    """Tell the cause: a pod that was taken away, one that ran out of memory, or the program itself."""
    main = next((pod for pod in pods if pod.role in (names.LAUNCHER, names.SINGLE) and pod.exit_code is not None), None)
    every = pods
    pods = [pod for pod in pods if pod.disruption or main is None or not _ended_after(pod, main)]
    first = _first_failure(pods)
    cause = _infrastructure_cause(pods, conditions)
    base = replace(base, finished_at_s=child.completed_at_s)
    if cause is not None:
        reason, pod = cause
        blamed = pod or first
        return replace(
            base,
            state="Failed",
            reason=reason.value,
            message=_say(reason, blamed),
            pod=blamed.name if blamed else None,
            node=(blamed.node or None) if blamed else None,
            signal=9 if reason is FailureReason.OUT_OF_MEMORY else None,
        )
    if main is None or main.exit_code is None:
        return replace(
            base, state="Failed", reason=FailureReason.POD_DELETED.value, message=FailureReason.POD_DELETED.sentence
        )
    record, text = _read_message(main.message)
    outcome = read_outcome(main.exit_code or 1, record)
    blamed = first or main
    failed = _named_in(record, child)
    name = blamed.name if failed is None else failed
    return replace(
        base,
        state=outcome.state,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        reason=outcome.reason,
        message=outcome.message or text,
        pod=name,
        node=next((pod.node for pod in (*every, blamed) if pod.name == name), "") or None,
        finished_at_s=main.finished_at_s or child.completed_at_s,
    )


def _ended_after(pod: PodSummary, main: PodSummary) -> bool:
    """Tell whether a pod ended when all was over: workers are cleaned away, and may be killed for being slow."""
    return pod.finished_at_s is not None and main.finished_at_s is not None and pod.finished_at_s > main.finished_at_s


def _first_failure(pods: Iterable[PodSummary]) -> PodSummary | None:
    """Return the pod that failed first; the others of an MPI job die of it."""
    failed = [pod for pod in pods if pod.phase == "Failed" or (pod.exit_code or 0) != 0]
    return min(failed, key=lambda pod: (pod.finished_at_s or float("inf"), pod.role), default=None)


def _named_in(record: Mapping[str, Any] | None, child: ChildSummary) -> str | None:
    """Return the worker whose rank the launcher saw fail first: that pod lives on, or is cleaned away already."""
    failure = (record or {}).get("firstFailure")
    host = failure.get("host") if isinstance(failure, Mapping) else None
    of_workers = re.escape(f"{child.name}-{names.WORKER}-") + "[0-9]{1,5}"
    return host if isinstance(host, str) and re.fullmatch(of_workers, host) else None


def _infrastructure_cause(
    pods: Iterable[PodSummary], conditions: Mapping[str, str]
) -> tuple[FailureReason, PodSummary | None] | None:
    for pod in pods:
        if pod.disruption:
            return (FailureReason.EVICTED if pod.disruption == "Evicted" else FailureReason.DISRUPTED), pod
    for pod in pods:
        if pod.ended_by == "OOMKilled":
            return FailureReason.OUT_OF_MEMORY, pod
    if conditions.get("Failed") == "MPIJobEvicted":
        return FailureReason.EVICTED, None
    lost = next((pod for pod in pods if pod.role == names.WORKER and pod.phase == "Failed"), None)
    return None if lost is None else (FailureReason.KILLED, lost)


def _say(reason: FailureReason, pod: PodSummary | None) -> str:
    if pod is None:
        return reason.sentence
    where = f" on node {pod.node}" if pod.node else ""
    return f"Pod {pod.name}{where}: {reason.sentence}"


def _read_message(message: str) -> tuple[Mapping[str, Any] | None, str]:
    """Return the record that a container left, or its last line where it left plain text."""
    if (record := read_record(message)) is not None:
        return record, ""
    lines = [line for line in message.splitlines() if line.strip()]
    return None, lines[-1] if lines else ""
