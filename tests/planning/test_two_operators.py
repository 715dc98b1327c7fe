"""Two operators side by side, as during a replacement: the slower one must not undo what the other has done."""

from __future__ import annotations

import pytest

from fake_controllers import act, end_pod, start_pod
from job_walk import Shape, World, change_policy
from walking_operator import Fault, Operator

JOB_ONLY = ["BertPretrainJob"]


def world_with_two() -> tuple[World, Operator, Operator]:
    world = World(Shape(workers=1, prepares=False, operators=2, run_policy={}))
    return world, *world.operators


def run_child(world: World) -> None:
    """Have the controllers and a node do their parts, until everything that is wanted runs."""
    act(world.cluster)
    for pod in world.cluster.all("Pod"):
        if pod["status"]["phase"] == "Pending":
            start_pod(world.cluster, pod)


def test_both_of_them_create_one_child() -> None:
    world, first, second = world_with_two()
    world.look(first, fault=Fault(at_write=1, how="dies after"))
    second.catch_up()
    world.look(first)
    world.look(second, kinds=[])
    assert [child["metadata"]["name"] for child in world.children()] == ["walk-a1-training"]


def test_of_two_status_writes_one_conflicts_and_is_requeued() -> None:
    world, first, second = world_with_two()
    world.look(first)
    run_child(world)
    second.catch_up(["Job", "Pod"])
    world.look(first)
    refused = world.look(second, kinds=[])
    assert refused is not None
    assert refused.again_in_s == pytest.approx(0.2)
    assert world.look(second) is not None
    assert world.status()["phase"] == "Running"


def test_one_that_is_late_does_not_create_an_attempt_that_is_over() -> None:
    world, first, second = world_with_two()
    world.look(first, fault=Fault(at_write=1, how="dies after"))
    second.catch_up()
    world.look(first)
    run_child(world)
    (pod,) = world.cluster.all("Pod")
    world.hurt.add(world.root(pod))
    end_pod(world.cluster, pod, 1)
    for _ in range(4):
        act(world.cluster)
        world.look(first)
    assert world.status()["attempt"] == 2
    world.look(second, kinds=[])


def test_one_that_misses_a_child_on_record_does_not_make_another_beside_it() -> None:
    world, first, second = world_with_two()
    world.look(first)
    run_child(world)
    world.look(first)
    change_policy(world, suspend=True)
    world.look(first)
    change_policy(world, suspend=False)
    assert world.status()["phase"] == "Stopping"
    world.look(second, kinds=JOB_ONLY)


def test_one_that_is_late_does_not_use_a_number_again_while_the_job_is_paused() -> None:
    world, first, second = world_with_two()
    world.look(first, fault=Fault(at_write=1, how="dies after"))
    second.catch_up()
    world.look(first)
    run_child(world)
    world.look(first)
    change_policy(world, suspend=True)
    world.look(first)
    for child in world.children():
        world.cluster.remove(child)
    for pod in world.cluster.all("Pod"):
        world.cluster.remove(pod)
    world.look(first)
    assert world.status()["phase"] == "Stopped"
    late = world.look(second, kinds=[])
    assert late is not None
    assert late.writes == ()


@pytest.mark.parametrize("runs", [True, False])
def test_a_child_that_another_operator_has_made_anew_is_taken_over(runs: bool) -> None:
    """The first one has seen its child deleted, and not yet that the second one has used the number again."""
    world = World(Shape(workers=1, prepares=False, operators=2, run_policy={}))
    first, second = world.operators
    world.look(first)
    (child,) = world.children()
    world.hurt.add(child["metadata"]["uid"])
    world.cluster.remove(child)
    first.catch_up()
    second.catch_up()
    world.look(second, kinds=[])
    (again,) = world.children()
    assert again["metadata"]["name"] == child["metadata"]["name"]
    if runs:
        act(world.cluster)
        (pod,) = world.cluster.all("Pod")
        start_pod(world.cluster, pod)
    for _ in range(3):
        world.look(first, kinds=["BertPretrainJob"])
    assert [found["metadata"]["uid"] for found in world.children()] == [again["metadata"]["uid"]]
    assert not world.status().get("failures")
