"""What transitions of a walk over the spec act on, and how they find it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from cluster_api import Answer, Api
from kubelet import Action, FakeKubelet, PodGone
from operator_process import JOBS
from spec_consistency import FINAL_PHASES, Memory, Snapshot, is_deleting, owner_uid

Json = dict[str, Any]

RESOURCES = {
    "Job": "batch/v1/jobs",
    "MPIJob": "kubeflow.org/v2beta1/mpijobs",
    "ConfigMap": "v1/configmaps",
    "NetworkPolicy": "networking.k8s.io/v1/networkpolicies",
}
HOLD = "example.com/hold"
"""A finalizer."""


class World(Protocol):
    """A namespace, its node and its operator."""

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

    def start_rival(self) -> None:
        """Start a second operator beside it, as on a node that was taken for dead; it is killed some time later."""
        ...

    def take_rights(self) -> None:
        """Take the operator's rights away; it gets them back before anything is expected of it."""
        ...


Transition = Callable[[World, str, random.Random], bool]


def is_done(answer: Answer) -> bool:
    """Return whether the API server took it."""
    return answer.status < 300


def act(action: Action, pod: Json) -> bool:
    """Have the node do something; return whether the pod was still there for it."""
    try:
        action(pod)
    except (PodGone, AssertionError):  # it has changed since it was read, or may not go back
        return False
    return True


def pick(items: list[Json], chance: random.Random) -> Json | None:
    """Return one of them; None where there is none."""
    return chance.choice(items) if items else None


def job_of(world: World, name: str) -> Json | None:
    """Return a job as it is now."""
    answer = world.api.get(JOBS, name, world.namespace)
    return answer.body if answer.status == 200 else None


def children_of(found: Snapshot, name: str) -> list[Json]:
    """Return the children of any job of a name, by their own names, which nobody can change."""
    return [
        child
        for child in found.children
        if child["metadata"]["name"].startswith(f"{name}-a") and not child["metadata"]["name"].endswith("-launcher")
    ]


def pods_of(found: Snapshot, name: str) -> list[Json]:
    """Return the pods of a job's attempts, by their own names."""
    return [pod for pod in found.pods if pod["metadata"]["name"].startswith(f"{name}-a")]


def is_open(pod: Json) -> bool:
    """Return whether a pod has not ended and is not told to."""
    return pod["status"].get("phase") not in FINAL_PHASES and not is_deleting(pod)


def running_pods(world: World, name: str) -> list[Json]:
    """Return the pods of a job's attempts that run."""
    return [pod for pod in pods_of(world.look(), name) if pod["status"].get("phase") == "Running"]


def patch(world: World, child: Json, change: Json) -> Answer:
    """Merge into a child."""
    return world.api.patch(RESOURCES[child["kind"]], child["metadata"]["name"], change, world.namespace)


def patch_metadata(world: World, resource: str, item: Json, change: Json) -> Answer:
    """Merge into the metadata of an object."""
    return world.api.patch(resource, item["metadata"]["name"], {"metadata": change}, world.namespace)


def keep(world: World, found: Snapshot, owner: Json) -> None:
    """What an owner leaves behind on request may stay, and whatever that makes in turn."""
    uids = {owner["metadata"]["uid"]}
    for _ in range(3):
        below = [*found.children, *found.config_maps, *found.policies]
        uids |= {item["metadata"]["uid"] for item in below if owner_uid(item) in uids}
    world.memory.kept |= uids
