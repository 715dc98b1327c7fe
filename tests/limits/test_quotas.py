"""Ranks and devices of a namespace: a job beyond them waits, goes on when there is room, and two never get the last.

And the longest grace period, up to which the operator raises that of the next attempt.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bert_job.progress import parse_progress_line
from bert_operator.cluster.demand import Demand, read_demand
from bert_operator.cluster.index import Index
from bert_operator.cluster.log_reader import LatestRecords
from bert_operator.cluster.quotas import NamespaceQuotas
from bert_operator.cluster.settings import Settings
from bert_operator.names import JobRef
from cluster_jobs import job_document
from fake_cluster import NAMESPACE, FakeCluster
from fake_controllers import act, end_pod, start_pod
from walking_operator import Fault, Operator

NOBODY: Any = SimpleNamespace(created=lambda _: None, described=lambda *_: None, deleted=lambda _: None)


def settings_with(**limits: Any) -> Settings:
    return Settings.model_validate({"limits": limits})


def apply(cluster: FakeCluster, name: str, **fields: Any) -> JobRef:
    document = job_document(name, **fields)
    cluster.add({"apiVersion": "bert-operator.dev/v1alpha1", "kind": "BertPretrainJob", **document})
    return JobRef(NAMESPACE, name)


def look(operator: Operator, *refs: JobRef, times: int = 3) -> None:
    operator.catch_up()
    for _ in range(times):
        for ref in refs:
            operator.look(ref)
        operator.catch_up()


def status(cluster: FakeCluster, ref: JobRef) -> Any:
    job = cluster.find("BertPretrainJob", ref.name)
    assert job is not None
    return job["status"]


def blocked(cluster: FakeCluster, ref: JobRef) -> tuple[str, str, str]:
    conditions = {condition["type"]: condition for condition in status(cluster, ref)["conditions"]}
    found = conditions.get("Blocked", {"status": "", "reason": "", "message": ""})
    return found["status"], found["reason"], found["message"]


def children(cluster: FakeCluster) -> list[str]:
    return sorted(item["metadata"]["name"] for kind in ("Job", "MPIJob") for item in cluster.all(kind))


def test_a_job_beyond_the_bound_waits_and_starts_once_there_is_room() -> None:
    cluster = FakeCluster()
    operator = Operator(cluster, NOBODY)
    operator.restart(settings_with(ranksPerNamespace=3))
    first, second = apply(cluster, "first", slotsPerWorker=2), apply(cluster, "second", slotsPerWorker=2)
    look(operator, first, second)
    assert children(cluster) == ["first-a1-training"]
    is_blocked, reason, message = blocked(cluster, second)
    assert (is_blocked, reason) == ("True", "NamespaceLimitReached")
    assert f"Namespace {NAMESPACE} may have 3 ranks; this attempt's 2 do not fit" in message
    assert "limits.ranksPerNamespace" in message
    small = apply(cluster, "small", slotsPerWorker=1)
    look(operator, small)
    assert children(cluster) == ["first-a1-training", "small-a1-training"], "what fits does not wait"
    cluster.now_s += 10
    requests: list[str] = []
    operator.wire.get = lambda path, **_: requests.append(path)  # type: ignore[assignment,return-value]
    assert (operator.look(second).writes, requests) == ((), []), "a job that waits costs no request"
    del operator.wire.get
    act(cluster)
    for pod in cluster.all("Pod"):
        start_pod(cluster, pod)
        end_pod(cluster, pod, 0)
    act(cluster)
    cluster.now_s += 10
    look(operator, second)
    assert "second-a1-training" in children(cluster)
    assert blocked(cluster, second)[0] != "True"


def test_who_restarts_the_operator_gets_no_more() -> None:
    cluster = FakeCluster()
    operator = Operator(cluster, NOBODY)
    operator.restart(settings_with(ranksPerNamespace=2))
    first, second = apply(cluster, "first", slotsPerWorker=2), apply(cluster, "second", slotsPerWorker=1)
    look(operator, first)
    operator.restart()
    look(operator, second, first)
    assert children(cluster) == ["first-a1-training"]


def test_a_creation_whose_answer_is_lost_is_counted_before_any_watch_tells_of_it() -> None:
    cluster = FakeCluster()
    operator = Operator(cluster, NOBODY)
    operator.restart(settings_with(ranksPerNamespace=2))
    first, second = apply(cluster, "first", slotsPerWorker=2), apply(cluster, "second", slotsPerWorker=1)
    operator.catch_up()
    operator.look(first, Fault(at_write=3, how="unheard"))
    assert children(cluster) == ["first-a1-training"]
    for _ in range(3):
        operator.look(second)
        operator.catch_up(["BertPretrainJob"])
    assert children(cluster) == ["first-a1-training"]


def test_a_mistake_of_the_operator_s_own_holds_no_ranks() -> None:
    cluster = FakeCluster()
    operator = Operator(cluster, NOBODY)
    operator.restart(settings_with(ranksPerNamespace=2))
    first, second = apply(cluster, "first", slotsPerWorker=2), apply(cluster, "second", slotsPerWorker=2)
    operator.catch_up()

    def fail(path: str, document: Any, **_: Any) -> Any:
        if document["kind"] != "ConfigMap":
            raise ValueError("a mistake")
        return created(path, document)

    created = operator.wire.create
    operator.wire.create = fail  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="a mistake"):
        look(operator, first)
    del operator.wire.create  # type: ignore[method-assign]
    look(operator, second)
    assert children(cluster) == ["second-a1-training"]


def test_of_two_that_decide_at_once_one_gets_the_last_rank() -> None:
    quotas = NamespaceQuotas(Index(), settings_with(ranksPerNamespace=4))
    first, second, foreign = JobRef("a", "first"), JobRef("a", "second"), JobRef("b", "first")
    assert quotas.reserve(first, Demand(ranks=3)) is None
    assert quotas.reserve(second, Demand(ranks=2)) is not None
    assert quotas.still_waits(second)
    assert quotas.reserve(foreign, Demand(ranks=4)) is None, "another namespace has its own"
    assert quotas.reserve(first, Demand(ranks=3)) is None, "asked again, a job is not counted beside itself"
    quotas.release(first)
    assert not quotas.still_waits(second)
    assert quotas.reserve(second, Demand(ranks=2)) is None
    quotas.forget(second)
    assert quotas.reserve(first, Demand(ranks=4)) is None


def test_a_job_s_own_child_is_not_counted_beside_itself() -> None:
    cluster = FakeCluster()
    operator = Operator(cluster, NOBODY)
    ref = apply(cluster, "demo", slotsPerWorker=3)
    look(operator, ref)
    quotas = NamespaceQuotas(operator.index, settings_with(ranksPerNamespace=4))
    assert quotas.reserve(ref, Demand(ranks=4)) is None
    assert quotas.reserve(JobRef(NAMESPACE, "other"), Demand(ranks=2)) is not None


def test_network_devices_of_profiles_are_not_counted_as_gpus() -> None:
    settings = Settings.model_validate(
        {
            "limits": {"gpusPerNamespace": 8},
            "profiles": {"p": {"resources": {"rdma": {"resourceName": "example.com/hca"}}}},
        }
    )
    quotas = NamespaceQuotas(Index(), settings)
    ref = JobRef("a", "demo")
    assert quotas.reserve(ref, Demand(4, (("example.com/hca", 8), ("nvidia.com/gpu", 8)))) is None
    assert quotas.reserve(ref, Demand(4, (("example.com/hca", 8), ("nvidia.com/gpu", 9)))) is not None
    assert quotas.reserve(ref, Demand(4, (("amd.com/gpu", 5), ("nvidia.com/gpu", 4)))) is not None


@pytest.mark.parametrize("workers", [1, 3])
def test_a_demand_is_read_from_what_is_created(workers: int) -> None:
    cluster = FakeCluster()
    operator = Operator(cluster, NOBODY)
    resources = {"accelerator": {"perWorker": 2}}
    ref = apply(cluster, "demo", slotsPerWorker=2, workers=workers, resources=resources)
    look(operator, ref)
    (child,) = [*cluster.all("Job"), *cluster.all("MPIJob")]
    assert read_demand(child) == Demand(2 * workers, (("nvidia.com/gpu", 2 * workers),))
    (known,) = operator.index.children(ref)
    assert known.demand == read_demand(child)
    if workers > 1:
        child["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = 1
        child["metadata"]["resourceVersion"] = str(10**6)
        operator.index.put_child(child)
        (known,) = operator.index.children(ref)
        assert known.demand.devices == (("nvidia.com/gpu", 2 * workers),), "who lowers it afterwards frees nothing"


@pytest.mark.parametrize(("limits", "expected_s"), [({}, 1000), ({"stopGraceSeconds": 300}, 300)])
def test_the_next_attempt_gets_what_a_stop_needs_within_the_namespaces_bound(
    limits: dict[str, int], expected_s: int
) -> None:
    cluster = FakeCluster()
    operator = Operator(cluster, NOBODY)
    operator.restart(settings_with(**limits))
    ref = apply(cluster, "demo")
    uid = cluster.find("BertPretrainJob", "demo")["metadata"]["uid"]  # type: ignore[index]
    look(operator, ref)
    act(cluster)
    (pod,) = cluster.all("Pod")
    start_pod(cluster, pod)
    saved = parse_progress_line(f"bert-trainer/1 event=checkpoint stage=phase1 step=10 stop_s=500 job={uid} attempt=1")
    operator.told.records = LatestRecords(checkpoint=saved, job=uid)
    look(operator, ref)
    (pod,) = cluster.all("Pod")
    end_pod(cluster, pod, 137)
    for _ in range(6):
        act(cluster)
        look(operator, ref)
        cluster.now_s += 1000
    (child,) = [item for item in cluster.all("Job") if item["metadata"]["name"] == "demo-a2-training"]
    assert child["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == expected_s


def test_resources_without_end_are_counted_and_not_named_one_by_one() -> None:
    amounts = {f"vendor.example/{number}": str(number) for number in range(1, 10_001)}
    pod = {"containers": [{"resources": {"limits": amounts}}]}
    demand = read_demand({"spec": {"template": {"spec": pod}}})
    assert demand.count_devices(frozenset()) == sum(range(1, 10_001))
    assert len(demand.devices) == 16
    assert ("vendor.example/10000", 10_000) in demand.devices
    for number in range(20):
        grown = Demand(devices=tuple((f"vendor.example/{number}-{other}", 1) for other in range(16)))
        demand = demand.at_least(grown)
    assert len(demand.devices) == 16, "not with every change either"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"spec": None},
        {"spec": {"template": {"spec": {"containers": []}}}},
        {"spec": {"template": {"spec": {"containers": [{"args": ["--ranks"], "resources": None}]}}}},
        {"spec": {"template": {"spec": {"containers": [{"args": ["--ranks", "x"], "resources": {"limits": 3}}]}}}},
        {"spec": {"mpiReplicaSpecs": {"Worker": "x"}}},
    ],
)
def test_what_nobody_of_us_wrote_has_no_demand(body: Any) -> None:
    assert read_demand(body) == Demand()
