"""Containers that others add to pods decide nothing about the trainer, and are named where they are in its way."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bert_operator.cluster.object_summaries import PodSummary, read_child, read_pod
from bert_operator.cluster.observation import HELD_POD_S, find_main_pod, is_settling, observe_child
from bert_operator.state.observed import Child
from child_documents import CREATED_S, at, child_document, ended, pod_document

Document = dict[str, Any]

FAILED_JOB = {"FailureTarget": "BackoffLimitExceeded", "Failed": "BackoffLimitExceeded"}
RUNNING = {"running": {"startedAt": at(5)}}
STARTING = {"waiting": {"reason": "PodInitializing"}}
NO_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image proxy:9"}}


def container(name: str, state: Document) -> Document:
    return {"name": name, "state": state}


def with_beside(pod: Document, *states: Document) -> Document:
    """Return a pod with more containers, sorted by name as kubelet does."""
    known = pod["status"].get("containerStatuses", [])
    sorted_states = sorted([*known, *states], key=lambda item: str(item["name"]))
    return {**pod, "status": {**pod["status"], "containerStatuses": sorted_states}}


def with_init(pod: Document, *states: Document, restart: str = "") -> Document:
    policy = {"restartPolicy": restart} if restart else {}
    spec = {**pod["spec"], "initContainers": [{"name": item["name"], **policy} for item in states]}
    return {**pod, "spec": spec, "status": {**pod["status"], "initContainerStatuses": list(states)}}


def summary(pod: Document) -> PodSummary:
    read = read_pod(pod)
    assert read is not None
    return read[1]


def see(child: Document, *pods: Document, now_s: float = CREATED_S + 200, workers: int = 2) -> Child:
    known = read_child(child)
    assert known is not None
    return observe_child(known[1], [summary(pod) for pod in pods], {}, workers=workers, now_s=now_s)


def single(exit_code: int, **rest: Any) -> Document:
    return pod_document("single", phase="Failed", state=ended(exit_code, **rest))


@pytest.mark.parametrize("name", ["istio-proxy", "vault-agent"], ids=["before ours", "after ours"])
@pytest.mark.parametrize(
    ("exit_code", "state"),
    [(1, "Failed"), (2, "Failed"), (3, "Stopped"), (4, "Failed"), (137, "Failed")],
)
def test_the_trainer_s_exit_code_counts_and_no_other(name: str, exit_code: int, state: str) -> None:
    record = json.dumps({"exitCode": exit_code, "reason": "Mine", "message": "step 12"})
    for other in (0, 1, 137):
        beside = container(name, ended(other, after=95, reason="OOMKilled", message="proxy: bye"))
        child = see(child_document("Job", true=FAILED_JOB), with_beside(single(exit_code, message=record), beside))
        assert (child.state, child.exit_code, child.reason, child.message) == (state, exit_code, "Mine", "step 12")


def test_a_program_that_is_done_has_succeeded_whatever_ended_badly_beside_it() -> None:
    done = pod_document("single", phase="Failed", state=ended(0, reason="Completed"))
    child = see(child_document("Job", true=FAILED_JOB), with_beside(done, container("istio-proxy", ended(1, after=95))))
    assert (child.state, child.exit_code, child.finished_at_s) == ("Succeeded", 0, CREATED_S + 90)
    # Alone it is no success: what made the Job fail, such as its deadline, is not in the pod.
    assert see(child_document("Job", true=FAILED_JOB), done).state == "Failed"


def test_readiness_and_devices_are_the_trainer_s() -> None:
    pod = with_beside(pod_document("single", state=RUNNING), container("istio-proxy", ended(1)))
    assert summary(pod).exit_code is None
    assert find_main_pod([summary(pod)]) is not None


@pytest.mark.parametrize(
    ("reason", "is_ready", "is_told"),
    [
        ("ContainersNotReady", True, False),
        ("ReadinessGatesNotReady", True, False),
        ("ContainersNotReady", False, True),
        # The node's kubelet tells nothing any more, so that the container's last state stands there for ever.
        ("NodeNotReady", True, True),
        ("", True, True),
    ],
)
def test_a_pod_is_not_blocked_by_the_readiness_of_others(reason: str, is_ready: bool, is_told: bool) -> None:
    unready = {"type": "Ready", "status": "False", "reason": reason, "lastTransitionTime": at(6)}
    pod = pod_document("single", state=RUNNING, conditions=(unready,))
    pod["status"]["containerStatuses"][0]["ready"] = is_ready
    seen = see(child_document("Job", active=1, ready=0), with_beside(pod, container("istio-proxy", RUNNING)))
    assert (seen.state, seen.blocker is not None) == ("Running", is_told)


@pytest.mark.parametrize("restart", ["", "Always"])
def test_an_image_that_a_container_of_others_cannot_have_is_told_with_its_name(restart: str) -> None:
    pod = pod_document("single", phase="Pending", state=STARTING)
    child = see(child_document("Job"), with_init(pod, container("vault-init", NO_IMAGE), restart=restart))
    assert child.blocker is not None
    assert child.blocker.reason == "ImagePullFailed"
    assert "container vault-init: ImagePullBackOff: Back-off pulling image proxy:9" in child.blocker.message
    assert "spec.image" not in child.blocker.message, "it is not the job's"
    beside = with_beside(pod_document("single", phase="Pending", state=RUNNING), container("istio-proxy", NO_IMAGE))
    told = see(child_document("Job"), beside).blocker
    assert told is not None
    assert "container istio-proxy: ImagePullBackOff" in told.message


def test_a_container_that_has_to_run_first_and_does_not_is_a_blocker() -> None:
    looping = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}
    pod = pod_document("single", phase="Pending", state=STARTING)
    child = see(child_document("Job"), with_init(pod, container("istio-proxy", looping), restart="Always"))
    assert child.blocker is not None
    assert child.blocker.reason == "ContainerNotStarting"
    assert "container istio-proxy: CrashLoopBackOff: back-off restarting" in child.blocker.message, "no growing number"
    assert "kubectl logs demo-a1-training-x0 -c istio-proxy" in child.blocker.message


def test_an_init_container_that_fails_is_the_cause_with_its_code_and_words() -> None:
    pod = pod_document("single", phase="Failed", state=STARTING)
    failed = container("vault-init", ended(7, message="login refused\nno role bert"))
    document, now_s = child_document("Job", true=FAILED_JOB), CREATED_S + 101
    child = see(document, with_init(pod, failed), now_s=now_s)
    assert (child.state, child.reason, child.exit_code) == ("Failed", "InitContainerFailed", None)
    assert child.message == (
        "Pod demo-a1-training-x0 on node node-1: init container vault-init ended with exit code 7 (Error) before the "
        "trainer's started: no role bert"
    )
    known = read_child(document)
    assert known is not None
    assert not is_settling(known[1], [summary(with_init(pod, failed))], now_s), "no other exit code will come"


def test_a_worker_whose_init_container_failed_is_not_waited_for() -> None:
    child = child_document(true={"Created": "MPIJobCreated", "Running": "MPIJobRunning"})
    worker = with_init(pod_document(phase="Failed", state=STARTING), container("vault-init", ended(7)))
    seen = see(child, pod_document("launcher", state=RUNNING), worker, pod_document(number=1), now_s=CREATED_S + 1)
    assert (seen.reason, seen.pod) == ("InitContainerFailed", "demo-a1-worker-0")
    assert "init container vault-init ended with exit code 7" in seen.lost


@pytest.mark.parametrize("phases", [("Pending", "Running"), ("Running", "Pending"), ("Pending", "Pending")])
def test_a_worker_that_never_started_ends_an_attempt_whose_other_pods_still_wait(phases: tuple[str, str]) -> None:
    states = {"Pending": STARTING, "Running": RUNNING}
    worker = with_init(pod_document(phase="Failed", state=STARTING), container("vault-init", ended(7)))
    launcher, other = (
        pod_document(role, number, phase=phase, state=states[phase])
        for (role, number), phase in zip((("launcher", 0), ("worker", 1)), phases, strict=True)
    )
    seen = see(child_document(true={"Created": "MPIJobCreated"}), launcher, worker, other, now_s=CREATED_S + 1)
    assert (seen.state, seen.reason, seen.pod) == ("Pending", "InitContainerFailed", "demo-a1-worker-0")
    assert "init container vault-init ended with exit code 7" in seen.lost


def test_a_sidecar_that_goes_on_is_named_and_then_the_trainer_s_end_counts() -> None:
    done = pod_document("single", phase="Running", state=ended(0, reason="Completed"))
    held = with_beside(done, container("istio-proxy", RUNNING), container("logs", RUNNING))
    child = child_document("Job", active=1, ready=0)
    early = see(child, held, now_s=CREATED_S + 90 + HELD_POD_S / 2)
    assert (early.state, early.exit_code) == ("Running", None)
    assert early.blocker is not None
    assert early.blocker.reason == "PodHeld"
    assert "containers istio-proxy and logs of others have not" in early.blocker.message
    late = see(child, held, now_s=CREATED_S + 90 + HELD_POD_S)
    assert (late.state, late.exit_code, late.is_held) == ("Succeeded", 0, True)
    wrong = with_beside(pod_document("single", phase="Running", state=ended(2)), container("istio-proxy", RUNNING))
    refused = see(child, wrong, now_s=CREATED_S + 90 + HELD_POD_S)
    assert (refused.state, refused.exit_code, refused.is_held) == ("Failed", 2, True)


def test_a_sidecar_that_never_started_does_not_keep_a_trainer_that_has_ended() -> None:
    # kubelet calls a pod Pending as long as one of its containers waits, whatever has become of the others.
    done = pod_document("single", phase="Pending", state=ended(0, reason="Completed"))
    held, child = with_beside(done, container("istio-proxy", NO_IMAGE)), child_document("Job", active=1, ready=0)
    early = see(child, held, now_s=CREATED_S + 90 + HELD_POD_S / 2)
    assert early.blocker is not None
    assert (early.state, early.blocker.reason) == ("Running", "PodHeld")
    late = see(child, held, now_s=CREATED_S + 90 + HELD_POD_S)
    assert (late.state, late.exit_code, late.is_held) == ("Succeeded", 0, True)
    launcher = with_beside(
        pod_document("launcher", phase="Pending", state=ended(4)), container("istio-proxy", NO_IMAGE)
    )
    failed = see(child_document(), launcher, pod_document(), pod_document(number=1), now_s=CREATED_S + 90 + HELD_POD_S)
    assert (failed.state, failed.exit_code, failed.is_held) == ("Failed", 4, True)


def test_a_worker_has_ended_with_its_sshd_though_a_sidecar_goes_on() -> None:
    child = child_document(true={"Created": "MPIJobCreated", "Running": "MPIJobRunning"})
    worker = with_beside(pod_document(state=ended(4, message="sshd exited")), container("istio-proxy", RUNNING))
    seen = see(child, pod_document("launcher", state=RUNNING), worker, now_s=CREATED_S + 500)
    assert "Pod demo-a1-worker-0 on node node-1" in seen.lost


def test_native_sidecars_hold_no_pod_and_fail_none() -> None:
    done = pod_document("single", phase="Failed", state=ended(1, message="ValueError: no"))
    pod = with_init(done, container("istio-proxy", ended(137, after=95)), restart="Always")
    child = see(child_document("Job", true=FAILED_JOB), pod)
    assert (child.exit_code, child.message) == (1, "ValueError: no")
