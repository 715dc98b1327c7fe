"""Sick nodes and devices, by conditions and kubelet's words: told while a child runs, blamed when it fails."""

from __future__ import annotations

from typing import Any

import pytest

from bert_operator.api.schema.conditions import FailureReason, Reason
from bert_operator.cluster.index import Index
from bert_operator.cluster.node_summaries import read_node
from bert_operator.cluster.object_summaries import read_child, read_pod
from bert_operator.cluster.observation import observe_child
from bert_operator.state.observed import Child
from child_documents import CREATED_S, at, child_document, ended, pod_document

Document = dict[str, Any]

FAILED_JOB = {"FailureTarget": "BackoffLimitExceeded", "Failed": "BackoffLimitExceeded"}
FAILED_MPI = {"Created": "MPIJobCreated", "Failed": "BackoffLimitExceeded/"}
RUNNING = {"Running": "MPIJobRunning"}
NOT_READY = ("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
XID = ("GpuXidError", "True", "Xid79", "GPU has fallen off the bus")
GPU: Document = {
    "name": "nvidia.com/gpu",
    "resources": [
        {"resourceID": "GPU-0", "health": "Healthy"},
        {"resourceID": "GPU-1", "health": "Unhealthy", "message": "Xid 79"},
    ],
}


def node(*conditions: tuple[str, str, str, str]) -> Document:
    told = [
        {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at(60)}
        for kind, status, reason, message in conditions
    ]
    return {"metadata": {"name": "node-1"}, "status": {"conditions": told}}


def with_devices(pod: Document, *devices: Document) -> Document:
    status = pod["status"]
    (container,) = status.get("containerStatuses") or [{"name": "trainer", "state": {"running": {"startedAt": at(5)}}}]
    return {
        **pod,
        "status": {**status, "containerStatuses": [{**container, "allocatedResourcesStatus": list(devices)}]},
    }


def see(child: Document, *pods: Document, nodes: dict[str, Document] | None = None) -> Child:
    known = read_child(child)
    assert known is not None
    entries = [read[1] for read in map(read_pod, pods) if read is not None]
    read_nodes = {name: read_node(name, body) for name, body in (nodes or {}).items()}
    return observe_child(known[1], entries, {}, workers=2, now_s=CREATED_S + 200, nodes=read_nodes)


def single(exit_code: int, **rest: Any) -> Document:
    return pod_document("single", phase="Failed", state=ended(exit_code, **rest))


def problems(*conditions: tuple[str, str]) -> list[str]:
    return [it.kind for it in read_node("node-1", node(*((*one, "", "") for one in conditions))).problems]


def test_conditions_of_kubernetes_and_of_agents_are_read_in_their_sense() -> None:
    good = [
        ("Ready", "True"),
        ("MemoryPressure", "False"),
        ("KernelDeadlock", "False"),
        ("NetworkUnavailable", "False"),
    ]
    good += [
        ("KernelReady", "True"),
        ("KernelReady", "Unknown"),
        ("VMEventScheduled", "True"),
        ("DiskPressure", "Unknown"),
    ]
    assert problems(*good) == []
    bad = [("Ready", "False"), ("Ready", "Unknown"), ("DiskPressure", "True"), ("NetworkUnavailable", "True")]
    bad += [("ReadonlyFilesystem", "True"), ("FrequentKubeletRestart", "True"), ("AcceleratedHardwareReady", "False")]
    assert problems(*bad) == [kind for kind, _ in bad]


@pytest.mark.parametrize("body", [{}, {"status": None}, {"status": {"conditions": [{}]}}])
def test_a_node_that_says_nothing_is_not_sick(body: Document) -> None:
    assert read_node("node-1", body).problems == ()


@pytest.mark.parametrize(
    ("devices", "sick"),
    [
        ((), ""),
        (({"name": "nvidia.com/gpu"},), ""),
        (({"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-0", "health": "Unknown"}]},), ""),
        ((GPU,), "nvidia.com/gpu GPU-1 is unhealthy (Xid 79)"),
    ],
)
def test_only_devices_that_are_called_unhealthy_are(devices: tuple[Document, ...], sick: str) -> None:
    read = read_pod(with_devices(pod_document(), *devices))
    assert read is not None
    assert read[1].sick_devices == sick


def test_a_cluster_that_drops_the_field_says_nothing() -> None:
    read = read_pod(pod_document(state={"running": {"startedAt": at(5)}}))
    assert read is not None
    assert read[1].sick_devices == ""


def test_a_pod_that_has_ended_keeps_the_devices_that_were_sick() -> None:
    index = Index()
    index.put_pod(with_devices(pod_document("single"), GPU))
    index.put_pod(single(1))
    (pod,) = [pod for ref in [index.put_pod(single(2))] if ref for pod in index.all_pods(ref)]
    assert "GPU-1" in pod.sick_devices


@pytest.mark.parametrize("exit_code", [1, 4, 137])
def test_a_sick_device_is_the_cause_whatever_the_program_exits_with(exit_code: int) -> None:
    child = see(child_document("Job", true=FAILED_JOB), with_devices(single(exit_code, message="CUDA error"), GPU))
    assert (child.reason, child.exit_code, child.node) == (FailureReason.DEVICE_UNHEALTHY, None, "node-1")
    assert child.message.startswith(
        "Pod demo-a1-training-x0 on node node-1: nvidia.com/gpu GPU-1 is unhealthy (Xid 79)"
    )
    assert f"exit code {exit_code}" in child.message


def test_the_worker_with_the_sick_device_is_blamed_and_not_its_peer() -> None:
    record = '{"exitCode": 1, "firstFailure": {"rank": 0, "host": "demo-a1-worker-0"}, "message": "NCCL error"}'
    launcher = pod_document("launcher", phase="Failed", node="node-9", state=ended(1, message=record))
    workers = [pod_document(number=number, node=f"node-{number}") for number in range(2)]
    child = see(child_document(true=FAILED_MPI), launcher, workers[0], with_devices(workers[1], GPU))
    assert (child.reason, child.pod, child.node) == ("DeviceUnhealthy", "demo-a1-worker-1", "node-1")


def test_of_several_sick_nodes_that_of_the_pod_that_failed_first_is_blamed() -> None:
    record = '{"exitCode": 4, "firstFailure": {"rank": 1, "host": "demo-a1-worker-1"}}'
    launcher = pod_document("launcher", phase="Failed", node="node-9", state=ended(4, message=record))
    workers = [pod_document(number=number, node=f"node-{number}") for number in range(2)]
    nodes: dict[str, Document] = {f"node-{number}": node(XID) for number in (0, 1, 9)}
    child = see(child_document(true=FAILED_MPI), launcher, *workers, nodes=nodes)
    assert (child.pod, child.node) == ("demo-a1-worker-1", "node-1")
    del nodes["node-0"], nodes["node-1"]
    child = see(child_document(true=FAILED_MPI), launcher, *workers, nodes=nodes)
    assert child.reason is None, "the launcher's node computes nothing"


@pytest.mark.parametrize(
    ("condition", "exit_code", "reason"),
    [
        (XID, 1, "DeviceUnhealthy"),
        (XID, 137, "DeviceUnhealthy"),
        (NOT_READY, 137, "DeviceUnhealthy"),
        (("MemoryPressure", "True", "", ""), 137, "DeviceUnhealthy"),
        (("FrequentKubeletRestart", "True", "", ""), 137, "DeviceUnhealthy"),
        # None of these makes a program raise an error of its own.
        (("FrequentKubeletRestart", "True", "", ""), 1, None),
        (NOT_READY, 1, None),
        (("MemoryPressure", "True", "", ""), 1, None),
        # Wrong input is wrong on any node.
        (XID, 2, None),
        (("Ready", "True", "", ""), 137, None),
    ],
)
def test_a_sick_node_is_the_cause_of_what_it_explains(
    condition: tuple[str, str, str, str], exit_code: int, reason: str | None
) -> None:
    child = see(child_document("Job", true=FAILED_JOB), single(exit_code), nodes={"node-1": node(condition)})
    assert child.reason == reason
    assert (child.exit_code is None) == (reason is not None)
    assert (condition[0] in child.message or "not ready" in child.message) == (reason is not None)


@pytest.mark.parametrize("kind", ["FrequentContainerdRestart", "NetworkUnavailable", "Ready", "ReadonlyFilesystem"])
@pytest.mark.parametrize("reason", ["TrainingUnhealthy", "Failed"])
def test_training_that_goes_wrong_and_a_bug_blame_no_node_for_what_does_not_cause_them(kind: str, reason: str) -> None:
    status = "False" if kind == "Ready" else "True"
    pod = single(1, message=f'{{"exitCode": 1, "reason": "{reason}", "message": "the loss is not finite"}}')
    child = see(child_document("Job", true=FAILED_JOB), pod, nodes={"node-1": node((kind, status, "", ""))})
    breaks_programs = kind == "ReadonlyFilesystem" and reason == "Failed"
    assert (child.reason, child.exit_code) == (("DeviceUnhealthy", None) if breaks_programs else (reason, 1))
    sick = see(child_document("Job", true=FAILED_JOB), with_devices(pod, GPU))
    assert sick.reason == "DeviceUnhealthy"


def test_a_gpu_that_is_missing_because_it_is_sick_is_no_wrong_input() -> None:
    pod = single(2, message='{"exitCode": 2, "reason": "DeviceUnusable", "message": "found 7 GPUs"}')
    assert see(child_document("Job", true=FAILED_JOB), pod).exit_code == 2
    child = see(child_document("Job", true=FAILED_JOB), with_devices(pod, GPU))
    assert (child.reason, child.exit_code) == ("DeviceUnhealthy", None)


@pytest.mark.parametrize(
    ("ended_by", "disruption"),
    [("OOMKilled", None), ("Error", "EvictionByEvictionAPI"), ("Error", "PreemptionByScheduler")],
)
def test_what_explains_a_failure_better_stays_its_cause(ended_by: str, disruption: str | None) -> None:
    conditions: tuple[Document, ...] = ()
    if disruption:
        conditions = ({"type": "DisruptionTarget", "status": "True", "reason": disruption},)
    pod = pod_document("single", phase="Failed", state=ended(137, reason=ended_by), conditions=conditions)
    child = see(child_document("Job", true=FAILED_JOB), pod, nodes={"node-1": node(NOT_READY)})
    assert child.reason == ("OOMKilled" if disruption is None else "Disrupted")


def test_a_pod_removed_from_a_node_that_does_not_answer_blames_the_node() -> None:
    taint = ({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},)
    pod = pod_document("single", phase="Failed", state=ended(137), conditions=taint)
    child = see(child_document("Job", true=FAILED_JOB), pod, nodes={"node-1": node(NOT_READY)})
    assert (child.reason, child.node) == ("DeviceUnhealthy", "node-1")


def running(*pods: Document, nodes: dict[str, Document] | None = None) -> Child:
    launcher = pod_document("launcher", node="node-9")
    return see(child_document(true=RUNNING), launcher, *pods, nodes=nodes)


def test_a_node_that_does_not_answer_is_named_with_its_time_while_the_child_runs() -> None:
    child = running(pod_document(number=0), pod_document(number=1, node="node-2"), nodes={"node-2": node(NOT_READY)})
    assert child.state == "Running"
    assert child.finding is not None
    assert child.finding.reason == Reason.NODE_NOT_READY
    assert child.finding.message == (
        f"Node node-2 has been not ready since {at(60)} (NodeStatusUnknown: Kubelet stopped posting node status.); "
        "pod demo-a1-worker-1 runs there. The attempt goes on"
    )


def test_other_conditions_and_devices_are_named_while_the_child_runs() -> None:
    nodes: dict[str, Document] = {"node-1": node(XID), "node-2": node(XID, NOT_READY)}
    workers = pod_document(number=0), pod_document(number=1, node="node-2")
    assert running(*workers).finding is None
    finding = running(*workers, nodes=nodes).finding
    assert finding is not None
    assert finding.reason == Reason.NODE_NOT_READY
    assert "1 more nodes of this job" in finding.message
    finding = running(*workers, nodes={"node-1": node(XID)}).finding
    assert finding is not None
    assert finding.reason == Reason.NODE_CONDITION
    assert f"Node node-1 has GpuXidError since {at(60)} (Xid79: GPU has fallen off the bus)" in finding.message
    finding = running(workers[0], with_devices(workers[1], GPU), nodes=nodes).finding
    assert finding is not None
    assert finding.reason == Reason.DEVICE_UNHEALTHY


def test_the_nodes_of_a_running_child_s_pods_are_known() -> None:
    child = running(pod_document(number=0))
    assert child.pod_nodes == (("demo-a1-launcher-0", "node-9"), ("demo-a1-worker-0", "node-1"))


def test_a_node_is_news_for_the_jobs_above_it_only_when_its_trouble_changes() -> None:
    index = Index()
    metadata = {"name": "demo", "namespace": "team-a", "uid": "job-uid", "resourceVersion": "1", "generation": 1}
    index.put_job({"kind": "BertPretrainJob", "metadata": metadata, "spec": {}, "status": {}})
    ref = index.put_pod(pod_document())
    assert index.nodes_of_pods() == {"node-1"}
    assert index.put_node("node-1", node(("Ready", "True", "", ""))) == []
    assert index.put_node("node-2", node(NOT_READY)) == []
    before = index.revision(ref) if ref else 0
    assert index.put_node("node-1", node(NOT_READY)) == [ref]
    assert ref is not None
    assert index.revision(ref) > before
    assert index.put_node("node-1", node(NOT_READY)) == []
    assert index.put_node("node-1", node(("Ready", "True", "", ""))) == [ref]
    index.keep_nodes({"node-1"})
    assert set(index.nodes()) == {"node-1"}
