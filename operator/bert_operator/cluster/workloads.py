"""What Kueue says of a child: its Workload in a summary, and what follows for the status. Pure.

Kueue makes a Workload of every Job and MPIJob that a queue holds, and writes there alone why it waits, by whom it was
displaced and what has admitted it. Its own words are kept; where waiting does not help, a remedy is added.

Source: Kueue 0.19.2, apis/kueue/v1beta2/workload_types.go; v1beta1 has the same fields. Reasons of QuotaReserved are
finer with its gate UnadmittedWorkloadsObservability; without it the words have to tell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_operator.api.schema.conditions import BlockerReason, Reason
from bert_operator.api.schema.status import MAX_FLAVORS, QueueStatus
from bert_operator.names import JobRef
from bert_operator.state.observed import Blocker, Finding
from bert_operator.state.priority_boost import BOOST_ANNOTATION

Document = Mapping[str, Any]

JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"
VERSIONS = ("v1beta2", "v1beta1")
_MAX_NOTE = 500
_MAX_NAME = 253
_MAX_CHECKS = 8
"""Admission checks of one Workload that are kept; Kueue allows as many."""

# What no waiting fixes, by reason and, in the words of the scheduler and of the Workload's controller, by text: theirs
# is prose, which may change, and an unknown one counts as waiting.
_HOPELESS_REASONS = frozenset({"Inadmissible", "Misconfigured", "Suspended", "NoMatchingFlavor", "ExceedsMaxQuota"})
_HOPELESS = re.compile(r"> maximum capacity|doesn't match node affinity|untolerated taint|unavailable in ClusterQueue")
_HOPEFUL = re.compile(r"insufficient unused quota|preempt", re.IGNORECASE)
"""Beside what one flavor cannot do may stand that another one can, later."""
_REMEDIES = (
    (
        re.compile(r"LocalQueue \S+ doesn't exist"),
        "kubectl -n {namespace} get localqueues: have one of this name made, or delete the job and apply it with "
        "another queueName",
    ),
    (
        re.compile(r"ClusterQueue \S* ?doesn't exist"),
        "have the ClusterQueue made that the LocalQueue names",
    ),
    (
        re.compile(r"(?:Local|Cluster)Queue \S+ is inactive"),
        "kubectl describe clusterqueues, and kubectl -n {namespace} describe localqueues: one is stopped (stopPolicy), "
        "or lacks a flavor or an admission check",
    ),
    (
        re.compile(r"> maximum capacity"),
        "ask for less in spec.resources or with fewer workers, or have the quota of the ClusterQueue raised",
    ),
    (
        re.compile(r"doesn't match node affinity|untolerated taint"),
        "correct spec.scheduling.nodeSelector, affinity or tolerations, or have a ResourceFlavor with these nodes made",
    ),
    (
        re.compile(r"unavailable in ClusterQueue"),
        "have the resource covered by the ClusterQueue (coveredResources), or ask for none of it",
    ),
)
_GENERAL_REMEDY = "kubectl -n {namespace} describe workload {workload}"
_INTEGER = re.compile(r"[-+]?[0-9]{1,10}")
_PREEMPTOR = re.compile(r"JobUID: ([^)\s]+)\)")
_WHY_PREEMPTED = re.compile(r"due to ([^;]+)")


class WorkloadSummary(NamedTuple):
    """A Workload of Kueue."""

    name: str
    queue: str
    """The LocalQueue that it asks."""
    is_active: bool
    """False: taken out of the queue until somebody puts it back (spec.active)."""
    is_admitted: bool
    cluster_queue: str
    """That has reserved quota for it; empty while none has."""
    flavors: tuple[str, ...]
    """Those that were assigned to it."""
    waits: tuple[str, str]
    """Reason and message of QuotaReserved where that is False; empty strings otherwise."""
    evicted: tuple[str, str]
    """Reason and message of its last eviction, until it is admitted again; empty strings otherwise."""
    preempted: str
    """Message of a preemption, until it is admitted again."""
    checks: tuple[tuple[str, str, str], ...]
    """Name, state and message of the admission checks that are not Ready."""
    retried_at: str
    """Until when it is not looked at again after an eviction, RFC 3339; empty: any time."""
    evictions: int
    """How often it was put back into the queue because its pods did not get ready."""
    boost: int = 0
    """What is added to its priority (``state.priority_boost``); 0 where the annotation is no number."""

    @property
    def preemptor(self) -> str:
        """UID of the Job or MPIJob for which it was preempted; empty if unknown."""
        found = _PREEMPTOR.search(self.preempted)
        return found[1] if found else ""


def read_workload(body: Document) -> WorkloadSummary:
    """Return the summary of a Workload."""
    spec, status = _mapping(body.get("spec")), _mapping(body.get("status"))
    conditions = {str(item.get("type")): item for item in _mappings(status.get("conditions"))}
    admission, requeued = _mapping(status.get("admission")), _mapping(status.get("requeueState"))
    flavors = {
        _name(flavor)
        for assignment in _mappings(admission.get("podSetAssignments"))
        for flavor in _mapping(assignment.get("flavors")).values()
    }
    count = requeued.get("count")
    return WorkloadSummary(
        name=_name(_mapping(body.get("metadata")).get("name")),
        queue=_name(spec.get("queueName")),
        is_active=spec.get("active") is not False,
        is_admitted=_mapping(conditions.get("Admitted")).get("status") == "True",
        cluster_queue=_name(admission.get("clusterQueue")),
        flavors=tuple(sorted(flavors))[:MAX_FLAVORS],
        waits=_told(conditions, "QuotaReserved", "False"),
        evicted=_told(conditions, "Evicted", "True"),
        preempted=_told(conditions, "Preempted", "True")[1],
        checks=tuple(
            (_name(item.get("name")), _name(item.get("state")), _note(item.get("message")))
            for item in _mappings(status.get("admissionChecks"))[:_MAX_CHECKS]
            if item.get("state") != "Ready"
        ),
        retried_at=_name(requeued.get("requeueAt")),
        evictions=count if isinstance(count, int) else 0,
        boost=_number(_mapping(_mapping(body.get("metadata")).get("annotations")).get(BOOST_ANNOTATION)),
    )


def describe_queue(workload: WorkloadSummary | None, label: str) -> QueueStatus | None:
    """Return the queue status of a child; None if it has no queue. label: the queue that the child names."""
    if workload is None:
        return QueueStatus(name=label) if label else None
    # Until the pods of an evicted one are gone, its Workload still has the old reservation.
    is_reserved = workload.cluster_queue and not workload.evicted[0]
    return QueueStatus(
        name=workload.queue or label,
        workload=workload.name,
        cluster_queue=workload.cluster_queue if is_reserved else None,
        flavors=workload.flavors if is_reserved else (),
    )


def describe_wait(workload: WorkloadSummary, preemptor: JobRef | None, namespace: str) -> Finding:
    """Return why a child waits, and whether it was preempted for another one.

    Args:
        workload: The child's.
        preemptor: The BertPretrainJob for which it was preempted, if it was one.
        namespace: The child's.
    """
    evicted, message = workload.evicted
    said = [_say_reserved(workload) or _say_waits(workload)]
    if evicted == "Preempted":
        said.insert(0, _say_preempted(workload, preemptor, namespace))
    elif evicted and not evicted.startswith("Deactivated"):
        said.insert(0, f"evicted ({evicted}): {message}")
    if not workload.is_active:
        said = [_say_deactivated(workload)]
    told = ". ".join(text.removesuffix(".") for text in said)
    reason = Reason.PREEMPTED if evicted == "Preempted" else Reason.QUEUED
    return Finding(reason=reason, message=f"In LocalQueue {workload.queue}: {told}")


def find_obstacle(workload: WorkloadSummary, namespace: str) -> Blocker | None:
    """Return why a queued child cannot be admitted however long it waits; None if waiting is enough.

    namespace: the child's.
    """
    place = {"namespace": namespace, "workload": workload.name}
    where = f"In LocalQueue {workload.queue}"
    if not workload.is_active:
        remedy = (
            "see why (kubectl -n {namespace} describe workload {workload}), then kubectl -n {namespace} patch workload "
            '{workload} --type merge -p \'{{"spec":{{"active":true}}}}\''
        ).format(**place)
        return Blocker(
            reason=BlockerReason.DEACTIVATED, message=f"{where}: {_say_deactivated(workload)}. Next: {remedy}"
        )
    if workload.evicted[0] == "PodsReadyTimeout":
        times = f", {workload.evictions} times by now" if workload.evictions > 1 else ""
        until = f"; it is tried again from {workload.retried_at} on" if workload.retried_at else ""
        message = (
            f"{where}: {workload.evicted[1].removesuffix('.')}{times}{until}. Next: see what keeps pods from getting "
            f"ready, in kubectl -n {namespace} get events and in Kueue's waitForPodsReady"
        )
        return Blocker(reason=BlockerReason.PODS_READY_TIMEOUT, message=message)
    reason, message = workload.waits
    is_hopeless = reason in _HOPELESS_REASONS or _HOPELESS.search(message) is not None
    if not is_hopeless or _HOPEFUL.search(message):
        return None
    remedies = [remedy for pattern, remedy in _REMEDIES if pattern.search(message)] or [_GENERAL_REMEDY]
    remedy = "; ".join(remedies).format(**place)
    return Blocker(reason=BlockerReason.INADMISSIBLE, message=f"{where}: {message.removesuffix('.')}. Next: {remedy}")


def _say_reserved(workload: WorkloadSummary) -> str:
    """Return what an admission still waits for; empty where no quota is reserved."""
    if not workload.cluster_queue or workload.evicted[0]:
        return ""
    checks = ", ".join(
        f"{name} is {state}{f' ({message})' if message else ''}" for name, state, message in workload.checks
    )
    waits = f"; admission checks: {checks}" if checks else ""
    return f"quota is reserved in ClusterQueue {workload.cluster_queue}{waits}"


def _say_waits(workload: WorkloadSummary) -> str:
    """Return why no quota is reserved."""
    reason, message = workload.waits
    # Right after an eviction Kueue repeats its words here; of what it has not looked at yet it says nothing.
    is_repeated = message in ("", workload.evicted[1], workload.preempted)
    return f"it waits for its turn{f' ({reason})' if reason else ''}" if is_repeated else message


def _say_deactivated(workload: WorkloadSummary) -> str:
    # What it was evicted for is told as long as that was the last thing to happen to it.
    is_why = workload.evicted[0].startswith("Deactivated")
    return workload.evicted[1].removesuffix(".") if is_why else "the workload is deactivated"


def _say_preempted(workload: WorkloadSummary, preemptor: JobRef | None, namespace: str) -> str:
    message = workload.preempted or workload.evicted[1]
    message = f"{message[:1].lower()}{message[1:]}"
    why = _WHY_PREEMPTED.search(message)
    # Other namespaces' jobs are nobody's business here; Kueue tells of them by uid.
    if preemptor is None or preemptor.namespace != namespace:
        return message
    return f"preempted by BertPretrainJob {preemptor.name}{f', due to {why[1]}' if why else ''}"


def _told(conditions: Mapping[str, Document], kind: str, status: str) -> tuple[str, str]:
    condition = conditions.get(kind, {})
    if condition.get("status") != status:
        return "", ""
    return _name(condition.get("reason")), _note(condition.get("message"))


def _number(value: Any) -> int:
    return int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else 0


def _name(value: Any) -> str:
    return value[:_MAX_NAME] if isinstance(value, str) else ""


def _note(value: Any) -> str:
    return value[:_MAX_NOTE] if isinstance(value, str) else ""


def _mapping(value: Any) -> Document:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Document]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
