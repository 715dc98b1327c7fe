"""What may happen to the jobs of a namespace: every transition that the API server lets a person or a controller make.

Each takes the world, the name of a job and a chance that decides everything that is left open, and returns whether
the API server let it through. None fails, whatever the world is like: there may be no such job, or no child.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any, Protocol

from bert_operator.api.schema.bert_pretrain_job import RunPolicy
from cluster_api import Answer, Api
from cluster_jobs import IMAGE, NO_SCHEDULER, job_document
from job_documents import add_fields, as_kubectl_sends_it, draw_document, draw_value
from kubelet import GROUP, Action, FakeKubelet, PodGone
from operator_process import JOBS
from spec_consistency import FINAL_PHASES, Memory, Snapshot, is_deleting, is_suspended, owner_uid

Json = dict[str, Any]

RESOURCES = {"Job": "batch/v1/jobs", "MPIJob": "kubeflow.org/v2beta1/mpijobs", "ConfigMap": "v1/configmaps"}
PROPAGATIONS = ("Background", "Background", "Foreground", "Orphan")
POLICIES = [str(field.alias) for field in RunPolicy.model_fields.values()]
MOST_WORKERS = 3
"""Each is a pod of the API server's."""
PLANTED = "planted-"
HOLD = "example.com/hold"
QUOTA = "no-more-pods"
EXIT_CODES = (0, 1, 1, 2, 3, 4, 137, 143)
JOB_LABEL = f"{GROUP}/job"


class World(Protocol):
    """What transitions act on."""

    api: Api
    namespace: str
    kubelet: FakeKubelet
    memory: Memory
    frozen: dict[str, Json]
    """Of every job, by uid: the ConfigMap that it was frozen with."""

    def look(self) -> Snapshot:
        """Return the namespace as it is."""
        ...

    def note_fields(self, document: Json) -> None:
        """Note that the API server took these fields."""
        ...

    def end_operator(self, how: str, settings: Json) -> None:
        """Kill the operator, or ask it to end, and start it with other settings, without waiting for it."""
        ...


Transition = Callable[[World, str, random.Random], bool]


# Jobs.


def create(world: World, name: str, chance: random.Random) -> bool:
    """Somebody applies a job; many of those that are drawn are refused."""
    for fields in (chance.choice((0, 1, 2, 4, 8)), 1, 0):
        document = draw_job(chance, name, fields)
        answer = world.api.create(document, world.namespace)
        if answer.status == 201:
            world.note_fields(document)
            return True
        if answer.status == 409:
            return False
    return False


def draw_job(chance: random.Random, name: str, fields: int) -> Json:
    """Return a job that runs in a cluster, with so many further fields; one in eight is any job at all."""
    if chance.random() < 0.125:
        document = draw_document(chance.getrandbits(24))
        document["metadata"] = {"name": name}
    else:
        policy = {"applicationRetries": chance.choice((0, 1, 3)), "infrastructureRetries": chance.choice((0, 1, 3))}
        policy |= chance.choice(({}, {}, {}, {"suspend": True}, {"ttlSecondsAfterFinished": 1}))
        document = job_document(name, prepare=chance.random() < 0.5, runPolicy=policy, workers=chance.choice((1, 1, 2)))
        add_fields(chance, document, fields)
        if chance.random() < 0.2:
            document["spec"]["profile"] = chance.choice(("plain", "plain", "absent"))
            document["spec"].pop("image", None)
    return _as_applied(document)


def create_again(world: World, name: str, chance: random.Random) -> bool:
    """Somebody deletes a job and applies it again under its name."""
    gone = world.api.delete(JOBS, name, world.namespace)
    return _is_done(gone) and (create(world, name, chance) or True)


def change_spec(world: World, name: str, chance: random.Random) -> bool:
    """Somebody changes any field, by a whole new document; once a job has begun, most of that is refused."""
    if (job := _job(world, name)) is None:
        return False
    changed = copy.deepcopy(job)
    changed.pop("status", None)
    add_fields(chance, changed, chance.choice((1, 1, 3)))
    answer = world.api.replace(_as_applied(changed), world.namespace)
    if _is_done(answer):
        world.note_fields(changed)
    return _is_done(answer) and answer.body["metadata"]["generation"] != job["metadata"]["generation"]


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
    return _is_done(world.api.patch(JOBS, name, {"metadata": change}, world.namespace))


def delete(world: World, name: str, chance: random.Random) -> bool:
    """Somebody deletes a job, with its children or without."""
    how = chance.choice(PROPAGATIONS)
    found = world.look()
    job = next((item for item in found.jobs if item["metadata"]["name"] == name), None)
    if job is None or is_deleting(job):
        return False
    answer = world.api.delete(JOBS, name, world.namespace, propagation=how)
    if how == "Orphan" and _is_done(answer):
        _keep(world, found, job)
    return _is_done(answer)


def let_go(world: World, name: str, _: random.Random) -> bool:
    """Whoever held a job or what it owns takes the finalizer away."""
    found = world.look()
    held = [(JOBS, job) for job in found.jobs if job["metadata"]["name"] == name]
    held += [(RESOURCES[child["kind"]], child) for child in _children(found, name)]
    held += [("v1/pods", pod) for pod in _pods(found, name)]
    done = False
    for resource, item in held:
        if HOLD in (item["metadata"].get("finalizers") or ()):
            kept = [text for text in item["metadata"]["finalizers"] if text != HOLD]
            answer = _patch_metadata(world, resource, item, {"finalizers": kept})
            done = done or _is_done(answer)
    return done


# Children, and what they are made from.


def delete_child(world: World, name: str, chance: random.Random) -> bool:
    """Somebody deletes a child."""
    found = world.look()
    if (child := _pick(_children(found, name), chance)) is None or is_deleting(child):
        return False
    how = chance.choice(PROPAGATIONS)
    answer = world.api.delete(RESOURCES[child["kind"]], child["metadata"]["name"], world.namespace, propagation=how)
    if how == "Orphan" and _is_done(answer):
        _keep(world, found, child)
    return _is_done(answer)


def queue_child(world: World, name: str, chance: random.Random) -> bool:
    """A queue holds a child back, or lets it go."""
    child = _pick(_children(world.look(), name), chance)
    if child is None or is_deleting(child):
        return False
    value = {"suspend": not is_suspended(child)}
    spec = value if child["kind"] == "Job" else {"runPolicy": value}
    return _is_done(_patch(world, child, {"spec": spec}))


def change_child(world: World, name: str, chance: random.Random) -> bool:
    """Labels, annotations, owners and finalizers of a child, and what may be changed in its spec."""
    child = _pick(_children(world.look(), name), chance)
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
    answer = _patch(world, child, change)
    if _is_done(answer) and "ownerReferences" in change.get("metadata", {}):
        # Nobody can tell any more whose it is once its job is gone and the operator has been restarted.
        world.memory.kept.add(child["metadata"]["uid"])
    return _is_done(answer)


def change_child_status(world: World, name: str, chance: random.Random) -> bool:
    """Somebody, or mpi-operator in a moment of its own, writes another status into an MPIJob."""
    children = [child for child in _children(world.look(), name) if child["kind"] == "MPIJob"]
    if (child := _pick(children, chance)) is None:
        return False
    kind = chance.choice(("Created", "Running", "Failed", "Suspended", "Succeeded"))
    now = child["metadata"]["creationTimestamp"]
    condition = {"type": kind, "status": "True", "reason": "Test", "lastTransitionTime": now, "lastUpdateTime": now}
    status = chance.choice(({"conditions": []}, {"conditions": [condition]}))
    child_name = child["metadata"]["name"]
    change = {"status": status}
    return _is_done(world.api.patch(RESOURCES["MPIJob"], child_name, change, world.namespace, subresource="status"))


def lose_frozen(world: World, name: str, _: random.Random) -> bool:
    """Somebody deletes the frozen configuration."""
    return _is_done(world.api.delete("v1/configmaps", f"{name}-frozen", world.namespace))


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
    job = _job(world, name)
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
                done = done or _is_done(answer)
    return done


# Pods.


def move_tag(world: World, _: str, chance: random.Random) -> bool:
    """Somebody pushes another image under the tag of most jobs, or the node has what it runs from no registry."""
    digest = f"{IMAGE.rpartition(':')[0]}@sha256:{chance.getrandbits(256):064x}"
    world.kubelet.digests[IMAGE] = chance.choice((digest, digest, digest.partition("@")[2]))
    return True


def start_pods(world: World, name: str, _: random.Random) -> bool:
    """The node runs what waits, and says what is gone."""
    done = False
    for pod in _pods(world.look(), name):
        if is_deleting(pod):
            done = _act(world.kubelet.remove, pod) or done
        elif pod["status"].get("phase") == "Pending" and not pod["spec"].get("schedulingGates"):
            done = _act(world.kubelet.run, pod) or done
    return done


def start_pod(world: World, name: str, chance: random.Random) -> bool:
    """The node runs one pod."""
    waiting = [pod for pod in _pods(world.look(), name) if pod["status"].get("phase") == "Pending"]
    pod = _pick([pod for pod in waiting if not pod["spec"].get("schedulingGates")], chance)
    return pod is not None and not is_deleting(pod) and _act(world.kubelet.run, pod)


def end_main(world: World, name: str, chance: random.Random) -> bool:
    """The program ends, in a single pod or a launcher."""
    pods = [pod for pod in _running(world, name) if pod["metadata"]["labels"].get(f"{GROUP}/role") != "worker"]
    return _end(world, _pick(pods, chance), chance, chance.choice((0, 0, *EXIT_CODES)))


def end_any(world: World, name: str, chance: random.Random) -> bool:
    """Any pod ends."""
    return _end(world, _pick(_running(world, name), chance), chance, chance.choice(EXIT_CODES))


def disturb_pod(world: World, name: str, chance: random.Random) -> bool:
    """A pod runs out of memory, is evicted, or cannot have its image."""
    pod = _pick([pod for pod in _pods(world.look(), name) if _is_open(pod)], chance)
    if pod is None:
        return False
    if pod["status"]["phase"] == "Pending":
        return _act(world.kubelet.wait_image, pod)
    out_of_memory: Action = world.kubelet.failing(oom=True)
    return _act(chance.choice((world.kubelet.evict, out_of_memory)), pod)


def delete_pod(world: World, name: str, chance: random.Random) -> bool:
    """Somebody deletes a pod, with its time to end or without."""
    pod = _pick(_pods(world.look(), name), chance)
    if pod is None:
        return False
    grace_s = chance.choice((None, 0))
    return _is_done(world.api.delete("v1/pods", pod["metadata"]["name"], world.namespace, grace_s=grace_s))


def change_pod(world: World, name: str, chance: random.Random) -> bool:
    """Labels and finalizers of a pod."""
    pod = _pick(_pods(world.look(), name), chance)
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
    return _is_done(_patch_metadata(world, "v1/pods", pod, change))


# Around them.


def limit_pods(world: World, _: str, __: random.Random) -> bool:
    """A quota forbids further pods, or goes again."""
    if _is_done(world.api.delete("v1/resourcequotas", QUOTA, world.namespace)):
        return True
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": QUOTA}, "spec": {"hard": {"pods": "0"}},
    }  # fmt: skip
    return world.api.create(quota, world.namespace).status == 201


def end_operator(world: World, _: str, chance: random.Random) -> bool:
    """The operator is killed, or asked to end, and comes back, now and then with other settings."""
    settings = chance.choice((PLAIN, PLAIN, {**PLAIN, "trainerImage": "registry.example.com/trainer:2"}, {}))
    world.end_operator(chance.choice(("kill", "kill", "stop")), settings)
    return True


PLAIN: Json = {"profiles": {"plain": {"image": "registry.example.com/plain:1", "slotsPerWorker": 1}}}
"""Settings of the operator: a profile that jobs may name. Without them such jobs have lost their profile."""

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
    plant: 5,
    uproot: 10,
    move_tag: 3,
    start_pods: 80,
    start_pod: 20,
    end_main: 45,
    end_any: 12,
    disturb_pod: 12,
    delete_pod: 10,
    change_pod: 10,
    limit_pods: 5,
    end_operator: 7,
}
"""Each with how often it is drawn; those that find nothing to act on are drawn again."""


def _as_applied(document: Json) -> Json:
    """Return a job as kubectl sends it, with no more workers than can be looked after."""
    spec = as_kubectl_sends_it(document.get("spec"))
    if isinstance(spec, dict) and isinstance(spec.get("workers"), int):
        spec["workers"] = min(spec["workers"], MOST_WORKERS)
    return {**document, "spec": spec}


def _is_done(answer: Answer) -> bool:
    return answer.status < 300


def _act(action: Action, pod: Json) -> bool:
    try:
        action(pod)
    except (PodGone, AssertionError):  # it has changed since it was read, or may not go back
        return False
    return True


def _pick(items: list[Json], chance: random.Random) -> Json | None:
    return chance.choice(items) if items else None


def _job(world: World, name: str) -> Json | None:
    answer = world.api.get(JOBS, name, world.namespace)
    return answer.body if answer.status == 200 else None


def _children(found: Snapshot, name: str) -> list[Json]:
    """Return the children of any job of a name, by their own names, which nobody can change."""
    return [
        child
        for child in found.children
        if child["metadata"]["name"].startswith(f"{name}-a") and not child["metadata"]["name"].endswith("-launcher")
    ]


def _pods(found: Snapshot, name: str) -> list[Json]:
    return [pod for pod in found.pods if pod["metadata"]["name"].startswith(f"{name}-a")]


def _is_open(pod: Json) -> bool:
    return pod["status"].get("phase") not in FINAL_PHASES and not is_deleting(pod)


def _running(world: World, name: str) -> list[Json]:
    return [pod for pod in _pods(world.look(), name) if pod["status"].get("phase") == "Running"]


def _end(world: World, pod: Json | None, chance: random.Random, exit_code: int) -> bool:
    if pod is None:
        return False
    if exit_code == 0:
        return _act(world.kubelet.succeed, pod)
    record = json.dumps({"exitCode": exit_code, "reason": "Broken", "message": "by chance"})
    return _act(world.kubelet.failing(exit_code, chance.choice(("", "words", record, "{"))), pod)


def _patch(world: World, child: Json, change: Json) -> Answer:
    return world.api.patch(RESOURCES[child["kind"]], child["metadata"]["name"], change, world.namespace)


def _patch_metadata(world: World, resource: str, item: Json, change: Json) -> Answer:
    return world.api.patch(resource, item["metadata"]["name"], {"metadata": change}, world.namespace)


def _patch_policy(world: World, name: str, change: Json) -> bool:
    before = _job(world, name)
    if before is None:
        return False
    answer = world.api.patch(JOBS, name, {"spec": {"runPolicy": change}}, world.namespace)
    if _is_done(answer):
        world.note_fields(answer.body)
    return _is_done(answer) and answer.body["metadata"]["generation"] != before["metadata"]["generation"]


def _keep(world: World, found: Snapshot, owner: Json) -> None:
    """What an owner leaves behind on request may stay, and whatever that makes in turn."""
    uids = {owner["metadata"]["uid"]}
    for _ in range(3):
        below = [*found.children, *found.config_maps]
        uids |= {item["metadata"]["uid"] for item in below if owner_uid(item) in uids}
    world.memory.kept |= uids
