"""What may happen around the jobs of a namespace: objects of others, quotas, rights, the operator's own life.

Transitions as in ``spec_transitions``.
"""

from __future__ import annotations

import random
from typing import Any

from cluster_jobs import IMAGE, NO_SCHEDULER
from kubelet import GROUP
from operator_process import JOBS
from spec_world import RESOURCES, World, children_of, is_done, job_of, pods_of

Json = dict[str, Any]

PLANTED = "planted-"
QUOTA = "no-more-pods"
JOB_LABEL = f"{GROUP}/job"
PLAIN: Json = {"profiles": {"plain": {"image": "registry.example.com/plain:1", "slotsPerWorker": 1}}}
"""Settings of the operator: a profile that jobs may name. Without them such jobs have lost their profile."""
SETTINGS: tuple[Json, ...] = (
    PLAIN,
    PLAIN,
    {},
    {**PLAIN, "trainerImage": "registry.example.com/trainer:2"},
    {**PLAIN, "jobNetworkPolicy": True},
    {**PLAIN, "jobNetworkPolicy": True, "monitoringNamespace": "elsewhere"},
    {**PLAIN, "limits": {"ranksPerNamespace": 6}},
    {
        **PLAIN,
        "limits": {"images": ["registry.example.com/plain"], "stopGraceSeconds": 60, "schedulerNames": ["tests"]},
    },
    {**PLAIN, "profileNamespaces": {"plain": ["elsewhere"]}},
)
"""What it may come back with; the first is what it begins with."""
WARNINGS = (
    *("FailedScheduling", "FailedMount", "FailedAttachVolume", "FailedCreate", "FailedCreatePodSandBox", "Failed"),
    *("BackOff", "Unhealthy", "InspectFailed", "ErrImageNeverPull", "Rejected", "MadeUp"),
)


# Objects of others.


def plant(world: World, name: str, chance: random.Random) -> bool:
    """Somebody makes a Job, or a pod, that carries the labels of a job's children and is none."""
    labels = {JOB_LABEL: name, f"{GROUP}/attempt": chance.choice("123"), f"{GROUP}/run": "training"}
    labels[f"{GROUP}/role"] = chance.choice(("single", "launcher", "worker"))
    metadata = {"name": f"{PLANTED}{chance.getrandbits(32):08x}", "labels": labels}
    pod = {"restartPolicy": "Never", "containers": [{"name": "trainer", "image": "own"}], **NO_SCHEDULER}
    document: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}
    if chance.random() < 0.6:
        spec = {"suspend": True, "template": {"metadata": {"labels": labels}, "spec": pod}}
        document = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    answer = world.api.create(document, world.namespace)
    if answer.status == 201:
        world.memory.kept.add(answer.body["metadata"]["uid"])
    return answer.status == 201


def uproot(world: World, _: str, __: random.Random) -> bool:
    """Somebody takes all that was planted away."""
    found, done = world.look(), False
    for resource, items in (("batch/v1/jobs", found.children), ("v1/pods", found.pods)):
        for item in items:
            if item["metadata"]["name"].startswith(PLANTED):
                answer = world.api.delete(resource, item["metadata"]["name"], world.namespace, grace_s=0)
                done = done or is_done(answer)
    return done


def warn(world: World, name: str, chance: random.Random) -> bool:
    """Somebody says by an Event that something is wrong with a job, a child or a pod."""
    found = world.look()
    subjects = [("Pod", pod) for pod in pods_of(found, name)]
    subjects += [(child["kind"], child) for child in children_of(found, name)]
    subjects += [("BertPretrainJob", job) for job in found.jobs if job["metadata"]["name"] == name]
    if not subjects:
        return False
    kind, subject = chance.choice(subjects)
    about = {key: subject["metadata"][key] for key in ("name", "namespace", "uid")}
    now = subject["metadata"]["creationTimestamp"]
    event: Json = {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{PLANTED}{chance.getrandbits(32):08x}"},
        "involvedObject": {"kind": kind, **about}, "type": "Warning", "reason": chance.choice(WARNINGS),
        "message": chance.choice(("", "by chance", "x" * 1024)), "firstTimestamp": now, "lastTimestamp": now,
    }  # fmt: skip
    return world.api.create(event, world.namespace).status == 201


def own_job(world: World, name: str, chance: random.Random) -> bool:
    """Somebody makes a job depend on an object of theirs, which may go, and the job with it."""
    job = job_of(world, name)
    if job is None:
        return False
    owner: Json = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{PLANTED}{chance.getrandbits(32):08x}"},
    }
    answer = world.api.create(owner, world.namespace)
    if answer.status != 201:
        return False
    metadata = answer.body["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"]}
    change = {"metadata": {"ownerReferences": [reference]}}
    changed = world.api.patch(JOBS, name, change, world.namespace)
    if chance.random() < 0.5:
        world.api.delete(RESOURCES["ConfigMap"], metadata["name"], world.namespace)
    return is_done(changed)


def lose_border(world: World, name: str, chance: random.Random) -> bool:
    """Somebody deletes a job's NetworkPolicy, opens it, or takes it from its job."""
    resource, own = RESOURCES["NetworkPolicy"], f"{name}-pods"
    found = world.api.get(resource, own, world.namespace)
    if found.status != 200:
        return False
    match chance.choice(("delete", "open", "orphan")):
        case "delete":
            return is_done(world.api.delete(resource, own, world.namespace))
        case "open":
            return is_done(world.api.patch(resource, own, {"spec": {"ingress": [{}]}}, world.namespace))
    world.memory.kept.add(found.body["metadata"]["uid"])
    return is_done(world.api.patch(resource, own, {"metadata": {"ownerReferences": None}}, world.namespace))


def forge_border(world: World, name: str, _: random.Random) -> bool:
    """Somebody has a NetworkPolicy of a job's name before the operator has."""
    document: Json = {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": f"{name}-pods"},
        "spec": {"podSelector": {}},
    }  # fmt: skip
    return world.api.create(document, world.namespace).status == 201


def clear_border(world: World, name: str, _: random.Random) -> bool:
    """Somebody does what the condition asks for: takes a NetworkPolicy away that is not the job's."""
    resource, own = RESOURCES["NetworkPolicy"], f"{name}-pods"
    found = world.api.get(resource, own, world.namespace)
    if found.status != 200 or found.body["metadata"].get("ownerReferences"):
        return False
    return is_done(world.api.delete(resource, own, world.namespace))


# Images, quotas and rights.


def move_tag(world: World, _: str, chance: random.Random) -> bool:
    """Somebody pushes another image under the tag of most jobs, or the node has what it runs from no registry."""
    digest = f"{IMAGE.rpartition(':')[0]}@sha256:{chance.getrandbits(256):064x}"
    world.kubelet.digests[IMAGE] = chance.choice((digest, digest, digest.partition("@")[2]))
    return True


def limit_pods(world: World, _: str, __: random.Random) -> bool:
    """A quota forbids further pods, or goes again."""
    if is_done(world.api.delete("v1/resourcequotas", QUOTA, world.namespace)):
        return True
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": QUOTA}, "spec": {"hard": {"pods": "0"}},
    }  # fmt: skip
    return world.api.create(quota, world.namespace).status == 201


def take_rights(world: World, _: str, __: random.Random) -> bool:
    """Somebody takes the operator's rights away for a while."""
    world.take_rights()
    return True


# The operator.


def end_operator(world: World, _: str, chance: random.Random) -> bool:
    """The operator is killed, or asked to end, and comes back, now and then with other settings."""
    settings = chance.choice((PLAIN, *SETTINGS))
    world.end_operator(chance.choice(("kill", "kill", "stop")), settings)
    return True


def start_rival(world: World, _: str, __: random.Random) -> bool:
    """A second operator runs beside the first for a while."""
    world.start_rival()
    return True
