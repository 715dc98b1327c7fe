"""Children and their pods as the API server tells of them, with only what the operator reads."""

from __future__ import annotations

from typing import Any

from bert_operator.render import names
from bert_operator.timestamps import render_time

Document = dict[str, Any]

CREATED_S = 1_700_000_000.0
NAMESPACE = "team-a"


def at(seconds: float) -> str:
    """Return a time that many seconds after the child was created."""
    return render_time(CREATED_S + seconds)


def child_document(
    kind: str = "MPIJob",
    job: str = "demo",
    *,
    attempt: int = 1,
    uid: str = "",
    owner: str = "job-uid",
    version: int = 10,
    true: dict[str, str] | None = None,
    **status: Any,
) -> Document:
    """Return a Job or MPIJob. true: reasons of the conditions that hold, by type."""
    is_mpi = kind == "MPIJob"
    name = names.child_name(job, "training", attempt, is_mpi=is_mpi)
    conditions = [
        {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": at(100)}
        for kind, reason in (true or {}).items()
    ]
    return {
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid or f"{name}-uid",
            "resourceVersion": str(version),
            "creationTimestamp": at(0),
            "labels": names.labels(job, "training", attempt),
            "annotations": {names.HASH_ANNOTATION: "abc"},
            "ownerReferences": [{"kind": "BertPretrainJob", "uid": owner, "controller": True}],
        },
        "spec": {},
        "status": {"conditions": conditions, **status} if conditions or status else {},
    }


def pod_document(
    role: str = names.WORKER,
    number: int = 0,
    job: str = "demo",
    *,
    attempt: int = 1,
    phase: str = "Running",
    node: str = "node-1",
    uid: str = "",
    owner: str = "",
    version: int = 20,
    created: float = 0,
    state: Document | None = None,
    conditions: tuple[Document, ...] = (),
    **status: Any,
) -> Document:
    """Return a pod of such a child. state: of the trainer's container."""
    is_mpi = role != names.SINGLE
    child = names.child_name(job, "training", attempt, is_mpi=is_mpi)
    name = f"{child}-{role}-{number}" if is_mpi else f"{child}-x{number}"
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid or f"{name}-uid",
            "resourceVersion": str(version),
            "creationTimestamp": at(created),
            "labels": {**names.labels(job, "training", attempt), names.ROLE_LABEL: role},
            "ownerReferences": [{"uid": owner or f"{child}-uid", "controller": True}],
        },
        "spec": {"nodeName": node} if node else {},
        "status": {
            "phase": phase,
            "conditions": list(conditions),
            **({"containerStatuses": [{"name": "trainer", "state": state}]} if state else {}),
            **status,
        },
    }


def ended(exit_code: int, *, after: float = 90, reason: str = "Error", message: str = "") -> Document:
    """Return the state of a container that has ended that many seconds after the child was created."""
    return {"terminated": {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": at(after)}}


def event_document(kind: str, name: str, reason: str, message: str, *, uid: str = "", after: float = 5) -> Document:
    """Return a Warning event."""
    return {
        "kind": "Event",
        "type": "Warning",
        "metadata": {"name": f"{name}.{reason}", "namespace": NAMESPACE, "uid": f"{name}-{reason}"},
        "involvedObject": {"kind": kind, "name": name, "uid": uid},
        "reason": reason,
        "message": message,
        "lastTimestamp": at(after),
    }
