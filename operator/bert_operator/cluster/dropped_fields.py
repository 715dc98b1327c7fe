"""Fields of pods that a cluster may drop without a word, and how to find out before a pod is made. Pure.

Where a feature gate is off, the API server takes a pod that uses the feature and leaves its fields out; a definition of
MPIJob prunes fields that are newer than it. The job would train on an empty folder, on processors in place of the GPUs
of a claim, or as a root that is the node's. So a child with such fields is created as a dry run first, an MPIJob's
templates as Jobs, too: nothing is stored, and the answer shows what would have been.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from bert_operator.api.schema.conditions import BlockerReason
from bert_operator.state.observed import Blocker

Document = dict[str, Any]


class _Feature(NamedTuple):
    """A feature whose fields may be dropped."""

    field: str
    """Of the job's spec."""
    gate: str
    release: str
    """Of Kubernetes, from which on the gate is on unless somebody switches it off."""


_HOST_USERS = _Feature("securityContext.hostUsers", "UserNamespacesSupport", "1.33")
_CLAIMS = _Feature("resources.resourceClaims", "DynamicResourceAllocation", "1.34")
_IMAGES = _Feature("image of a volume", "ImageVolume", "1.35")


def dry_runs(child: Document) -> list[Document]:
    """Return what to create as dry runs before a child; empty if it has no field that may be dropped."""
    templates = [template for template in _templates(child) if any(_used(template))]
    if not templates:
        return []
    metadata = {key: value for key, value in child["metadata"].items() if key != "name"}
    # A name of its own: the child itself may exist already, from before a crash.
    metadata["generateName"] = f"{child['metadata']['name']}-"
    jobs = [_as_job(template, child["metadata"]) for template in templates] if child["kind"] != "Job" else []
    return [{**child, "metadata": metadata}, *jobs]


def call_by_own_name(trial: Document, text: str) -> str:
    """Return a dry run's refusal with the child's name in place of the generated one.

    That one is another at each try, and the status would be written at each.
    """
    prefix = trial["metadata"]["generateName"]
    # The API server leaves room for what it adds (SimpleNameGenerator: five signs, 63 in all).
    return re.sub(f"{re.escape(prefix[:58])}[a-z0-9]{{5}}(?![-a-z0-9])", prefix.removesuffix("-"), text)


def find_dropped(sent: Document, answer: Document) -> Blocker | None:
    """Return a blocker if the response of a dry run lacks fields that were sent."""
    dropped = {
        feature
        for ours, theirs in zip(_templates(sent), _templates(answer), strict=True)
        for feature, _ in set(_used(ours)) - set(_used(theirs))
    }
    if not dropped:
        return None
    first = min(dropped)
    by = "the API server" if sent["kind"] == "Job" else "mpi-operator's definition of MPIJob"
    remedy = (
        f"have the feature gate {first.gate} switched on, which it is from Kubernetes {first.release} on"
        if sent["kind"] == "Job"
        else "have mpi-operator upgraded to v0.8.2 or newer"
    )
    return Blocker(
        reason=BlockerReason.FIELD_DROPPED,
        message=f"{first.field}: {by} drops it from the pods, which would then run without it. Next: {remedy}; or "
        "delete the job and apply it without the field",
    )


def _templates(document: Document) -> Iterator[Document]:
    spec = document["spec"]
    replicas = spec.get("mpiReplicaSpecs")
    yield from [spec["template"]] if replicas is None else (replicas[role]["template"] for role in sorted(replicas))


def _used(template: Document) -> Iterator[tuple[_Feature, str]]:
    """Yield the features that a pod template uses, and the name of what uses them."""
    pod = template["spec"]
    if pod.get("hostUsers") is False:
        yield _HOST_USERS, ""
    for claim in pod.get("resourceClaims") or ():
        yield _CLAIMS, claim["name"]
    for volume in pod.get("volumes") or ():
        if "image" in volume:
            yield _IMAGES, volume["name"]


def _as_job(template: Document, metadata: Document) -> Document:
    """Return a Job of a template, by which the API server shows what it keeps of its pods."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": f"{metadata['name']}-", "namespace": metadata["namespace"]},
        "spec": {"template": {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}},
    }
