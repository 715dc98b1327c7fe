"""Why a queue holds a child back, from Workloads as the real Kueue has written them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bert_operator.api.schema.conditions import BlockerReason, FailureReason, Reason
from bert_operator.api.schema.status import QueueStatus
from bert_operator.cluster.object_summaries import read_child
from bert_operator.cluster.observation import observe_child
from bert_operator.cluster.workloads import WorkloadSummary, find_obstacle, read_workload
from bert_operator.names import JobRef
from bert_operator.state.observed import Child
from child_documents import CREATED_S, NAMESPACE, child_document

Document = dict[str, Any]

WORKLOADS: dict[str, Document] = yaml.safe_load(
    (Path(__file__).parents[1] / "fixtures/workloads.yaml").read_text(encoding="utf-8")
)
MORE = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default"
PREEMPTOR = "b80b703a-6a7b-463c-8c96-00d97449a570"
TOLD_BY_KUEUE = (
    f"preempted to accommodate a workload (UID: 8084de45-4a98-4ffb-bbf4-c107748f109f, JobUID: {PREEMPTOR}) due to "
    "prioritization in the ClusterQueue; preemptor path: /cq; preemptee path: /cq"
)


def see(case: str, *, suspended: bool = True, preemptor: JobRef | None = None, **rest: Any) -> Child:
    document = child_document("Job", **rest)
    document["spec"] = {"suspend": suspended}
    document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team"
    known = read_child(document)
    assert known is not None
    workload = read_workload(WORKLOADS[case]) if case else None
    return observe_child(
        known[1],
        [],
        {},
        workers=1,
        now_s=CREATED_S + 10,
        workload=workload,
        preemptor=preemptor,
        namespace=NAMESPACE,
    )


def wait_of(child: Child) -> tuple[Reason, str]:
    assert child.wait is not None
    return child.wait.reason, child.wait.message


@pytest.mark.parametrize(
    ("case", "reason", "message"),
    [
        ("waiting", Reason.QUEUED, f"In LocalQueue team: {MORE}, 1 more needed"),
        ("reactivated", Reason.QUEUED, f"In LocalQueue team: {MORE}, 500m more needed"),
        ("preempted-at-once", Reason.PREEMPTED, f"In LocalQueue team: {TOLD_BY_KUEUE}. it waits for its turn"),
        ("preempted", Reason.PREEMPTED, f"In LocalQueue team: {TOLD_BY_KUEUE}. {MORE}, 1500m more needed"),
    ],
)
def test_a_child_that_waits_tells_it_in_kueue_s_words(case: str, reason: Reason, message: str) -> None:
    child = see(case)
    assert child.state == "Queued"
    assert wait_of(child) == (reason, message)
    assert child.blocker is None, "its turn will come"
    assert child.queue is not None
    assert child.queue.cluster_queue is None, "until the pods are gone the old reservation stands there"


def test_a_preemptor_of_the_same_namespace_is_named() -> None:
    message = wait_of(see("preempted-at-once", preemptor=JobRef(NAMESPACE, "urgent")))[1]
    assert message == (
        "In LocalQueue team: preempted by BertPretrainJob urgent, due to prioritization in the ClusterQueue. "
        "it waits for its turn"
    )
    assert read_workload(WORKLOADS["preempted"]).preemptor == PREEMPTOR


def test_a_preemptor_of_another_namespace_is_nobody_s_business() -> None:
    assert "secret" not in wait_of(see("preempted", preemptor=JobRef("team-b", "secret")))[1]


@pytest.mark.parametrize(
    ("case", "reason", "said", "remedy"),
    [
        ("no-quota", BlockerReason.INADMISSIBLE, "> maximum capacity (0)", "ask for less in spec.resources"),
        ("no-quota-finer", BlockerReason.INADMISSIBLE, "> maximum capacity (0)", "ask for less in spec.resources"),
        ("no-flavor", BlockerReason.INADMISSIBLE, "flavor gpu doesn't match node affinity", "correct spec.scheduling."),
        ("no-flavor-finer", BlockerReason.INADMISSIBLE, "flavor gpu doesn't match node", "correct spec.scheduling."),
        ("stopped-queue", BlockerReason.INADMISSIBLE, "ClusterQueue stopped is inactive", "one is stopped"),
        ("stopped-queue-finer", BlockerReason.INADMISSIBLE, "ClusterQueue stopped is inactive", "one is stopped"),
        ("no-cluster-queue", BlockerReason.INADMISSIBLE, "ClusterQueue nowhere doesn't exist", "have the ClusterQueue"),
        (
            "no-local-queue",
            BlockerReason.INADMISSIBLE,
            "In LocalQueue missing: LocalQueue missing doesn't exist",
            "kubectl -n team-a get localqueues",
        ),
        (
            "deactivated",
            BlockerReason.DEACTIVATED,
            "The workload is deactivated. ",
            'kubectl -n team-a patch workload job-second-327bf --type merge -p \'{"spec":{"active":true}}\'',
        ),
        (
            "pods-not-ready-too-often",
            BlockerReason.DEACTIVATED,
            "deactivated due to exceeding the maximum number of re-queuing retries",
            "kubectl -n team-a patch workload job-slow-14b93 --type merge",
        ),
        (
            "pods-not-ready",
            BlockerReason.PODS_READY_TIMEOUT,
            "Exceeded the PodsReady timeout team-a/job-slow-14b93; it is tried again from 2026-11-25T20:30:24Z on",
            "see what keeps pods from getting ready",
        ),
    ],
)
def test_what_no_waiting_mends_is_a_blocker_with_its_remedy(
    case: str, reason: BlockerReason, said: str, remedy: str
) -> None:
    child = see(case)
    assert child.state == "Queued"
    assert child.blocker is not None
    assert child.blocker.reason == reason
    what, _, next_step = child.blocker.message.partition("Next: ")
    assert said in what
    assert remedy in next_step


def test_a_flavor_that_never_fits_is_no_obstacle_where_another_one_may() -> None:
    told = "couldn't assign flavors to pod set main: flavor gpu doesn't match node affinity, insufficient unused quota"
    assert find_obstacle(workload("no-flavor")._replace(waits=("Pending", told)), NAMESPACE) is None


def workload(case: str) -> WorkloadSummary:
    return read_workload(WORKLOADS[case])


def test_checks_that_an_admission_waits_for_are_told() -> None:
    document = {**WORKLOADS["running"]}
    checks = [{"name": "capacity", "state": "Pending", "message": "no nodes yet"}, {"name": "done", "state": "Ready"}]
    status = {**document["status"], "conditions": [], "admissionChecks": checks}
    document["status"] = status
    known = read_child(child_document("Job"))
    assert known is not None
    held = known[1]._replace(is_suspended=True)
    child = observe_child(held, [], {}, workers=1, now_s=CREATED_S, workload=read_workload(document))
    assert wait_of(child)[1] == (
        "In LocalQueue team: quota is reserved in ClusterQueue cq; admission checks: capacity is Pending (no nodes yet)"
    )


@pytest.mark.parametrize("case", ["running", "readmitted"])
def test_words_from_before_a_queue_took_the_child_back_are_not_repeated(case: str) -> None:
    child = see(case)
    assert (child.state, child.wait, child.blocker) == ("Queued", None, None)


@pytest.mark.parametrize("case", ["running", "readmitted"])
def test_what_has_admitted_a_child_is_told_while_it_runs(case: str) -> None:
    child = see(case, suspended=False)
    assert child.queue == QueueStatus(name="team", workload="job-first-f15cc", cluster_queue="cq", flavors=("default",))
    assert (child.wait, child.blocker) == (None, None)


def test_without_a_workload_the_queue_that_the_child_names_is_all_that_is_told() -> None:
    child = see("")
    assert (child.state, child.wait, child.queue) == ("Queued", None, QueueStatus(name="team"))


def test_a_child_that_ends_asks_for_no_words_of_a_queue() -> None:
    child = see("preempted", true={"Failed": "BackoffLimitExceeded"})
    assert (child.state, child.wait) == ("Failed", None)


def test_an_evicted_worker_of_a_suspended_mpi_job_is_no_fault_of_the_program() -> None:
    document = child_document("MPIJob", true={"Failed": "MPIJobEvicted"})
    document["spec"] = {"runPolicy": {"suspend": True}}
    known = read_child(document)
    assert known is not None
    assert known[1].is_suspended
    child = observe_child(
        known[1], [], {}, workers=1, now_s=CREATED_S, workload=workload("preempted"), namespace=NAMESPACE
    )
    assert (child.state, child.reason, child.exit_code) == ("Failed", FailureReason.EVICTED, None)


def test_a_workload_of_any_shape_is_read() -> None:
    strange = {
        "metadata": None,
        "spec": {"queueName": 7, "active": "no"},
        "status": {
            "conditions": [None, {"type": "QuotaReserved", "status": "False", "message": "x" * 5000}],
            "admission": {"podSetAssignments": [{"flavors": {"cpu": None}}], "clusterQueue": "c" * 5000},
            "requeueState": {"count": "3", "requeueAt": 4},
            "admissionChecks": "none",
        },
    }
    read = read_workload(strange)
    assert (read.name, read.queue, read.is_active, read.evictions) == ("", "", True, 0)
    assert (len(read.waits[1]), len(read.cluster_queue)) == (500, 253)
    assert read_workload({}).waits == ("", "")
