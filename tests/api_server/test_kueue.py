"""The bench's Kueue is the real one: it holds jobs back, lets the more urgent one go first and says why.

And a BertPretrainJob in one of its queues passes on what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bert_operator.api.crd import render_crd
from cluster_api import Api, wait_until
from cluster_jobs import Jobs
from control_plane import ControlPlane, namespace_of
from kueue import PRIORITY_LABEL, WORKLOADS, Kueue, cluster_queue, flavor, local_queue, workload_priority
from operator_process import OperatorProcess

Json = dict[str, Any]

TEAM = "team-a"
WITHOUT_ROOM, ONE_AT_A_TIME = "without-room", "one-at-a-time"
"""LocalQueues; their ClusterQueues bear the same names."""
REQUESTS = {"cpu": "1", "memory": "1Gi"}


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    """One of its own: Kueue's webhooks would refuse the Jobs of other tests once it is gone."""
    with ControlPlane(definitions=[render_crd()]) as running, Kueue(running):
        make_queues(running.api)
        yield running


@pytest.fixture(scope="module")
def jobs(control_plane: ControlPlane, operator: OperatorProcess) -> Jobs:
    """The jobs of the team."""
    return Jobs(control_plane.api, TEAM)


def make_queues(api: Api) -> None:
    documents = [
        namespace_of(TEAM),
        flavor("default"),
        cluster_queue("team", {"cpu": "2", "memory": "8Gi"}, flavor="default"),
        local_queue("team", TEAM, cluster_queue="team"),
        cluster_queue(WITHOUT_ROOM, {"cpu": "0", "memory": "0"}, flavor="default"),
        local_queue(WITHOUT_ROOM, TEAM, cluster_queue=WITHOUT_ROOM),
        cluster_queue(ONE_AT_A_TIME, {"cpu": "1", "memory": "8Gi"}, flavor="default"),
        local_queue(ONE_AT_A_TIME, TEAM, cluster_queue=ONE_AT_A_TIME),
        workload_priority("urgent", 1000),
    ]
    for document in documents:
        api.create(document).expect()


def queued_job(name: str, **labels: str) -> Json:
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}
    labels = {"kueue.x-k8s.io/queue-name": "team", **labels}
    spec = {"template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}, "spec": spec}


def condition_of(api: Api, job: str, kind: str) -> tuple[str, str]:
    owned = [item for item in api.list(WORKLOADS, TEAM) if item["metadata"]["ownerReferences"][0]["name"] == job]
    conditions = [item for workload in owned for item in workload.get("status", {}).get("conditions") or ()]
    return next(((item["status"], item["message"]) for item in conditions if item["type"] == kind), ("", ""))


def test_the_bench_has_the_real_kueue(control_plane: ControlPlane) -> None:
    api = control_plane.api

    def wait(job: str, kind: str, holds: Callable[[str, str], bool]) -> None:
        wait_until(lambda: holds(*condition_of(api, job, kind)), f"{kind} of {job}")

    first = api.create(queued_job("first"), TEAM).expect()
    assert first["spec"]["suspend"] is True, "its webhook suspends what names a queue"
    wait("first", "Admitted", lambda status, _: status == "True")
    api.create(queued_job("second"), TEAM).expect()
    wait("second", "QuotaReserved", lambda _, message: "insufficient unused quota for cpu in flavor" in message)
    api.create(queued_job("third", **{PRIORITY_LABEL: "urgent"}), TEAM).expect()
    wait("first", "Preempted", lambda status, _: status == "True")
    wait("third", "Admitted", lambda status, _: status == "True")
    # It says first what it decides and then does it.
    wait_until(lambda: api.get("batch/v1/jobs", "first", TEAM).body["spec"]["suspend"], "first to be suspended")
    wait_until(lambda: not api.get("batch/v1/jobs", "third", TEAM).body["spec"]["suspend"], "third to be let go")


def test_what_no_waiting_mends_is_told_with_its_remedy(jobs: Jobs) -> None:
    told = {
        WITHOUT_ROOM: "insufficient quota for cpu in flavor default",
        "nowhere": "LocalQueue nowhere doesn't exist",
    }
    for queue in told:
        jobs.create(f"in-{queue}", queueName=queue, resources=REQUESTS)
    for queue, words in told.items():
        status = jobs.wait(f"in-{queue}", lambda now: now.get("reason") == "Inadmissible", "Inadmissible", 30)
        assert status["phase"] == "Queued"
        assert words in status["message"]
        assert "Next: " in status["message"]
        assert status["queue"]["name"] == queue
        assert "clusterQueue" not in status["queue"]


def test_a_job_tells_for_what_it_waits_that_it_was_taken_out_and_what_admits_it(jobs: Jobs) -> None:
    api = jobs.api
    jobs.create("early", queueName=ONE_AT_A_TIME, resources=REQUESTS)
    status = jobs.wait("early", lambda now: "clusterQueue" in now.get("queue", {}), "what admitted it", 30)
    assert (status["queue"]["clusterQueue"], status["queue"]["flavors"]) == (ONE_AT_A_TIME, ["default"])
    jobs.wait_phase("early", "Pending")  # there is no node

    jobs.create("late", queueName=ONE_AT_A_TIME, resources=REQUESTS)
    status = jobs.wait("late", lambda now: "unused quota" in now.get("message", ""), "Kueue's words", 30)
    assert (status["phase"], status["reason"]) == ("Queued", "Queued")
    assert status["message"].startswith(f"In LocalQueue {ONE_AT_A_TIME}: ")

    workload = status["queue"]["workload"]
    api.patch(WORKLOADS, workload, {"spec": {"active": False}}, TEAM).expect()
    status = jobs.wait("late", lambda now: now["reason"] == "Deactivated", "Deactivated", 30)
    assert f"kubectl -n {TEAM} patch workload {workload}" in status["message"]
    api.patch(WORKLOADS, workload, {"spec": {"active": True}}, TEAM).expect()
    jobs.wait("late", lambda now: now["reason"] == "Queued", "Queued again", 30)

    jobs.delete("early")
    status = jobs.wait_phase("late", "Pending")
    status = jobs.wait("late", lambda now: "clusterQueue" in now["queue"], "what admitted it", 30)
    assert status["queue"]["clusterQueue"] == ONE_AT_A_TIME
    assert "Deactivated" not in (status["reason"], status["message"])
