"""Reads what belongs to a job beside its pods: children, their owners' tree, Events."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bert_operator.plugin.errors import ApiRefused
from bert_operator.plugin.job import Job, Json, last_seen_s
from bert_operator.plugin.kubectl import Kubectl, decode
from bert_operator.plugin.reading import first_line
from bert_operator.render.names import JOB_LABEL, config_map_name, network_policy_name, of_children

KINDS = ("configmaps", "networkpolicies.networking.k8s.io", "jobs.batch", "mpijobs.kubeflow.org", "pods")
"""What the operator creates, and the pods that come of it; all carry the job's label."""
_MAX_AT_ONCE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RelatedObjects:
    """Objects that belong to a job."""

    objects: Sequence[Json]
    missing: Sequence[str]
    """Kinds that could not be read, and why."""


def read_related_objects(kubectl: Kubectl, job: Job) -> RelatedObjects:
    """Return the objects of a job: by label, and launchers, which lack our label, by name."""
    kubectl = kubectl.within(job.namespace)
    missing: list[str] = []

    def read(kind: str) -> list[Json]:
        try:
            return list(kubectl.read("get", kind, "--selector", f"{JOB_LABEL}={job.name}").get("items") or ())
        except ApiRefused as error:
            # A cluster without mpi-operator has no MPIJobs, and a job of one pod needs none.
            if error.status != 404 and "doesn't have a resource type" not in str(error):
                missing.append(f"{kind.partition('.')[0]}: {first_line(error)}")
            return []

    # One after the other they would take as many round trips.
    with ThreadPoolExecutor(_MAX_AT_ONCE) as pool:
        found = [item for items in pool.map(read, KINDS) for item in items]
    for item in [item for item in found if item.get("kind") == "MPIJob"]:
        launcher = f"{item['metadata']['name']}-launcher"
        try:
            text = kubectl.call("get", "jobs.batch", launcher, "--ignore-not-found", "-o", "json")
        except ApiRefused:
            continue
        if text.strip():
            found.append(decode(text, ("get", "jobs.batch", launcher)))
    return RelatedObjects(objects=found, missing=sorted(missing))


def read_events(kubectl: Kubectl, job: Job) -> list[Json]:
    """Return the Events about a job, its children and its pods, oldest first; also those of pods that are gone.

    Raises:
        ApiRefused: Events may not be read.
    """
    found = kubectl.within(job.namespace).read("get", "events").get("items") or ()
    return sorted((event for event in found if is_about(event, job)), key=lambda event: last_seen_s(event) or 0.0)


def is_about(event: Json, job: Job) -> bool:
    """Return whether an Event is about a job or its objects; deleted children are recognized by name."""
    about = event.get("involvedObject") or event.get("regarding") or {}
    name, kind = str(about.get("name")), about.get("kind")
    if kind == "BertPretrainJob":
        return name == job.name and about.get("uid") in (None, "", job.uid)
    # A namesake that was deleted has left Events behind.
    if (last_seen_s(event) or job.created_s) < job.created_s:
        return False
    of_pods = r"(?:(?<=-prepare)-.*|(?<=-training)-.*|-(?:launcher|worker)(?:-.*)?)?"
    own = of_children(job.name, job.uid) + of_pods
    return name in (config_map_name(job.name), network_policy_name(job.name)) or bool(re.fullmatch(own, name))
