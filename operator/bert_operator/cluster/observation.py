"""Derives the state of a child from its summaries: pending, running or ended, why, and what blocks it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from bert_operator.api.schema.conditions import BlockerReason, FailureReason
from bert_operator.api.schema.status import ChildRef
from bert_operator.cluster.blockers import SILENCE_S, find_blocker, find_unready
from bert_operator.cluster.node_health import attribute_to_node, find_node_problem
from bert_operator.cluster.node_summaries import NodeSummary
from bert_operator.cluster.object_summaries import ChildSummary, PodSummary
from bert_operator.cluster.pod_ends import (
    Cause,
    describe_end,
    failed_before_start,
    find_cause,
    parse_termination_message,
    pod_and_node,
)
from bert_operator.cluster.warning_summaries import WarningSummary
from bert_operator.cluster.workloads import WorkloadSummary, describe_queue, describe_wait, find_obstacle
from bert_operator.names import JobRef
from bert_operator.render import names
from bert_operator.render.images import is_of_same_repository
from bert_operator.state.observed import EXIT_DONE, EXIT_FAILED, Blocker, Child, read_outcome

SETTLING_S = 10.0
"""Longest wait from a child's failure until its pod's exit code is seen."""

HELD_POD_S = 60.0
"""So long after the trainer has ended the containers of others may go on before its end counts as the pod's."""
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
        failed = attribute_to_node(_failed(base, child, pods, conditions), pods, nodes)
        return replace(failed, finished_at_s=_ended_at(failed.finished_at_s, child, now_s))
    if child.is_suspended:
        # One that is admitted, and held all the same, was read before a queue took the child back, or it is to go on.
        if workload is None or child.is_deleting or (workload.is_admitted and not workload.evicted[0]):
            return replace(base, state="Queued")
        wait = describe_wait(workload, preemptor, namespace)
        return replace(base, state="Queued", wait=wait, blocker=find_obstacle(workload, namespace))
    # Also while other pods wait for a node or an image: this one comes to no life, so that they wait in vain.
    lost = find_lost_worker(child, pods)
    if lost is not None and now_s >= lost[1]:
        base = _with_lost(base, lost[0], pods, nodes)
    if _has_begun(child, pods, workers, conditions):
        held = find_held(child, pods)
        if held is not None and now_s >= held[1] + HELD_POD_S:
            return replace(_by_main(base, child, pods, held[0]), is_held=True)
        base = _observe_running(base, child, pods, nodes, workers)
        blocker = _find_running_blocker(pods, held, now_s)
        # Else a worker may have to be made again, and what keeps it counts while the launcher waits for it.
        if blocker is not None or child.kind == "Job" or base.running_since_s is not None:
            return replace(base, blocker=None if child.is_deleting else blocker)
    blocker = None if child.is_deleting else find_blocker(child, pods, warnings, workers=workers, now_s=now_s)
    return replace(base, blocker=blocker)


def _observe_running(
    base: Child,
    child: ChildSummary,
    pods: Sequence[PodSummary],
    nodes: Mapping[str, NodeSummary],
    workers: int,
) -> Child:
    """Return a running child, without what blocks it."""
    return replace(
        base,
        state="Running",
        finding=None if child.is_deleting else find_node_problem(pods, nodes),
        running_since_s=_running_since(child, pods, workers),
        pod_nodes=tuple(sorted((pod.name, pod.node) for pod in pods if pod.node)),
    )


def _find_running_blocker(
    pods: Sequence[PodSummary], held: tuple[PodSummary, float] | None, now_s: float
) -> Blocker | None:
    if held is not None:
        return _describe_held(held[0]) if now_s >= held[1] + SILENCE_S else None
    return find_unready(pods, now_s)


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
    """Return the pod whose log and exit code count: the launcher or single pod of the attempt's newest run.

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
    """Return whether a child has failed but its pod's exit code is not known yet.

    The two come over different watches. Without the exit code, wrong input would look like lost infrastructure.
    """
    # A child that ended long ago, or in the future of a wrong clock, is not waited for.
    if not _has_failed(child, dict(child.conditions)) or abs(now_s - (child.completed_at_s or 0.0)) > SETTLING_S:
        return False
    main = [pod for pod in pods if pod.role in (names.LAUNCHER, names.SINGLE)]
    return any(
        pod.exit_code is None and not pod.is_deleting and not pod.disruption and not failed_before_start(pod)
        for pod in main
    )


def find_lost_worker(child: ChildSummary, pods: Sequence[PodSummary]) -> tuple[PodSummary, float] | None:
    """Return a worker that ended before its launcher, and from when the attempt counts as failed.

    Also with exit code 0, as sshd's pod does on any SIGTERM: workers serve until their launcher is done and they are
    deleted, so one that ends by itself was stopped by its node.
    """
    main = find_main_pod(pods)
    if child.is_deleting or has_ended(child) or main is None or main.is_deleting:
        return None
    if main.phase not in ("Pending", "Running") or main.has_ended:
        return None
    # By the API server's clock where it says when it was told: nodes have their own.
    ended = [
        # Of one that never started the launcher will know nothing.
        (pod, pod.created_at_s if failed_before_start(pod) else _told_at(pod) + LOST_WORKER_S)
        for pod in pods
        if pod.role == names.WORKER and pod.has_ended and not pod.is_deleting
    ]
    return min(ended, key=lambda found: (found[1], found[0].name), default=None)


def _told_at(pod: PodSummary) -> float:
    """Return when a pod's end was told."""
    return pod.described_at_s or pod.finished_at_s or pod.created_at_s


def _with_lost(base: Child, pod: PodSummary, pods: Sequence[PodSummary], nodes: Mapping[str, NodeSummary]) -> Child:
    """Return an active child that has lost a worker, with the cause of that."""
    cause = find_cause([pod]) or Cause(
        FailureReason.KILLED.value, f"{pod_and_node(pod)}: was stopped, {describe_end(pod)}", pod
    )
    failed = _of_cause(base, cause._replace(message=f"{cause.message}. The launcher waits for it"))
    blamed = attribute_to_node(failed, pods, nodes)
    return replace(blamed, state=base.state, message="", lost=blamed.message)


def find_held(child: ChildSummary, pods: Sequence[PodSummary]) -> tuple[PodSummary, float] | None:
    """Return the main pod if other containers keep it running after its trainer ended, and since when."""
    main = find_main_pod(pods)
    if child.is_deleting or has_ended(child) or main is None or main.is_deleting:
        return None
    if not main.beside or main.phase in ("Failed", "Succeeded"):
        return None
    # The node's clock wrote the first, the API server's the second.
    times_s = (main.finished_at_s, main.described_at_s)
    return main, max(main.created_at_s, min((at_s for at_s in times_s if at_s is not None), default=0.0))


def _describe_held(pod: PodSummary) -> Blocker:
    noun, verb = ("containers", "have") if len(pod.beside) > 1 else ("container", "has")
    message = (
        f"{pod_and_node(pod)}: the trainer has ended, and {noun} {' and '.join(pod.beside)} of others {verb} not, so "
        "that the pod does not end; it is deleted soon. Next: have whoever adds them make them init containers with "
        "restartPolicy: Always, which end with the pod, or leave these pods out"
    )
    return Blocker(reason=BlockerReason.POD_HELD, message=message)


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
    """Return a failed child and the cause: what befell a pod, or what its program says."""
    main = find_main_pod(pod for pod in pods if pod.exit_code is not None)
    suspects = [pod for pod in pods if pod.disruption or main is None or not _ended_after(pod, main)]
    cause = find_cause(suspects, main, conditions)
    base = replace(base, finished_at_s=child.completed_at_s)
    if cause is not None:
        return _of_cause(base, cause)
    if main is None:
        return replace(
            base, state="Failed", reason=FailureReason.POD_DELETED.value, message=FailureReason.POD_DELETED.sentence
        )
    ended = _by_main(base, child, pods, main)
    # The child has failed: its pod's exit code 0 makes a success of it only where somebody else's container failed.
    is_done = main.exit_code == EXIT_DONE and main.foreign_end is not None
    return ended if is_done or ended.state != "Succeeded" else replace(ended, state="Failed", exit_code=EXIT_FAILED)


def _of_cause(base: Child, cause: Cause) -> Child:
    return replace(
        base,
        state="Failed",
        reason=cause.reason,
        message=cause.message,
        exit_code=cause.exit_code,
        signal=cause.signal,
        pod=cause.pod.name if cause.pod else None,
        node=(cause.pod.node or None) if cause.pod else None,
    )


def _by_main(base: Child, child: ChildSummary, pods: Sequence[PodSummary], main: PodSummary) -> Child:
    """Return a child that ended as its main pod's program says."""
    assert main.exit_code is not None, "only called for a pod whose program has ended"
    record, text = parse_termination_message(main.message)
    outcome = read_outcome(main.exit_code, record)
    failed = _first_failed_worker(record, child)
    name = main.name if failed is None else failed
    return replace(
        base,
        state=outcome.state,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        reason=outcome.reason,
        message=outcome.message or text or main.told,
        pod=name,
        node=next((pod.node for pod in (*pods, main) if pod.name == name), "") or None,
        finished_at_s=main.finished_at_s or child.completed_at_s,
    )


def _ended_after(pod: PodSummary, main: PodSummary) -> bool:
    """Return whether a pod ended after the program: cleanup deletes workers, and may kill slow ones."""
    return pod.finished_at_s is not None and main.finished_at_s is not None and pod.finished_at_s > main.finished_at_s


def _first_failed_worker(record: Mapping[str, Any] | None, child: ChildSummary) -> str | None:
    """Return the worker whose rank failed first, as the launcher saw it.

    No pod shows that: sshd in the worker's pod outlives the rank, or the pod is cleaned up already.
    """
    failure = (record or {}).get("firstFailure")
    host = failure.get("host") if isinstance(failure, Mapping) else None
    of_workers = re.escape(f"{child.name}-{names.WORKER}-") + "[0-9]{1,5}"
    return host if isinstance(host, str) and re.fullmatch(of_workers, host) else None
