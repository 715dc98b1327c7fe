"""Derives the state of a child from its summaries: pending, running or ended, why, and what blocks it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from bert_operator.api.schema.conditions import FailureReason
from bert_operator.api.schema.status import ChildRef
from bert_operator.cluster.blockers import find_blocker, find_unready, is_about_user_namespaces
from bert_operator.cluster.node_health import blame_sick_node, find_trouble
from bert_operator.cluster.node_summaries import NodeSummary
from bert_operator.cluster.object_summaries import ChildSummary, PodSummary, WarningSummary
from bert_operator.cluster.workloads import WorkloadSummary, describe_queue, describe_wait, find_obstacle
from bert_operator.names import JobRef
from bert_operator.render import names
from bert_operator.render.images import is_of_same_repository
from bert_operator.state.observed import Child, read_outcome, read_termination_record

SETTLING_S = 10.0
"""Longest wait from a child's failure until its pod's exit code is seen."""

LOST_WORKER_S = 60.0
"""So long after a worker has ended the launcher may still say what happened. Ranks that run end within seconds, with
the cause. A launcher that waits for its workers knows no pods, and would wait for ever."""


def observe_child(
    child: ChildSummary,
    pods: Sequence[PodSummary],
    warnings: Mapping[str, Sequence[WarningSummary]],
    *,
    workers: int,
    now_s: float,
    nodes: Mapping[str, NodeSummary] = MappingProxyType({}),
    workload: WorkloadSummary | None = None,
    preemptor: JobRef | None = None,
    namespace: str = "",
) -> Child:
    """Return the state of a child.

    Args:
        child: Its summary.
        pods: Those of this child.
        warnings: Warning events by the name of their subject.
        workers: Of its run.
        now_s: By the API server's clock, which also wrote creation times; nodes and controllers have their own.
        nodes: What is known of nodes, by name.
        workload: What Kueue says of it; None without a queue, or where that is not known.
        preemptor: The job for which a queue has preempted it, if that is one of ours.
        namespace: The child's.
    """
    base = Child(
        run=child.run,
        attempt=child.attempt,
        state="Pending",
        stopping=child.is_deleting,
        held_by=child.finalizers if child.is_deleting else (),
        waiting_since_s=_waiting_since(child, pods, now_s),
        ref=ChildRef(kind=child.kind, name=child.name, uid=child.uid, attempt=child.attempt),
        image=_find_image(child, pods),
        queue=describe_queue(workload, child.queue),
        grace_s=child.grace_s,
    )
    conditions = dict(child.conditions)
    if _has_succeeded(child, conditions):
        return replace(
            base, state="Succeeded", exit_code=0, finished_at_s=_ended_at(child.completed_at_s, child, now_s)
        )
    if _has_failed(child, conditions):
        if is_settling(child, pods, now_s):
            return replace(base, state="Running")
        failed = blame_sick_node(_failed(base, child, pods, conditions), pods, nodes)
        return replace(failed, finished_at_s=_ended_at(failed.finished_at_s, child, now_s))
    if child.is_suspended:
        # One that is admitted, and held all the same, was read before a queue took the child back, or it is to go on.
        if workload is None or child.is_deleting or (workload.is_admitted and not workload.evicted[0]):
            return replace(base, state="Queued")
        wait = describe_wait(workload, preemptor, namespace)
        return replace(base, state="Queued", wait=wait, blocker=find_obstacle(workload, namespace))
    if _has_begun(child, pods, workers, conditions):
        lost = find_lost_worker(child, pods)
        if lost is not None and now_s >= lost[1]:
            base = _with_lost(base, lost[0], pods, nodes)
        return replace(
            base,
            state="Running",
            blocker=None if child.is_deleting else find_unready(pods, now_s),
            finding=None if child.is_deleting else find_trouble(pods, nodes),
            running_since_s=_running_since(child, pods, workers),
            pod_nodes=tuple(sorted((pod.name, pod.node) for pod in pods if pod.node)),
        )
    blocker = None if child.is_deleting else find_blocker(child, pods, warnings, workers=workers, now_s=now_s)
    return replace(base, blocker=blocker)


def _find_image(child: ChildSummary, pods: Sequence[PodSummary]) -> str | None:
    """Return by digest what the child's program runs in.

    Of the pod that starts it: where a tag was moved between two pulls, workers may have another one. And only of the
    repository that the child was made with: a webhook may send pods elsewhere, and anyone may label a pod of theirs.
    What is taken is kept, so that nothing is better than another's.
    """
    main = (pod.image for pod in pods if pod.image and pod.role in (names.LAUNCHER, names.SINGLE))
    return next((image for image in main if child.image and is_of_same_repository(image, child.image)), None)


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
    # The controller that resumed it wrote that time by its own clock, which may be ahead or behind. The API server
    # wrote when the pods were created that the controller made next.
    made = [pod.created_at_s for pod in pods if not pod.is_deleting]
    if since_s > now_s:
        return min(*made, now_s) if made else now_s
    was_held = since_s != child.created_at_s
    return max(since_s, min(made)) if made and was_held else since_s


def _has_succeeded(child: ChildSummary, conditions: Mapping[str, str]) -> bool:
    return "Complete" in conditions if child.kind == "Job" else "Succeeded" in conditions


def _has_failed(child: ChildSummary, conditions: Mapping[str, str]) -> bool:
    # mpi-operator sets Failed when a worker is evicted, and withdraws it if the launcher succeeds nevertheless. Ranks
    # cannot finish without that worker, so the child counts as failed at once.
    return "Failed" in conditions


def find_main_pod(pods: Iterable[PodSummary]) -> PodSummary | None:
    """Return the pod whose log and exit code count: the launcher, or the single pod, of the newest run of the attempt.

    Where a queue has let a child go on, the pod that it suspended may still be there, and takes its time to leave.
    """
    main = (pod for pod in pods if pod.role in (names.LAUNCHER, names.SINGLE))
    return max(main, key=lambda pod: (not pod.is_deleting, pod.created_at_s), default=None)


def has_ended(child: ChildSummary) -> bool:
    """Return whether a child has succeeded or failed."""
    conditions = dict(child.conditions)
    return _has_succeeded(child, conditions) or _has_failed(child, conditions)


def has_succeeded(child: ChildSummary) -> bool:
    """Return whether a child has succeeded."""
    return _has_succeeded(child, dict(child.conditions))


def is_settling(child: ChildSummary, pods: Sequence[PodSummary], now_s: float) -> bool:
    """Return whether a child has failed and the exit code of its pod is not known yet.

    The two come over different watches. Without the exit code, wrong input would look like lost infrastructure.
    """
    # A child that ended long ago, or in the future of a wrong clock, is not waited for.
    if not _has_failed(child, dict(child.conditions)) or abs(now_s - (child.completed_at_s or 0.0)) > SETTLING_S:
        return False
    main = [pod for pod in pods if pod.role in (names.LAUNCHER, names.SINGLE)]
    return any(pod.exit_code is None and not pod.is_deleting and not pod.disruption for pod in main)


def find_lost_worker(child: ChildSummary, pods: Sequence[PodSummary]) -> tuple[PodSummary, float] | None:
    """Return a worker that has ended while its launcher goes on, and from when on the attempt counts as failed.

    Also with exit code 0, as sshd's pod does on any SIGTERM: workers serve until their launcher is done and they are
    deleted, so one that ends by itself was stopped by its node.
    """
    main = find_main_pod(pods)
    if child.is_deleting or has_ended(child) or main is None or main.phase != "Running" or main.is_deleting:
        return None
    # By the API server's clock where it says when it was told: nodes have their own.
    ended = [
        (pod, pod.described_at_s or pod.finished_at_s or pod.created_at_s)
        for pod in pods
        if pod.role == names.WORKER and pod.phase in ("Failed", "Succeeded") and not pod.is_deleting
    ]
    if not ended:
        return None
    pod, ended_at_s = min(ended, key=lambda found: (found[1], found[0].name))
    return pod, ended_at_s + LOST_WORKER_S


def _with_lost(base: Child, pod: PodSummary, pods: Sequence[PodSummary], nodes: Mapping[str, NodeSummary]) -> Child:
    """Return a running child that has lost a worker, with the cause of that."""
    cause = _infrastructure_cause([pod], {}) or (FailureReason.KILLED, pod)
    what = "has failed" if pod.phase == "Failed" else "was stopped"
    where, told = f" on node {pod.node}" if pod.node else "", pod.ended_by or pod.disruption or "no reason given"
    message = f"Pod {pod.name}{where} {what} ({told}), and the launcher waits for it"
    failed = replace(base, state="Failed", reason=cause[0].value, message=message, pod=pod.name, node=pod.node or None)
    blamed = blame_sick_node(failed, pods, nodes)
    return replace(base, lost=blamed.message, reason=blamed.reason, pod=blamed.pod, node=blamed.node)


def _has_begun(child: ChildSummary, pods: Iterable[PodSummary], workers: int, conditions: Mapping[str, str]) -> bool:
    """Return whether the program has started: in the single pod, or in the launcher and all of its workers.

    Pods are ahead of their controllers: one that has ended belongs to a child that is about to end.
    """
    if "FailureTarget" in conditions or "SuccessCriteriaMet" in conditions:
        return True  # a Job that only waits for its last pod
    if child.is_counted_running and not child.is_deleting and child.waiting_since_s is not None:
        return True  # whatever has become of its pods' labels
    # Those that a queue has suspended may still be leaving after it has let the child go on.
    held_until_s = 0.0 if child.is_deleting else child.waiting_since_s or 0.0
    begun = [
        pod
        for pod in pods
        if pod.phase in ("Running", "Succeeded", "Failed") and not (pod.is_deleting and pod.created_at_s < held_until_s)
    ]
    if child.kind == "Job" or "Running" in conditions:
        return bool(begun)
    launcher = next((pod for pod in begun if pod.role == names.LAUNCHER), None)
    if launcher is None:
        return False
    return launcher.phase != "Running" or sum(pod.role == names.WORKER for pod in begun) >= workers


def _running_since(child: ChildSummary, pods: Iterable[PodSummary], workers: int) -> float | None:
    """Return since when the launcher and all workers of an MPIJob have run; None while one of them does not."""
    # The API server wrote when a pod was created, its node when it started: by a clock that may be behind.
    started = [
        (pod.role, max(pod.started_at_s, pod.created_at_s))
        for pod in pods
        if pod.phase == "Running" and pod.started_at_s is not None and not pod.is_deleting
    ]
    roles = [role for role, _ in started]
    is_whole = names.LAUNCHER in roles and roles.count(names.WORKER) >= workers
    return max(at_s for _, at_s in started) if child.kind == "MPIJob" and is_whole else None


def _failed(base: Child, child: ChildSummary, pods: Sequence[PodSummary], conditions: Mapping[str, str]) -> Child:
    """Return a failed child and the cause: a pod that was evicted or lost, one out of memory, or the program."""
    main = find_main_pod(pod for pod in pods if pod.exit_code is not None)
    suspects = [pod for pod in pods if pod.disruption or main is None or not _ended_after(pod, main)]
    first = _first_failure(suspects)
    cause = _infrastructure_cause(suspects, conditions)
    base = replace(base, finished_at_s=child.completed_at_s)
    if cause is not None:
        reason, pod = cause
        blamed = pod or first
        return replace(
            base,
            state="Failed",
            reason=reason.value,
            message=_describe_cause(reason, blamed),
            pod=blamed.name if blamed else None,
            node=(blamed.node or None) if blamed else None,
            # The OOM killer's SIGKILL, for messages. Without an exit code, each of these causes is infrastructure.
            signal=9 if reason is FailureReason.OUT_OF_MEMORY else None,
        )
    if main is None or main.exit_code is None:
        return replace(
            base, state="Failed", reason=FailureReason.POD_DELETED.value, message=FailureReason.POD_DELETED.sentence
        )
    record, text = _parse_termination_message(main.message)
    # The child has failed: its pod's exit code 0 must not make a success of it.
    outcome = read_outcome(main.exit_code or 1, record)
    blamed = first or main
    failed = _first_failed_worker(record, child)
    name = blamed.name if failed is None else failed
    return replace(
        base,
        state=outcome.state,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        reason=outcome.reason,
        message=outcome.message or text,
        pod=name,
        node=next((pod.node for pod in (*pods, blamed) if pod.name == name), "") or None,
        finished_at_s=main.finished_at_s or child.completed_at_s,
    )


def _ended_after(pod: PodSummary, main: PodSummary) -> bool:
    """Return whether a pod ended after the program: cleanup deletes workers, and may kill slow ones."""
    return pod.finished_at_s is not None and main.finished_at_s is not None and pod.finished_at_s > main.finished_at_s


def _first_failure(pods: Iterable[PodSummary]) -> PodSummary | None:
    """Return the pod that failed first; its death brings down the others of an MPI job."""
    failed = [pod for pod in pods if pod.phase == "Failed" or (pod.exit_code or 0) != 0]
    return min(failed, key=lambda pod: (pod.finished_at_s or float("inf"), pod.role), default=None)


def _first_failed_worker(record: Mapping[str, Any] | None, child: ChildSummary) -> str | None:
    """Return the worker whose rank failed first, as the launcher saw it.

    No pod shows that: sshd in the worker's pod outlives the rank, or the pod is cleaned up already.
    """
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
    for pod in pods:
        # The container is set up after its volumes are, so this is no blocker: the pod has failed, and another node may
        # do better.
        if pod.ended_by == "StartError" and is_about_user_namespaces(pod.message):
            return FailureReason.USER_NAMESPACE_FAILED, pod
    if conditions.get("Failed") == "MPIJobEvicted":
        return FailureReason.EVICTED, None
    lost = next((pod for pod in pods if pod.role == names.WORKER and pod.phase == "Failed"), None)
    return None if lost is None else (FailureReason.KILLED, lost)


def _describe_cause(reason: FailureReason, pod: PodSummary | None) -> str:
    if pod is None:
        return reason.sentence
    where = f" on node {pod.node}" if pod.node else ""
    told = f" {pod.message}" if reason is FailureReason.USER_NAMESPACE_FAILED else ""
    return f"Pod {pod.name}{where}: {reason.sentence}{told}"


def _parse_termination_message(message: str) -> tuple[Mapping[str, Any] | None, str]:
    """Return the termination record of a container, or the last line of a message that is plain text."""
    if (record := read_termination_record(message)) is not None:
        return record, ""
    lines = [line for line in message.splitlines() if line.strip()]
    return None, lines[-1] if lines else ""
