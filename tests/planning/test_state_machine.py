"""Long random walks of the operator's own reconciler: whatever happens, the rules of job_walk hold.

A walk is a list of events, each with a number that decides all that is left open: the same list is the same walk, and
any part of it is a walk as well. One that breaks a rule is shortened before it is shown; its seed and what happened are
in the message. ``make test`` walks 3,000 steps, ``make test-long`` 15,000 and 100,000 others. WALK_STEPS and WALK_SEED
ask for more of them.

The walker is its own, no state machine of hypothesis: of 15 faults planted in the reconciler and the plan it found 11
within 6 s of a core (AMD EPYC), hypothesis 8 with the same events as rules and 7 with lists of them (two seeds each,
the same World, no shortening). It walks 1.5 times as many steps in that time and draws events by how often they happen.
Shortening and replay are as good for this: a walk is a list, of which halves, quarters and at last single events are
left out, and a seed is the same walk on any machine. hypothesis would shrink the numbers as well, which are no amounts.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from bert_operator.render import names
from fake_cluster import Document, is_deleting
from fake_controllers import act, block_pod, disrupt_pod, end_pod, is_alive, start_pod, sync_job, sync_mpi_job
from job_walk import Shape, World, change_policy, pick, suspend_child
from walking_operator import WATCHED, Fault

STEPS = int(os.environ.get("WALK_STEPS", "3000"))
STEPS_EACH = 60
FIRST_SEED = int(os.environ.get("WALK_SEED", "1"))

Event = Callable[[World, int], object]

SECONDS = (1, 1, 2, 5, 11, 31, 61, 370, 3600)
EXIT_CODES = (0, 0, 0, 1, 2, 3, 4, 137, 143)
FAULTS = ("dies before", "dies after", "unsent", "unheard", "busy")
REFUSALS = (
    (403, "Forbidden", 'pods "x" is forbidden: exceeded quota: compute'),
    (404, "NotFound", "the server could not find the requested resource"),
    (422, "Invalid", "spec.template: Invalid value"),
    (500, "InternalError", "failed calling webhook"),
)
Walk = list[tuple[Event, int]]


# What can happen. Each takes the world and a number that decides everything that is left open; none fails, whatever
# the world is like. First the operator.


def look_fresh(world: World, number: int) -> None:
    world.look(world.operators[number % len(world.operators)])


def look_stale(world: World, number: int) -> None:
    """Some of the watches are late."""
    world.look(world.operators[number % len(world.operators)], _in_time(number >> 1))


def look_with_fault(world: World, number: int) -> None:
    kinds = WATCHED if number & 2 else _in_time(number >> 2)
    fault = Fault(1 + (number >> 7) % 4, FAULTS[(number >> 9) % len(FAULTS)])
    world.look(world.operators[number % len(world.operators)], kinds, fault)


def proceed(world: World, number: int) -> None:
    """Everybody does what is due, so that walks get beyond the start."""
    look_fresh(world, number)
    act_all(world, number)
    act_all(world, number)
    start_all(world, number)
    act_all(world, number)


def settle(world: World, number: int) -> None:
    world.settle(world.operators[number % len(world.operators)])


def rest(world: World, number: int) -> None:
    world.rest(world.operators[number % len(world.operators)])


def restart(world: World, number: int) -> None:
    world.operators[number % len(world.operators)].restart()


def wait(world: World, number: int) -> None:
    world.cluster.now_s += SECONDS[number % len(SECONDS)]


# Controllers.


def act_all(world: World, _: int) -> None:
    act(world.cluster, rejects=world.rejects)


def act_but_mpi_operator(world: World, _: int) -> None:
    act(world.cluster, mpi_operator=False)


def act_on_one(world: World, number: int) -> None:
    item = pick([*world.cluster.all("Job"), *world.cluster.all("MPIJob")], number)
    if item is not None and item["kind"] == "Job":
        sync_job(world.cluster, item)
    elif item is not None:
        sync_mpi_job(world.cluster, item, rejects=world.rejects)


def collect_garbage(world: World, _: int) -> None:
    world.cluster.collect_garbage()


def reject_mpi_jobs(world: World, number: int) -> None:
    world.rejects = number % 4 == 0


# Pods.


def start_one(world: World, number: int) -> None:
    pod = pick([pod for pod in world.cluster.all("Pod") if _may_start(pod)], number)
    if pod is not None:
        start_pod(world.cluster, pod)


def start_all(world: World, _: int) -> None:
    for pod in world.cluster.all("Pod"):
        if _may_start(pod):
            start_pod(world.cluster, pod)


def block(world: World, number: int) -> None:
    pod = pick([pod for pod in world.cluster.all("Pod") if _may_start(pod)], number)
    if pod is not None:
        block_pod(world.cluster, pod, "ImagePullBackOff")


def end_main(world: World, number: int) -> None:
    """The program ends, in a single pod or a launcher."""
    _end(world, _running(world, main=True), number)


def end_any(world: World, number: int) -> None:
    _end(world, _running(world), number)


def leave(world: World, _: int) -> None:
    """Everybody who was asked to leave does so, with a checkpoint."""
    for pod in _running(world):
        if is_deleting(pod):
            end_pod(world.cluster, pod, 3 if pod["metadata"]["labels"][names.ROLE_LABEL] != names.WORKER else 0)


def run_out_of_memory(world: World, number: int) -> None:
    if (pod := pick(_running(world), number)) is not None:
        world.hurt.add(world.root(pod))
        end_pod(world.cluster, pod, 137, ended_by="OOMKilled")


def evict(world: World, number: int) -> None:
    if (pod := pick(_running(world), number)) is not None:
        world.hurt.add(world.root(pod))
        end_pod(world.cluster, pod, 137 if number & 64 else None, reason="Evicted")


def disrupt(world: World, number: int) -> None:
    if (pod := pick(_running(world), number)) is not None:
        world.hurt.add(world.root(pod))
        disrupt_pod(world.cluster, pod, "EvictionByEvictionAPI")


def vanish(world: World, number: int) -> None:
    """The node is gone, and its pod with it."""
    if (pod := pick(_running(world), number)) is not None:
        world.hurt.add(world.root(pod))
        end_pod(world.cluster, world.cluster.mark_deleted(pod), None)


# People and queues.


def suspend(world: World, _: int) -> None:
    change_policy(world, suspend=True)


def go_on(world: World, _: int) -> None:
    change_policy(world, suspend=False)


def change_budgets(world: World, number: int) -> None:
    change_policy(world, applicationRetries=number % 4, infrastructureRetries=(number >> 2) % 5)


def change_deadline(world: World, number: int) -> None:
    field = ("activeDeadlineSeconds", "startDeadlineSeconds", "ttlSecondsAfterFinished")[number % 3]
    change_policy(world, **{field: (None, 60, 600, 7200, None)[(number >> 2) % 5]})


def delete_child(world: World, number: int) -> None:
    """Somebody deletes a child, in the foreground or, as kubectl does, at once."""
    child = pick(world.children(), number)
    if child is None:
        return
    uid = child["metadata"]["uid"]
    world.hurt.add(uid)
    if number & 64:
        world.cluster.mark_deleted(child)
    else:
        world.torn.add(uid)
        world.cluster.remove(child)
    world.cluster.now_s += 1  # nobody makes another one of its name within the same second


def delete_pod(world: World, number: int) -> None:
    if (pod := pick(world.cluster.all("Pod"), number)) is not None:
        world.hurt.add(world.root(pod))
        world.cluster.mark_deleted(pod)


def delete_launcher(world: World, number: int) -> None:
    """A TTL that somebody else set removes the launcher's Job after its end."""
    found = [job for job in world.cluster.all("Job") if job["metadata"]["name"].endswith("-launcher")]
    ended = [job for job in found if "completionTime" in (_owner_status(world, job))]
    if (job := pick(ended, number)) is not None:
        world.cluster.mark_deleted(job)


def lose_status(world: World, number: int) -> None:
    if number % 8 == 0 and world.job is not None:
        world.cluster.update(world.job, status={})
        world.forget_record()
        # Two operators of which one still remembers are not asked for.
        for operator in world.operators:
            operator.catch_up()


def forge_frozen(world: World, number: int) -> None:
    if number % 4 == 0:
        world.forge_frozen()


def lose_frozen(world: World, number: int) -> None:
    if number % 4 == 0:
        world.take_frozen()


def restore_frozen(world: World, _: int) -> None:
    world.restore_frozen()


def replace_job(world: World, number: int) -> None:
    """The user deletes the job and creates it again, under the same name."""
    if number % 8 == 0:
        if world.job is not None:
            world.cluster.remove(world.job)
        world.cluster.now_s += 1
        world.make_job()


def queue(world: World, number: int) -> None:
    """A queue holds a child back, or lets it go."""
    if (child := pick(world.children(), number)) is not None:
        suspend_child(world.cluster, child, holds=number & 64 > 0)


def queue_what_is_new(world: World, number: int) -> None:
    world.holds_new = number % 4 == 0


def refuse(world: World, number: int) -> None:
    kind = ("Job", "MPIJob", "ConfigMap")[number % 3]
    world.cluster.refusals[kind] = REFUSALS[(number >> 2) % len(REFUSALS)]


def accept(world: World, _: int) -> None:
    world.cluster.refusals.clear()


def _in_time(number: int) -> list[str]:
    """Return the watches that are not late."""
    return [kind for bit, kind in enumerate(WATCHED) if number >> bit & 1]


def _may_start(pod: Document) -> bool:
    return pod["status"]["phase"] == "Pending" and not is_deleting(pod)


def _running(world: World, *, main: bool = False) -> list[Document]:
    pods = [pod for pod in world.cluster.all("Pod") if is_alive(pod)]
    return [pod for pod in pods if not main or pod["metadata"]["labels"][names.ROLE_LABEL] != names.WORKER]


def _end(world: World, pods: list[Document], number: int) -> None:
    pod = pick(pods, number)
    if pod is not None:
        exit_code = EXIT_CODES[(number >> 5) % len(EXIT_CODES)]
        # Whoever was asked to leave may do so with a checkpoint, or be killed when the grace is over. A worker that was
        # not asked is missed, whatever its exit code.
        is_missed = pod["metadata"]["labels"][names.ROLE_LABEL] == names.WORKER or exit_code
        if exit_code not in (0, 3, 137, 143) or is_missed and not is_deleting(pod):
            world.hurt.add(world.root(pod))
        end_pod(world.cluster, pod, exit_code)


def _owner_status(world: World, job: Document) -> Document:
    owner = world.cluster.find("MPIJob", job["metadata"]["name"].removesuffix("-launcher"))
    return (owner or {}).get("status") or {}


EVENTS: dict[Event, int] = {
    look_fresh: 60,
    look_stale: 40,
    look_with_fault: 30,
    proceed: 30,
    settle: 25,
    rest: 8,
    restart: 6,
    wait: 40,
    act_all: 70,
    act_but_mpi_operator: 12,
    act_on_one: 30,
    collect_garbage: 15,
    reject_mpi_jobs: 3,
    start_one: 25,
    start_all: 30,
    block: 5,
    end_main: 35,
    end_any: 12,
    leave: 20,
    run_out_of_memory: 6,
    evict: 8,
    disrupt: 6,
    vanish: 6,
    suspend: 10,
    go_on: 20,
    change_budgets: 6,
    change_deadline: 8,
    delete_child: 8,
    delete_pod: 8,
    delete_launcher: 3,
    lose_status: 8,
    forge_frozen: 8,
    lose_frozen: 6,
    restore_frozen: 12,
    replace_job: 8,
    queue: 10,
    queue_what_is_new: 5,
    refuse: 4,
    accept: 8,
}
"""How often each happens, compared with the others."""


# Walks.


def draw(seed: int) -> tuple[Shape, Walk]:
    rng = random.Random(seed)
    shape = Shape.draw(rng)
    events = rng.choices(list(EVENTS), list(EVENTS.values()), k=STEPS_EACH)
    return shape, [(event, rng.randrange(1 << 12)) for event in events]


def broken_rule(shape: Shape, walk: Walk) -> tuple[str, list[str]]:
    """Return the rule that a walk breaks, empty where it breaks none, and what happened."""
    world = World(shape)
    try:
        for event, number in walk:
            world.tell(f"{event.__name__} {number}".upper())
            event(world, number)
        world.tell("FINISH")
        world.finish()
    except AssertionError as broken:
        return str(broken) or "an assertion", world.told
    return "", world.told


def shortened(shape: Shape, walk: Walk) -> Walk:
    """Return a walk without the events that its broken rule does not need."""
    length = len(walk) // 2
    while length:
        position = 0
        while position < len(walk):
            shorter = walk[:position] + walk[position + length :]
            if broken_rule(shape, shorter)[0]:
                walk = shorter
            else:
                position += length
        length //= 2
    return walk


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("steps", "first_seed"),
    [
        (STEPS, FIRST_SEED),
        pytest.param(15_000, FIRST_SEED, marks=pytest.mark.long),
        pytest.param(100_000, FIRST_SEED + 10_000, marks=pytest.mark.long),
    ],
    ids=["few", "some", "many"],
)
def test_no_walk_breaks_a_rule(steps: int, first_seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    walks = -(-steps // STEPS_EACH)
    for seed in range(first_seed, first_seed + walks):
        shape, walk = draw(seed)
        if broken_rule(shape, walk)[0]:
            short = shortened(shape, walk)
            rule, told = broken_rule(shape, short)
            pytest.fail(f"seed {seed}: {rule}\n{shape}\n" + "\n".join(told), pytrace=False)
    with capsys.disabled():
        print(f"\n{walks * STEPS_EACH} steps, seeds {first_seed} to {first_seed + walks - 1}", end=" ")  # noqa: T201
