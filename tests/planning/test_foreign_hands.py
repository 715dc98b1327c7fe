"""What others do to the labels and owners of a running child: it stays the job's own, by what the status says of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bert_operator.cluster.object_summaries import read_child
from bert_operator.cluster.observation import observe_child
from bert_operator.render.names import ATTEMPT_LABEL, JOB_LABEL, RUN_LABEL
from fake_cluster import Document, FakeCluster, is_deleting
from fake_controllers import act, end_pod, start_pod
from job_walk import REF, Shape, World, change_policy
from walking_operator import Operator

STOLEN = {JOB_LABEL: "another", ATTEMPT_LABEL: "7", RUN_LABEL: "prepare"}


def running(workers: int = 2) -> tuple[World, Operator]:
    """Return a job that runs, as its operator has written it down."""
    world = World(Shape(workers=workers, prepares=False, operators=1, run_policy={}))
    (operator,) = world.operators
    world.look(operator)
    act(world.cluster)
    for pod in world.cluster.all("Pod"):
        start_pod(world.cluster, pod)
    act(world.cluster)
    for pod in world.cluster.all("Pod"):
        if pod["status"]["phase"] == "Pending":
            start_pod(world.cluster, pod)
    act(world.cluster)
    world.look(operator)
    assert (world.status()["phase"], world.status()["attempt"]) == ("Running", 1)
    return world, operator


def relabel(cluster: FakeCluster, document: Document, labels: dict[str, str]) -> Document:
    metadata = document["metadata"]
    return cluster.update(document, metadata={**metadata, "labels": {**metadata["labels"], **labels}})


def take_owner(world: World, operator: Operator, child: Document) -> None:
    world.cluster.update(child, metadata={**child["metadata"], "ownerReferences": []})


def take_labels(world: World, operator: Operator, child: Document) -> None:
    for document in (child, *world.cluster.all("Pod")):
        relabel(world.cluster, document, STOLEN)


def remove_label(world: World, operator: Operator, child: Document) -> None:
    """Take the label away, whereupon the watch that selects by it says that the child is deleted."""
    labels = {key: value for key, value in child["metadata"]["labels"].items() if key != JOB_LABEL}
    operator.catch_up()
    world.cluster.update(child, metadata={**child["metadata"], "labels": labels})
    change, document = world.cluster.changes.pop()
    assert change == "MODIFIED"
    world.cluster.changes.append(("DELETED", document))


CHANGES = (take_owner, take_labels, remove_label)
Change = Callable[[World, Operator, Document], None]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_new", [False, True])
def test_a_child_that_others_have_changed_is_still_the_jobs_own(change: Change, workers: int, is_new: bool) -> None:
    """is_new: the operator has been started since, and knows nothing but what is there."""
    world, operator = running(workers)
    (child,) = world.children()
    change(world, operator, child)
    if is_new:
        operator.restart()
        if change is remove_label:
            operator.index.drop({**child})  # which no list that selects by the label has
    for _ in range(3):
        look = world.look(operator)
        assert look is not None
    status = world.status()
    assert (status["phase"], status["attempt"], status.get("failures")) == ("Running", 1, [])
    assert [item["metadata"]["uid"] for item in world.cluster.all(child["kind"])] == [child["metadata"]["uid"]]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_child_that_watches_do_not_tell_of_is_asked_for(workers: int) -> None:
    world, operator = running(workers)
    (child,) = world.children()
    remove_label(world, operator, child)
    look = world.look(operator)
    assert look is not None
    assert look.again_in_s is not None
    assert look.again_in_s <= 5.0
    world.hurt.add(child["metadata"]["uid"])
    world.cluster.remove(world.cluster.fresh(child) or child)
    world.cluster.changes.pop()  # no watch says so
    world.cluster.now_s += 6
    for pod in world.cluster.all("Pod"):
        world.cluster.remove(pod)
    for _ in range(3):
        world.look(operator)
    assert [failure["reason"] for failure in world.status()["failures"]] == ["Lost"]
    assert world.status()["attempt"] == 2


def test_a_child_without_its_owner_goes_with_its_job() -> None:
    world, operator = running()
    (child,) = world.children()
    take_owner(world, operator, child)
    world.look(operator)
    assert world.job is not None
    world.cluster.remove(world.job)
    operator.catch_up()
    operator.look(REF)
    left = world.cluster.fresh(child)
    assert left is None or is_deleting(left)


@pytest.mark.parametrize("job_is_told", [True, False])
@pytest.mark.parametrize("child_is_first", [True, False])
def test_children_of_a_job_that_is_deleted_with_orphans_run_on(job_is_told: bool, child_is_first: bool) -> None:
    """--cascade=orphan: the garbage collector takes the owner away, which is what the user has asked for.

    job_is_told: its change comes by itself, and not only its end. child_is_first: the watches are not ordered.
    """
    world, operator = running()
    (child,) = world.children()
    job = world.job
    assert job is not None
    marks = {"finalizers": ["orphan"], "deletionTimestamp": "2026-11-23T00:00:00Z"}
    job = world.cluster.update(job, metadata={**job["metadata"], **marks})
    take_owner(world, operator, child)
    for kinds in (["MPIJob"], ["BertPretrainJob"]) if child_is_first else (["BertPretrainJob"], ["MPIJob"]):
        if job_is_told or kinds == ["MPIJob"]:
            operator.catch_up(kinds)
            operator.look(REF)
    world.cluster.remove(job)
    operator.catch_up()
    operator.look(REF)
    left = world.cluster.fresh(child)
    assert left is not None
    assert not is_deleting(left)


def test_the_index_keeps_no_record_of_children_that_are_gone() -> None:
    """A status that is written after a child was dropped still names it."""
    world, operator = running()
    (child,) = world.children()
    job = world.job
    assert job is not None
    operator.index.drop(child)
    for number in range(3):
        metadata = {**job["metadata"], "resourceVersion": str(10_000 + number), "labels": {"touched": str(number)}}
        operator.index.put_job({**job, "metadata": metadata})
    assert operator.index.num_records == 0


def test_a_child_of_another_uid_is_nobodys() -> None:
    """Whoever may create MPIJobs cannot give a job one of theirs by its name and its labels."""
    world, operator = running()
    (child,) = world.children()
    own = operator.index.own_children(REF, child["metadata"]["ownerReferences"][0]["uid"])
    assert [item.uid for item in own] == [child["metadata"]["uid"]]
    forged = {**child, "metadata": {**child["metadata"], "uid": "forged", "ownerReferences": []}}
    operator.index.put_child(forged)
    assert operator.index.own_children(REF, child["metadata"]["ownerReferences"][0]["uid"]) == []


def test_finalizers_of_others_count_only_while_a_child_is_deleted() -> None:
    world, operator = running()
    (child,) = world.children()
    for name, deleted, held_by in (("a", False, ()), ("b", True, ("example.com/held",))):
        metadata = {**child["metadata"], "finalizers": ["foregroundDeletion", "example.com/held"], "uid": name}
        if deleted:
            metadata["deletionTimestamp"] = "2026-11-23T00:00:00Z"
        read = read_child({**child, "metadata": metadata})
        assert read is not None
        assert observe_child(read[1], [], {}, workers=2, now_s=0.0).held_by == held_by


@pytest.mark.parametrize("policy", ["suspend", "deadline"])
@pytest.mark.parametrize("prepares", [False, True])
def test_no_job_is_over_beside_a_child_that_no_watch_tells_of(policy: str, prepares: bool) -> None:
    """Its child waits, and lost its label before a status named it; then the operator was started again."""
    given = {"activeDeadlineSeconds": 600} if policy == "deadline" else {}
    world = World(Shape(workers=1, prepares=prepares, operators=1, run_policy=given))
    (operator,) = world.operators
    world.look(operator)
    if prepares:
        act(world.cluster)
        (pod,) = world.cluster.all("Pod")
        start_pod(world.cluster, pod)
        world.look(operator)
        (pod,) = world.cluster.all("Pod")
        end_pod(world.cluster, pod, 0)
        act(world.cluster)
        world.look(operator)
    child = world.children()[-1]
    labels = {key: value for key, value in child["metadata"]["labels"].items() if key != JOB_LABEL}
    world.cluster.update(child, metadata={**child["metadata"], "labels": labels})
    operator.restart()
    operator.index.drop(child)
    if policy == "suspend":
        change_policy(world, suspend=True)
    else:
        world.cluster.now_s += 700
    operator.catch_up(["BertPretrainJob"])
    operator.look(REF)
    assert world.status()["phase"] == "Stopping"
    (name,) = [found["metadata"]["name"] for found in world.cluster.all("Job") if is_deleting(found)]
    assert name == child["metadata"]["name"]
