"""Kueue, where it runs or a job asks for it: its configuration the right way round, and queues that admit.

Source: Kueue 0.19, apis/config/v1beta2 and apis/kueue/v1beta2.
"""

from __future__ import annotations

from collections.abc import Iterator

from bert_operator.doctor.demands import find_demands
from bert_operator.doctor.finding import Finding, error, warning
from bert_operator.doctor.objects import condition, images, name_of, namespace_of, place_of, release_of, tag_of
from bert_operator.doctor.snapshot import Snapshot
from bert_operator.json_paths import dig
from bert_operator.names import API_GROUP, KIND

GROUP = "kueue.x-k8s.io"
OLDEST = (0, 17, 0)
MPI_JOB, JOB = "kubeflow.org/mpijob", "batch/job"
_DEFAULT_FRAMEWORKS = [JOB]
"""What Kueue takes where its configuration lists none."""
_STOPPED = ("Hold", "HoldAndDrain")


def check_configuration(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that Kueue manages the children of jobs, and not the jobs themselves."""
    manager = snapshot.kueue_manager()
    if manager is None or snapshot.kueue is None:
        return
    for image in images(manager):
        release = release_of(tag_of(image))
        if "kueue" in image and release is not None and release < OLDEST:
            problem = f"Deployment {place_of(manager)}: got {image}; allowed: 0.17 or newer"
            why = "queues are written for an API version that it does not have"
            yield warning(problem, why, "upgrade Kueue")
    if snapshot.kueue.problem:
        problem = f"ConfigMap {snapshot.kueue.source}: {snapshot.kueue.problem}"
        yield error(problem, "Kueue does not start with it", "fix it, and restart Kueue")
        return
    remedy = f"edit ConfigMap {snapshot.kueue.source}, then kubectl -n {namespace_of(manager)} rollout restart "
    remedy += f"deployment {name_of(manager)}"
    integrations = snapshot.kueue.document.get("integrations")
    for entry in dig(integrations, "externalFrameworks") or []:
        if str(entry).lower().startswith(f"{KIND.lower()}.") and str(entry).endswith(API_GROUP):
            yield error(
                f"ConfigMap {snapshot.kueue.source}, integrations.externalFrameworks: got {entry}; allowed: not this "
                "kind",
                "Kueue waits for a workload of the job itself, which nobody makes: its children stay suspended",
                f"take the entry out: the queue's name is on the children, which Kueue knows; {remedy}",
            )
    frameworks = dig(integrations, "frameworks") or _DEFAULT_FRAMEWORKS
    for wanted, whom in ((MPI_JOB, "several workers"), (JOB, "one worker")):
        if wanted not in frameworks:
            yield error(
                f"ConfigMap {snapshot.kueue.source}, integrations.frameworks: got no {wanted}",
                f"jobs with {whom} and a queueName start at once and count against no quota",
                f"add {wanted}; {remedy}",
            )
    if snapshot.kueue.document.get("manageJobsWithoutQueueName") is True:
        yield warning(
            f"ConfigMap {snapshot.kueue.source}, manageJobsWithoutQueueName: got true",
            "jobs that name no queue are suspended for good, unless their namespace has a LocalQueue called default",
            f"give the profile a queueName, or set it to false; {remedy}",
        )


def check_queues(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that every queue that a job names leads to an active ClusterQueue."""
    used = {(demand.namespace, demand.queue): demand.owner for demand in find_demands(snapshot) if demand.queue}
    if used and GROUP not in snapshot.groups():
        owner = ", ".join(sorted(set(used.values())))
        why = "the queue's name has no effect: jobs start at once"
        yield error(f"{owner}: names a queue, and Kueue is not installed", why, "install Kueue, or remove queueName")
        return
    local = {(namespace_of(item), name_of(item)): item for item in snapshot.items("local queues")}
    for (namespace, queue), owner in sorted(used.items()):
        if namespace and (namespace, queue) not in local:
            there = ", ".join(name for place, name in sorted(local) if place == namespace) or "none"
            yield error(
                f"{owner}, queueName: got {queue}; allowed: a LocalQueue of its namespace, which has: {there}",
                "its children stay suspended",
                "correct the name, or add the LocalQueue (deploy/kustomize/components/kueue/queue.yaml is one)",
            )
    wanted = set(used) | {place for place in local if place[0] in set(snapshot.job_namespaces())}
    clusters = {name_of(item): item for item in snapshot.items("cluster queues")}
    for place in sorted(wanted & local.keys()):
        yield from _judge(f"LocalQueue {'/'.join(place)}", local[place], clusters)


def _judge(name: str, queue: dict[str, object], clusters: dict[str, dict[str, object]]) -> Iterator[Finding]:
    why = "no job of this queue is admitted: its children stay suspended"
    cluster_name = str(dig(queue, "spec", "clusterQueue"))
    if dig(queue, "spec", "stopPolicy") in _STOPPED:
        yield error(f"{name} is stopped (stopPolicy: {dig(queue, 'spec', 'stopPolicy')})", why, "set it to None")
    cluster = clusters.get(cluster_name)
    if cluster is None:
        there = ", ".join(sorted(clusters)) or "none"
        problem = f"{name}, clusterQueue: got {cluster_name}; allowed: one that exists: {there}"
        yield error(problem, why, "correct it, or create the ClusterQueue")
        return
    active = condition(cluster, "Active")
    if active and active.get("status") != "True":
        problem = f"ClusterQueue {cluster_name} is not active ({active.get('reason')}): {active.get('message')}"
        remedy = f"kubectl describe clusterqueue {cluster_name}; mostly a ResourceFlavor is missing, or stopPolicy set"
        yield error(problem, why, remedy)
