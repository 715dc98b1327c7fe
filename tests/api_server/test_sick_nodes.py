"""Nodes and devices that are sick, on a real API server: read with the shipped rights, blamed, avoided from then on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bert_operator.timestamps import render_time
from cluster_api import Api, wait_until
from cluster_jobs import Jobs
from kubelet import NODE, FakeKubelet

Json = dict[str, Any]

SICK = {
    "type": "KernelDeadlock",
    "status": "True",
    "reason": "DockerHung",
    "message": "task docker:20744 blocked",
    "lastHeartbeatTime": render_time(1_700_000_000),
    "lastTransitionTime": render_time(1_700_000_000),
}


@pytest.fixture
def sick_node(api: Api) -> Iterator[None]:
    """The node on which the fake kubelet runs pods, of which node-problem-detector has something to say."""
    # As kubelet registers it, in one request: an operator that reads between two takes the node for healthy, for 5 s.
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "status": {"conditions": [SICK]}}
    api.create(node).expect()
    yield
    api.delete("v1/nodes", NODE).expect()


def the_pod(jobs: Jobs, name: str) -> Json:
    wait_until(lambda: len(jobs.pods(name)) == 1, "the pod")
    (pod,) = jobs.pods(name)
    return pod


@pytest.mark.usefixtures("operator", "sick_node")
def test_a_failure_on_a_sick_node_is_infrastructure_and_the_next_attempt_avoids_it(
    api: Api, namespace: str, jobs: Jobs
) -> None:
    kubelet = FakeKubelet(api, namespace)
    jobs.create("demo", runPolicy={"applicationRetries": 0})
    pod = the_pod(jobs, "demo")
    kubelet.run(pod)
    jobs.wait_phase("demo", "Running", attempt=1)
    kubelet.fail(pod, 1)
    status = jobs.wait("demo", lambda it: it.get("failures"), "the failure")
    (failure,) = status["failures"]
    assert (failure["kind"], failure["reason"], failure["node"]) == ("Infrastructure", "DeviceUnhealthy", NODE)
    assert "KernelDeadlock since 2023-11-14T22:13:20Z (DockerHung: task docker:20744 blocked)" in failure["message"]
    assert status["avoidedNodes"] == [NODE]


@pytest.mark.usefixtures("operator")
def test_what_kubelet_says_of_devices_is_read_where_the_cluster_keeps_it(api: Api, namespace: str, jobs: Jobs) -> None:
    kubelet = FakeKubelet(api, namespace)
    # The API server takes a device's health only from pods that ask for such devices.
    jobs.create("demo", resources={"memory": "1Gi", "accelerator": {"resourceName": "nvidia.com/gpu"}})
    pod = the_pod(jobs, "demo")
    kubelet.run(pod)
    jobs.wait_phase("demo", "Running", attempt=1)
    fresh = the_pod(jobs, "demo")
    containers = fresh["status"]["containerStatuses"]
    told = {"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-1", "health": "Unhealthy"}]}
    containers[0]["allocatedResourcesStatus"] = [told]
    change = {"status": {"containerStatuses": containers}}
    api.patch("v1/pods", pod["metadata"]["name"], change, namespace, subresource="status").expect()
    # Where the feature is off, the API server takes the status and leaves this out of it.
    is_kept = "allocatedResourcesStatus" in the_pod(jobs, "demo")["status"]["containerStatuses"][0]
    kubelet.fail(the_pod(jobs, "demo"), 137)
    status = jobs.wait("demo", lambda it: it.get("failures"), "the failure")
    reason = status["failures"][0]["reason"]
    assert reason == ("DeviceUnhealthy" if is_kept else "Killed")
    assert (status.get("avoidedNodes") == [NODE]) == is_kept
