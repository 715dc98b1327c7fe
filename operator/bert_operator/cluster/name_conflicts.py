"""Names that a job's objects need and that others have: all of them at once, with one command that frees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bert_operator.api.schema.conditions import BlockerReason
from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.object_summaries import PodSummary
from bert_operator.cluster.paths import path_of
from bert_operator.names import JobRef
from bert_operator.state.observed import Blocker

Document = Mapping[str, Any]

_RESOURCES = {
    "Job": "jobs.batch",
    "MPIJob": "mpijobs.kubeflow.org",
    "ConfigMap": "configmaps",
    "NetworkPolicy": "networkpolicies",
    "Pod": "pods",
}
_OF_CLUSTER = ("foregroundDeletion", "orphan", "batch.kubernetes.io/job-tracking")
"""Finalizers that Kubernetes' own controllers take away by themselves."""
_MAX_NAMED = 8
"""Objects; a job of hundreds of workers has as many pods, which go with their Job or MPIJob."""
_MAX_FINALIZERS = 3


class NameConflict(NamedTuple):
    """An object that blocks a name the job needs."""

    kind: str
    name: str
    is_leaving: bool
    finalizers: tuple[str, ...] = ()
    """What holds one that is being deleted."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


async def find_conflicts(
    api: ApiClient,
    ref: JobRef,
    uid: str,
    wanted: Iterable[tuple[str, str]],
    is_in_way: Callable[[str, Document], bool],
) -> list[NameConflict]:
    """Return the objects that have names the job needs and do not belong to it.

    Args:
        api: The API server.
        ref: The job.
        uid: Its uid.
        wanted: Kinds and names.
        is_in_way: Whether an object of a kind that is not the job's cannot be gone round.

    Raises:
        ApiError: The API server did not answer.
    """
    found = []
    for kind, name in wanted:
        try:
            answer = await api.get(path_of(kind, ref.namespace, name))
        except ApiError as error:
            # Not there, not known, or not to be read: then nothing is written under that name either.
            if error.status not in (403, 404):
                raise
            continue
        owners = [owner.get("uid") for owner in answer["metadata"].get("ownerReferences") or ()]
        if uid not in owners and is_in_way(kind, answer):
            found.append(read_conflict(kind, answer))
    return found


def read_conflict(kind: str, answer: Document) -> NameConflict:
    """Return an object that is in a job's way."""
    metadata = answer["metadata"]
    held = tuple(str(text) for text in metadata.get("finalizers") or () if text not in _OF_CLUSTER)
    return NameConflict(kind, metadata["name"], "deletionTimestamp" in metadata, held)


def find_leftover_pods(pods: Iterable[PodSummary]) -> list[NameConflict]:
    """Return pods that carry a job's name and belong to none of its children, sorted by name."""
    return [NameConflict("Pod", pod.name, pod.is_deleting) for pod in sorted(pods, key=lambda pod: pod.name)]


def describe_conflicts(namespace: str, conflicts: Sequence[NameConflict]) -> Blocker:
    """Return the blocker for a job's next attempt, with the command that clears it. conflicts: at least one."""
    staying = [item for item in conflicts if not item.is_leaving]
    leaving = [item for item in conflicts if item.is_leaving]
    said = [_say_staying(namespace, staying)] if staying else []
    said += [_say_leaving(namespace, leaving)] if leaving else []
    return Blocker(reason=BlockerReason.NAME_TAKEN, message=". ".join(said))


def _say_staying(namespace: str, items: Sequence[NameConflict]) -> str:
    verb, them = ("exist and are", "them") if len(items) > 1 else ("exists and is", "it")
    targets = " ".join(f"{_RESOURCES[item.kind]}/{item.name}" for item in items[:_MAX_NAMED])
    command = f"kubectl -n {namespace} delete {targets}"
    return f"{_list(items)} {verb} not this job's. Next: delete {them} ({command}), or rename the job"


def _say_leaving(namespace: str, items: Sequence[NameConflict]) -> str:
    verb = "are" if len(items) > 1 else "is"
    finalizers = list(dict.fromkeys(text for item in items for text in item.finalizers))
    if finalizers:
        held = f", held by the finalizer {', '.join(finalizers[:_MAX_FINALIZERS])}"
        first = next(item for item in items if item.finalizers)
        remedy = (
            "wait for whoever set it; if nobody answers for it any more, take it away: kubectl -n "
            f"{namespace} patch {_RESOURCES[first.kind]}/{first.name} --type merge -p "
            '\'{"metadata":{"finalizers":null}}\''
        )
    else:
        held = ""
        is_pod = any(item.kind == "Pod" for item in items)
        remedy = "wait" + ("; if its node is gone for good, kubectl delete it with --force" if is_pod else "")
    return f"{_list(items)} of an earlier job or attempt {verb} still being deleted{held}. Next: {remedy}"


def _list(items: Sequence[NameConflict]) -> str:
    named = [str(item) for item in items[:_MAX_NAMED]]
    if len(items) > _MAX_NAMED:
        return f"{', '.join(named)} and {len(items) - _MAX_NAMED} more"
    return " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
