"""What may happen to the jobs of a namespace: every transition that the API server lets a person or a controller make.

Each takes the world, the name of a job and a chance that decides everything that is left open, and returns whether
the API server let it through. None fails, whatever the world is like: there may be no such job, or no child.
"""

from __future__ import annotations

import json
import random
from typing import Any

import spec_surroundings as around
from bert_operator.api.schema.bert_pretrain_job import RunPolicy
from job_documents import as_kubectl_sends_it, draw_value
from kubelet import GROUP, Action
from operator_process import JOBS
from spec_consistency import is_deleting, is_suspended, owner_uid
from spec_draws import MANY_FIELDS, as_applied, draw_job, grow
from spec_surroundings import JOB_LABEL
from spec_world import (
    HOLD,
    RESOURCES,
    Transition,
    World,
    act,
    children_of,
    is_done,
    is_open,
    job_of,
    keep,
    patch,
    patch_metadata,
    pick,
    pods_of,
    running_pods,
)

Json = dict[str, Any]

PROPAGATIONS = ("Background", "Background", "Foreground", "Orphan")
POLICIES = [str(field.alias) for field in RunPolicy.model_fields.values()]
EXIT_CODES = (0, 1, 1, 2, 3, 4, 137, 143)
IMAGE_TROUBLES = (
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "ContainerCreating",
)
EVICTIONS = ("Evicted", "Evicted", "NodeLost", "Preempting", "NodeShutdown")


# Jobs.


def create(world: World, name: str, chance: random.Random) -> bool:
    """Somebody applies a job; some of those that are drawn are refused."""
    if job_of(world, name) is not None:  # it is drawn most often, and a job with many fields takes 20 ms to draw
        return False
    for fields in (chance.choice((0, 1, 4, 2 * MANY_FIELDS, 2 * MANY_FIELDS)), 1, 0):
        document = draw_job(chance, name, fields)
        answer = world.api.create(document, world.namespace)
        if answer.status == 201:
            world.note_fields(document)
            return True
        if answer.status == 409:
            return False
    return False


def create_again(world: World, name: str, chance: random.Random) -> bool:
    """Somebody deletes a job and applies it again under its name."""
    gone = world.api.delete(JOBS, name, world.namespace)
    return is_done(gone) and (create(world, name, chance) or True)


def change_spec(world: World, name: str, chance: random.Random) -> bool:
    """Somebody changes any field, by a whole new document; once a job has begun, most of that is refused."""
    if (job := job_of(world, name)) is None:
        return False
    plain = {key: job[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": name}}
    changed = {**grow(chance, plain, chance.choice((1, 1, 8))), "metadata": job["metadata"]}
    answer = world.api.replace(as_applied(changed), world.namespace)
    if is_done(answer):
        world.note_fields(changed)
    return is_done(answer) and answer.body["metadata"]["generation"] != job["metadata"]["generation"]


def change_policy(world: World, name: str, chance: random.Random) -> bool:
    """Somebody changes a field of runPolicy, which may change at any time."""
    field = chance.choice(POLICIES)
    value = None if chance.random() < 0.2 else as_kubectl_sends_it(draw_value(chance, f"RunPolicy.{field}"))
    return _patch_policy(world, name, {field: value})


def suspend(world: World, name: str, _: random.Random) -> bool:
    """Somebody asks a job to stop."""
    return _patch_policy(world, name, {"suspend": True})


def go_on(world: World, name: str, _: random.Random) -> bool:
    """Somebody lets it go on."""
    return _patch_policy(world, name, {"suspend": False})


def change_metadata(world: World, name: str, chance: random.Random) -> bool:
    """Labels, annotations and finalizers of a job come and go."""
    change = chance.choice(
        (
            {"labels": {JOB_LABEL: chance.choice((name, "another", None))}},
            {"labels": {"team": chance.choice(("a", "b", None))}},
            {"annotations": {"note": chance.choice(("x" * 2000, "y", None))}},
            {"finalizers": chance.choice(([HOLD], []))},
            {"ownerReferences": []},
        )
    )
    return is_done(world.api.patch(JOBS, name, {"metadata": change}, world.namespace))


def delete(world: World, name: str, chance: random.Random) -> bool:
    """Somebody deletes a job, with its children or without."""
    how = chance.choice(PROPAGATIONS)
    found = world.look()
    job = next((item for item in found.jobs if item["metadata"]["name"] == name), None)
    if job is None or is_deleting(job):
        return False
    answer = world.api.delete(JOBS, name, world.namespace, propagation=how)
    if how == "Orphan" and is_done(answer):
        keep(world, found, job)
    return is_done(answer)


def let_go(world: World, name: str, _: random.Random) -> bool:
    """Whoever held a job or what it owns takes the finalizer away."""
    found = world.look()
    held = [(JOBS, job) for job in found.jobs if job["metadata"]["name"] == name]
    held += [(RESOURCES[child["kind"]], child) for child in children_of(found, name)]
    held += [("v1/pods", pod) for pod in pods_of(found, name)]
    done = False
    for resource, item in held:
        if HOLD in (item["metadata"].get("finalizers") or ()):
            kept = [text for text in item["metadata"]["finalizers"] if text != HOLD]
            answer = patch_metadata(world, resource, item, {"finalizers": kept})
            done = done or is_done(answer)
    return done


# Children, and what they are made from.


def delete_child(world: World, name: str, chance: random.Random) -> bool:
    """Somebody deletes a child."""
    found = world.look()
    if (child := pick(children_of(found, name), chance)) is None or is_deleting(child):
        return False
    how = chance.choice(PROPAGATIONS)
    answer = world.api.delete(RESOURCES[child["kind"]], child["metadata"]["name"], world.namespace, propagation=how)
    if how == "Orphan" and is_done(answer):
        keep(world, found, child)
    return is_done(answer)


def queue_child(world: World, name: str, chance: random.Random) -> bool:
    """A queue holds a child back, or lets it go."""
    child = pick(children_of(world.look(), name), chance)
    if child is None or is_deleting(child):
        return False
    value = {"suspend": not is_suspended(child)}
    spec = value if child["kind"] == "Job" else {"runPolicy": value}
    return is_done(patch(world, child, {"spec": spec}))


def change_child(world: World, name: str, chance: random.Random) -> bool:
    """Labels, annotations, owners and finalizers of a child, and what may be changed in its spec."""
    child = pick(children_of(world.look(), name), chance)
    if child is None:
        return False
    every = {JOB_LABEL: "another", f"{GROUP}/attempt": "7", f"{GROUP}/run": "prepare"}
    soon, at_once = {"activeDeadlineSeconds": 1}, {"ttlSecondsAfterFinished": 0}
    is_job = child["kind"] == "Job"
    changes: list[Json] = [
        {"metadata": {"labels": {JOB_LABEL: chance.choice((None, "another", name))}}},
        {"metadata": {"labels": every}},
        {"metadata": {"ownerReferences": None}},
        {"metadata": {"annotations": {f"{GROUP}/spec-hash": chance.choice((None, "0"))}}},
        {"metadata": {"finalizers": [HOLD]}},
        {"spec": soon if is_job else {"runPolicy": soon}},
        {"spec": at_once if is_job else {"runPolicy": at_once}},
    ]
    change = chance.choice(changes)
    answer = patch(world, child, change)
    if is_done(answer) and "ownerReferences" in change.get("metadata", {}):
        # Nobody can tell any more whose it is once its job is gone and the operator has been restarted.
        world.memory.kept.add(child["metadata"]["uid"])
        if owner := owner_uid(child):
            world.memory.taken_from[child["metadata"]["uid"]] = owner
    return is_done(answer)


def change_child_status(world: World, name: str, chance: random.Random) -> bool:
    """Somebody, or mpi-operator in a moment of its own, writes another status into an MPIJob."""
    children = [child for child in children_of(world.look(), name) if child["kind"] == "MPIJob"]
    if (child := pick(children, chance)) is None:
        return False
    kind = chance.choice(("Created", "Running", "Failed", "Suspended", "Succeeded"))
    now = child["metadata"]["creationTimestamp"]
    condition = {"type": kind, "status": "True", "reason": "Test", "lastTransitionTime": now, "lastUpdateTime": now}
    status = chance.choice(({"conditions": []}, {"conditions": [condition]}))
    child_name = child["metadata"]["name"]
    change = {"status": status}
    return is_done(world.api.patch(RESOURCES["MPIJob"], child_name, change, world.namespace, subresource="status"))


def lose_frozen(world: World, name: str, _: random.Random) -> bool:
    """Somebody deletes the frozen configuration."""
    return is_done(world.api.delete("v1/configmaps", f"{name}-frozen", world.namespace))


def forge_frozen(world: World, name: str, chance: random.Random) -> bool:
    """Somebody puts another ConfigMap in its place, or there before it is."""
    world.api.delete("v1/configmaps", f"{name}-frozen", world.namespace)
    data = {"run-config.json": "{}", "spec.json": json.dumps({"image": "forged"})}
    document: Json = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-frozen"}, "data": data,
        "immutable": chance.random() < 0.5,
    }  # fmt: skip
    return world.api.create(document, world.namespace).status == 201


def restore_frozen(world: World, name: str, _: random.Random) -> bool:
    """Somebody does what the condition asks for: puts back what the operator has written."""
    job = job_of(world, name)
    if job is None:
        return False
    own = world.frozen.get(job["metadata"]["uid"])
    found = world.api.get("v1/configmaps", f"{name}-frozen", world.namespace)
    if found.status == 200 and (own is None or found.body.get("data") != own.get("data")):
        world.api.delete("v1/configmaps", f"{name}-frozen", world.namespace)
    elif found.status == 200:
        return False
    if own is None:
        return found.status == 200
    kept = {key: own["metadata"][key] for key in ("name", "labels", "annotations", "ownerReferences")}
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": kept, "data": own["data"], "immutable": True}
    return world.api.create(document, world.namespace).status == 201


# Pods.


def start_pods(world: World, name: str, _: random.Random) -> bool:
    """The node runs what waits, and says what is gone."""
    done = False
    for pod in pods_of(world.look(), name):
        if is_deleting(pod):
            done = act(world.kubelet.remove, pod) or done
        elif pod["status"].get("phase") == "Pending" and not pod["spec"].get("schedulingGates"):
            done = act(world.kubelet.run, pod) or done
    return done


def start_pod(world: World, name: str, chance: random.Random) -> bool:
    """The node runs one pod."""
    waiting = [pod for pod in pods_of(world.look(), name) if pod["status"].get("phase") == "Pending"]
    pod = pick([pod for pod in waiting if not pod["spec"].get("schedulingGates")], chance)
    return pod is not None and not is_deleting(pod) and act(world.kubelet.run, pod)


def end_main(world: World, name: str, chance: random.Random) -> bool:
    """The program ends, in a single pod or a launcher."""
    pods = [pod for pod in running_pods(world, name) if pod["metadata"]["labels"].get(f"{GROUP}/role") != "worker"]
    return _end(world, pick(pods, chance), chance, chance.choice((0, 0, *EXIT_CODES)))


def end_any(world: World, name: str, chance: random.Random) -> bool:
    """Any pod ends."""
    return _end(world, pick(running_pods(world, name), chance), chance, chance.choice(EXIT_CODES))


def disturb_pod(world: World, name: str, chance: random.Random) -> bool:
    """A pod runs out of memory, is evicted, or cannot have its image."""
    pod = pick([pod for pod in pods_of(world.look(), name) if is_open(pod)], chance)
    if pod is None:
        return False
    if pod["status"]["phase"] == "Pending":
        reason = chance.choice(IMAGE_TROUBLES)
        return act(lambda pod: world.kubelet.wait_image(pod, reason), pod)
    out_of_memory: Action = world.kubelet.failing(oom=True)
    eviction = chance.choice(EVICTIONS)
    actions: tuple[Action, ...] = (
        out_of_memory,
        lambda pod: world.kubelet.evict(pod, eviction),
        world.kubelet.be_unready,
    )
    return act(chance.choice(actions), pod)


def delete_pod(world: World, name: str, chance: random.Random) -> bool:
    """Somebody deletes a pod, with its time to end or without."""
    pod = pick(pods_of(world.look(), name), chance)
    if pod is None:
        return False
    grace_s = chance.choice((None, 0))
    return is_done(world.api.delete("v1/pods", pod["metadata"]["name"], world.namespace, grace_s=grace_s))


def change_pod(world: World, name: str, chance: random.Random) -> bool:
    """Labels and finalizers of a pod."""
    pod = pick(pods_of(world.look(), name), chance)
    if pod is None or is_deleting(pod):
        return False
    change = chance.choice(
        (
            {"labels": {JOB_LABEL: chance.choice((None, "another"))}},
            {"labels": {f"{GROUP}/attempt": chance.choice((None, "9", "x"))}},
            {"finalizers": [*(pod["metadata"].get("finalizers") or ()), HOLD]},
            {"annotations": {"note": "x"}},
        )
    )
    return is_done(patch_metadata(world, "v1/pods", pod, change))


TRANSITIONS: dict[Transition, int] = {
    create: 100,
    create_again: 8,
    change_spec: 30,
    change_policy: 25,
    suspend: 14,
    go_on: 20,
    change_metadata: 12,
    delete: 10,
    let_go: 20,
    delete_child: 10,
    queue_child: 12,
    change_child: 16,
    change_child_status: 4,
    lose_frozen: 4,
    forge_frozen: 3,
    restore_frozen: 20,
    around.plant: 5,
    around.uproot: 10,
    around.move_tag: 3,
    start_pods: 80,
    start_pod: 20,
    end_main: 45,
    end_any: 12,
    disturb_pod: 12,
    delete_pod: 10,
    change_pod: 10,
    around.warn: 8,
    around.own_job: 4,
    around.lose_border: 4,
    around.forge_border: 3,
    around.clear_border: 12,
    around.limit_pods: 5,
    around.take_rights: 2,
    around.end_operator: 8,
    around.start_rival: 3,
}
"""Each with how often it is drawn; those that find nothing to act on are drawn again."""


def _end(world: World, pod: Json | None, chance: random.Random, exit_code: int) -> bool:
    if pod is None:
        return False
    if exit_code == 0:
        return act(world.kubelet.succeed, pod)
    record = json.dumps({"exitCode": exit_code, "reason": "Broken", "message": "by chance"})
    return act(world.kubelet.failing(exit_code, chance.choice(("", "words", record, "{"))), pod)


def _patch_policy(world: World, name: str, change: Json) -> bool:
    before = job_of(world, name)
    if before is None:
        return False
    answer = world.api.patch(JOBS, name, {"spec": {"runPolicy": change}}, world.namespace)
    if is_done(answer):
        world.note_fields(answer.body)
    return is_done(answer) and answer.body["metadata"]["generation"] != before["metadata"]["generation"]
