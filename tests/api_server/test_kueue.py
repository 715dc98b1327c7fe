"""The bench's Kueue is the real one: it holds jobs back, lets the more urgent one go first and says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster_api import Api, wait_until
from control_plane import ControlPlane, namespace_of
from kueue import PRIORITY_LABEL, WORKLOADS, Kueue, cluster_queue, flavor, local_queue, workload_priority

Json = dict[str, Any]

TEAM = "team-a"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """One of its own: Kueue's webhooks would refuse the Jobs of other tests once it is gone."""
    with ControlPlane() as running, Kueue(running):
        make_queues(running.api)
        yield running


def make_queues(api: Api) -> None:
    documents = [
        namespace_of(TEAM),
        flavor("default"),
        cluster_queue("team", {"cpu": "2", "memory": "8Gi"}, flavor="default"),
        local_queue("team", TEAM, cluster_queue="team"),
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


def test_the_bench_has_the_real_kueue(plane: ControlPlane) -> None:
    api = plane.api

    def wait(job: str, kind: str, holds: Callable[[str, str], bool]) -> None:
        wait_until(lambda: holds(*condition_of(api, job, kind)), 30, f"{kind} of {job}")

    first = api.create(queued_job("first"), TEAM).expect()
    assert first["spec"]["suspend"] is True, "its webhook suspends what names a queue"
    wait("first", "Admitted", lambda status, _: status == "True")
    api.create(queued_job("second"), TEAM).expect()
    wait("second", "QuotaReserved", lambda _, message: "insufficient unused quota for cpu in flavor" in message)
    api.create(queued_job("third", **{PRIORITY_LABEL: "urgent"}), TEAM).expect()
    wait("first", "Preempted", lambda status, _: status == "True")
    wait("third", "Admitted", lambda status, _: status == "True")
    wait_until(lambda: api.get("batch/v1/jobs", "first", TEAM).body["spec"]["suspend"], 20, "first to be suspended")
    assert not api.get("batch/v1/jobs", "third", TEAM).body["spec"]["suspend"]
