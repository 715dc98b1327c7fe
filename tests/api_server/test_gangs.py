"""Pods of a job start together or not at all: the real coscheduling plugin admits what mpi-operator makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bert_operator.api.crd import render_crd
from cluster_api import Api, wait_until
from cluster_jobs import Jobs, condition
from control_plane import ControlPlane, is_oldest, namespace_of
from gang_scheduler import NAME, POD_GROUPS, GangScheduler, pod_groups
from operator_process import OperatorProcess

pytestmark = pytest.mark.skipif(is_oldest(), reason="a scheduler newer than the API server")

Json = dict[str, Any]

TEAM = "team-a"
NODE = "node-1"
POD = {"cpu": "1", "memory": "1Gi"}


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    """One of its own: its mpi-operator makes a PodGroup of every MPIJob."""
    with (
        ControlPlane(definitions=[render_crd(), *pod_groups()], gang_scheduler=NAME) as running,
        GangScheduler(running),
    ):
        running.api.create(namespace_of(TEAM)).expect()
        yield running


@pytest.fixture(scope="module")
def jobs(control_plane: ControlPlane, operator: OperatorProcess) -> Jobs:
    """The jobs of the team."""
    return Jobs(control_plane.api, TEAM)


@pytest.fixture
def node(control_plane: ControlPlane) -> Iterator[None]:
    """A node with room for two pods of the three that a job of two workers has."""
    control_plane.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}).expect()
    # New nodes are not ready, says a taint that the API server gives them; nobody here would take it away.
    control_plane.api.patch("v1/nodes", NODE, {"spec": {"taints": None}}).expect()
    make_room(control_plane.api, 2)
    yield
    control_plane.api.delete("v1/nodes", NODE).expect()


def make_room(api: Api, pods: int) -> None:
    room = {"cpu": str(pods), "memory": "64Gi", "pods": "110"}
    api.patch("v1/nodes", NODE, {"status": {"capacity": room, "allocatable": room}}, subresource="status").expect()


def create(jobs: Jobs, name: str, **policy: Any) -> None:
    scheduling = {"schedulingPolicy": {"scheduleTimeoutSeconds": 5, **policy}}
    # A claim would have to be there, and bound, before anything is scheduled.
    share = {"path": f"runs/{name}", "volume": {"nfs": {"server": "nas.example.com", "path": "/export"}}}
    jobs.create(name, workers=2, resources=POD, launcher={"resources": POD}, scheduling=scheduling, output=share)


def bound(jobs: Jobs, name: str) -> int:
    return sum(1 for pod in jobs.pods(name) if pod["spec"].get("nodeName"))


@pytest.mark.usefixtures("node")
def test_a_job_starts_with_all_its_pods_or_waits_and_says_for_what(control_plane: ControlPlane, jobs: Jobs) -> None:
    create(jobs, "whole")
    status = jobs.wait("whole", lambda now: condition(now, "Blocked").get("status") == "True", "Blocked")
    assert "PodGroup team-a/whole-a1 gets rejected" in status["message"]
    assert "kubectl describe podgroup" in status["message"]
    (group,) = control_plane.api.list(POD_GROUPS, TEAM)
    assert group["spec"]["minMember"] == 3, "two workers and the launcher"
    assert group["spec"]["scheduleTimeoutSeconds"] == 5
    pods = jobs.pods("whole")
    assert len(pods) == 3
    assert {pod["spec"]["schedulerName"] for pod in pods} == {NAME}
    assert bound(jobs, "whole") == 0, "two of them would fit"
    make_room(control_plane.api, 3)
    # Room alone has the plugin look again every five minutes; pods and PodGroups that change, at once.
    changed = {"metadata": {"annotations": {"example.com/changed": "yes"}}}
    control_plane.api.patch(POD_GROUPS, group["metadata"]["name"], changed, TEAM).expect()
    wait_until(lambda: bound(jobs, "whole") == 3, "all pods to have a node", timeout_s=60)
    jobs.delete("whole")
    # No kubelet says that they have ended.
    control_plane.api.request("DELETE", f"/api/v1/namespaces/{TEAM}/pods", {"gracePeriodSeconds": 0}).expect()
    wait_until(lambda: not control_plane.api.list(POD_GROUPS, TEAM), "the PodGroup to go with its job")


@pytest.mark.usefixtures("node")
def test_a_job_that_asks_for_less_starts_with_less(control_plane: ControlPlane, jobs: Jobs) -> None:
    create(jobs, "part", minAvailable=2)
    wait_until(lambda: bound(jobs, "part") == 2, "two pods to have a node", timeout_s=60)
    (group,) = control_plane.api.list(POD_GROUPS, TEAM)
    assert group["spec"]["minMember"] == 2
    jobs.delete("part")
