"""A job on the cluster in memory whose frozen configuration, status and attempts a test changes and looks at."""

from __future__ import annotations

import copy

from fake_controllers import act, end_pod, start_pod
from job_walk import NAME, Shape, World
from sample_job import Document

CONFIG_MAP = f"{NAME}-frozen"


def world() -> World:
    return World(Shape(workers=1, prepares=False, operators=1, run_policy={"infrastructureRetries": 9}))


def frozen(world: World) -> Document:
    found = world.cluster.find("ConfigMap", CONFIG_MAP)
    assert found is not None
    return found


def put(world: World, config_map: Document) -> None:
    """Delete what is there and create another one; immutable objects may be replaced no other way."""
    if (found := world.cluster.find("ConfigMap", CONFIG_MAP)) is not None:
        world.cluster.remove(found)
    world.cluster.add(config_map)


def start(world: World) -> None:
    """Bring the newest attempt to running, as its record shows."""
    operator = world.operators[0]
    world.look(operator)
    act(world.cluster)
    for pod in world.cluster.all("Pod"):
        if pod["status"]["phase"] == "Pending":
            start_pod(world.cluster, pod)
    world.look(operator)


def kill(world: World) -> None:
    """Take the running pod's machine away."""
    pod = next(pod for pod in world.cluster.all("Pod") if pod["status"]["phase"] == "Running")
    world.hurt.add(world.root(pod))
    end_pod(world.cluster, pod, 137, reason="Evicted")
    act(world.cluster)


def go_on(world: World) -> None:
    """Look at the job, and let controllers act, until nothing more comes of it."""
    for _ in range(6):
        world.look(world.operators[0])
        act(world.cluster)
        world.cluster.now_s += 400


def pods(world: World) -> list[Document]:
    return [child["spec"]["template"]["spec"] for child in world.cluster.all("Job")]


def blocked(world: World) -> Document:
    """The condition Blocked, where it holds."""
    return next(
        (
            item
            for item in world.status().get("conditions", ())
            if item["type"] == "Blocked" and item["status"] == "True"
        ),
        {},
    )


def attempts(world: World) -> list[int]:
    return [int(child["metadata"]["labels"]["bert-operator.dev/attempt"]) for child in world.children()]


def unsigned(world: World) -> None:
    """Take the hash out of the status: it is that of a job restored from a backup."""
    assert world.job is not None
    status = copy.deepcopy(world.status())
    del status["frozenHash"]
    world.cluster.update(world.job, status=status)
    world.operators[0].catch_up()
