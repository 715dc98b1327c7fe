"""Pods that their node refused, and workers that ended by themselves: whose word counts, and what is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bert_operator.api.schema.status import Failure
from bert_operator.cluster.object_summaries import read_child, read_pod
from bert_operator.cluster.observation import LOST_WORKER_S, is_settling, observe_child
from bert_operator.state.bad_nodes import find_bad_nodes
from bert_operator.state.observed import Child
from child_documents import CREATED_S, at, child_document, ended, pod_document

Document = dict[str, Any]

FAILED_JOB = {"FailureTarget": "BackoffLimitExceeded", "Failed": "BackoffLimitExceeded"}
FAILED_MPI = {"Created": "MPIJobCreated", "Failed": "BackoffLimitExceeded/"}
RUNS = {"Created": "MPIJobCreated", "Running": "MPIJobRunning"}

REFUSALS = {
    "UnexpectedAdmissionError": "Pod was rejected: Allocate failed due to no healthy devices present",
    "OutOfcpu": "Pod was rejected: Node didn't have enough resource: cpu, requested: 27000, capacity: 27500",
    "OutOfmemory": "Node didn't have enough resource: memory",
    "OutOfpods": "Pod was rejected: Node didn't have enough resource: pods",
    "NodeAffinity": "Pod was rejected: Predicate NodeAffinity failed",
    "TopologyAffinityError": "Pod was rejected: Resources cannot be allocated with Topology locality",
    "SMTAlignmentError": "Pod was rejected: SMT Alignment Error",
    "NodeShutdown": "Pod was rejected as the node is shutting down.",
    "AppArmor": "Cannot enforce AppArmor: AppArmor is not enabled on the host",
    "SysctlForbidden": "forbidden sysctl: net.core.somaxconn",
    "PodOSNotSupported": "Failed to admit pod as the OS field doesn't match node OS",
    "OfARelease2030": "says something",
}


def see(child: Document, *pods: Document, now_s: float = CREATED_S + 200) -> Child:
    known = read_child(child)
    assert known is not None
    entries = [read[1] for read in map(read_pod, pods) if read is not None]
    return observe_child(known[1], entries, {}, workers=2, now_s=now_s)


def refused(role: str, reason: str, message: str) -> Document:
    return pod_document(role, phase="Failed", node="node-7", reason=reason, message=message)


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_pod_that_its_node_refused_is_told_with_node_and_words(reason: str) -> None:
    pod, document = refused("single", reason, REFUSALS[reason]), child_document("Job", true=FAILED_JOB)
    now_s = CREATED_S + 101
    child = see(document, pod, now_s=now_s)
    assert (child.state, child.reason, child.exit_code, child.signal) == ("Failed", "PodRejected", None, None)
    assert (child.pod, child.node) == ("demo-a1-training-x0", "node-7")
    assert child.message == (
        f"Pod demo-a1-training-x0 on node node-7 was refused by its kubelet: {reason}: {REFUSALS[reason]}"
    )
    known, read = read_child(document), read_pod(pod)
    assert known is not None
    assert read is not None
    assert not is_settling(known[1], [read[1]], now_s), "no exit code will come"


@pytest.mark.parametrize("role", ["launcher", "worker"])
def test_a_refused_pod_of_several_is_the_cause(role: str) -> None:
    pods = {"launcher": pod_document("launcher"), "worker": pod_document()}
    pods[role] = refused(role, "OutOfcpu", "Node didn't have enough resource: cpu")
    if role == "launcher":
        child = see(child_document(true=FAILED_MPI), *pods.values())
        assert child.message.startswith("Pod demo-a1-launcher-0 on node node-7 was refused")
    else:
        child = see(child_document(true=RUNS), *pods.values(), now_s=CREATED_S + 1)
        assert child.lost.startswith("Pod demo-a1-worker-0 on node node-7 was refused"), "at once: nobody will say more"
    assert (child.reason, child.node) == ("PodRejected", "node-7")


def test_a_refusing_node_is_avoided_from_the_next_attempt_on() -> None:
    failure = Failure(
        run="training",
        attempt=1,
        kind="Infrastructure",
        reason="PodRejected",
        node="node-7",
        finished_at="2026-01-01T00:00:00Z",
    )
    assert find_bad_nodes([failure]) == ("node-7",)


@pytest.mark.parametrize(
    ("reason", "told"), [("Evicted", "Evicted"), ("Preempting", "Disrupted"), ("Terminated", "Disrupted")]
)
def test_a_pod_that_ran_and_was_taken_away_blames_no_node(reason: str, told: str) -> None:
    pod = pod_document("single", phase="Failed", state=ended(137), reason=reason, message="In order to admit others")
    child = see(child_document("Job", true=FAILED_JOB), pod)
    assert child.reason == told
    assert "In order to admit others" in child.message


def test_what_kubelet_says_of_a_whole_pod_is_told_beside_an_exit_code() -> None:
    pod = pod_document("single", phase="Failed", state=ended(143), reason="DeadlineExceeded", message="active too long")
    child = see(child_document("Job", true=FAILED_JOB), pod)
    assert (child.signal, child.message) == (15, "DeadlineExceeded: active too long")


@pytest.mark.parametrize("reason", ["Unknown", "ContainerStatusUnknown"])
def test_the_exit_code_of_a_container_that_nobody_saw_end_is_nobody_s(reason: str) -> None:
    pod = pod_document("single", phase="Failed", state=ended(255, reason=reason))
    child = see(child_document("Job", true=FAILED_JOB), pod)
    assert (child.state, child.reason, child.exit_code, child.signal) == ("Failed", "Killed", None, None)
    assert f"({reason})" in child.message


WORDS = json.dumps({"exitCode": 1, "reason": "NotWritable", "message": "/mnt/output: is not writable"})


@pytest.mark.parametrize(("exit_code", "reason"), [(1, "NotWritable"), (2, "NotWritable"), (64, "NotWritable")])
def test_a_worker_that_ended_by_itself_is_the_programs_failure_with_its_words(exit_code: int, reason: str) -> None:
    worker = pod_document(number=1, phase="Failed", state=ended(exit_code, after=60, message=WORDS))
    launcher_says = json.dumps({"exitCode": 4, "reason": "WorkerLost", "message": "demo-a1-worker-1 did not answer"})
    launcher = pod_document("launcher", phase="Failed", state=ended(4, message=launcher_says))
    for child in (
        see(child_document(true=FAILED_MPI), launcher, worker),
        see(child_document(true=RUNS), pod_document("launcher"), worker, now_s=CREATED_S + 60 + LOST_WORKER_S),
    ):
        assert (child.reason, child.exit_code, child.signal) == (reason, exit_code, None)
        assert (child.pod, child.node) == ("demo-a1-worker-1", "node-1")
        assert f"ended with exit code {exit_code} (Error): /mnt/output: is not writable" in child.message + child.lost


@pytest.mark.parametrize(("exit_code", "reason"), [(1, "Exited"), (2, "RefusedInput")])
def test_a_worker_without_a_record_is_told_by_its_code(exit_code: int, reason: str) -> None:
    worker = pod_document(phase="Failed", state=ended(exit_code, after=60, message="sh: no such file"))
    child = see(child_document(true=RUNS), pod_document("launcher"), worker, now_s=CREATED_S + 60 + LOST_WORKER_S)
    assert (child.reason, child.exit_code) == (reason, exit_code)
    assert "sh: no such file" in child.lost


def test_a_launcher_that_refused_its_input_knows_better_than_its_workers() -> None:
    worker = pod_document(number=1, phase="Failed", state=ended(1, after=60))
    launcher = pod_document("launcher", phase="Failed", state=ended(2, message="mask probability: got 7"))
    child = see(child_document(true=FAILED_MPI), launcher, worker)
    assert (child.exit_code, child.message, child.pod) == (2, "mask probability: got 7", "demo-a1-launcher-0")


@pytest.mark.parametrize(("exit_code", "signal"), [(4, None), (137, 9)])
def test_a_worker_that_was_lost_is_told_with_its_code_and_counts_as_infrastructure(
    exit_code: int, signal: int | None
) -> None:
    worker = pod_document(number=1, phase="Failed", state=ended(exit_code, after=60, message="sshd exited with 255"))
    launcher = pod_document("launcher", phase="Failed", state=ended(1))
    child = see(child_document(true=FAILED_MPI), launcher, worker)
    assert (child.reason, child.exit_code, child.signal) == ("Killed", exit_code, signal)
    assert child.message == (
        f"Pod demo-a1-worker-1 on node node-1: ended with exit code {exit_code} (Error): sshd exited with 255"
    )


def test_a_worker_that_ended_after_the_program_is_no_cause() -> None:
    worker = pod_document(number=1, phase="Failed", state=ended(1, after=95))
    launcher = pod_document("launcher", phase="Failed", state=ended(4, message="lost"))
    assert at(95) > at(90)
    assert see(child_document(true=FAILED_MPI), launcher, worker).message == "lost"
