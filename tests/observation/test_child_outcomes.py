"""The state of a child from what the cluster shows: every cause of a failure, and the pod that failed first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bert_operator.cluster.object_summaries import read_child, read_pod
from bert_operator.cluster.observation import LOST_WORKER_S, SETTLING_S, is_settling, observe_child
from bert_operator.state.observed import Child
from child_documents import CREATED_S, at, child_document, ended, pod_document

Document = dict[str, Any]

FAILED_JOB = {"FailureTarget": "BackoffLimitExceeded", "Failed": "BackoffLimitExceeded"}
FAILED_MPI = {"Created": "MPIJobCreated", "Failed": "BackoffLimitExceeded/"}
DRAINED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}


def see(child: Document, *pods: Document, now_s: float = CREATED_S + 200, workers: int = 2) -> Child:
    known = read_child(child)
    assert known is not None
    entries = [read[1] for read in map(read_pod, pods) if read is not None]
    return observe_child(known[1], entries, {}, workers=workers, now_s=now_s)


def single(exit_code: int, **rest: Any) -> Document:
    return pod_document("single", phase="Failed", state=ended(exit_code, **rest))


def launcher(exit_code: int, **rest: Any) -> Document:
    return pod_document("launcher", phase="Failed", node="node-9", state=ended(exit_code, **rest))


def gone_with(document: Document) -> Document:
    return {**document, "metadata": {**document["metadata"], "deletionTimestamp": at(95)}}


@pytest.mark.parametrize(
    ("exit_code", "state", "signal"),
    [
        (1, "Failed", None),
        (2, "Failed", None),
        (3, "Stopped", None),
        (4, "Failed", None),
        (137, "Failed", 9),
        (143, "Failed", 15),
    ],
)
def test_an_exit_code_is_reported_with_its_pod(exit_code: int, state: str, signal: int | None) -> None:
    child = see(child_document("Job", true=FAILED_JOB), single(exit_code))
    assert (child.state, child.exit_code, child.signal) == (state, exit_code, signal)
    assert (child.pod, child.node) == ("demo-a1-training-x0", "node-1")
    assert child.finished_at_s == CREATED_S + 90


def test_the_program_s_reason_and_message_are_passed_on() -> None:
    record = json.dumps({"exitCode": 1, "reason": "OutOfMemory", "message": "step 12: no memory left"})
    child = see(child_document("Job", true=FAILED_JOB), single(1, message=record))
    assert (child.reason, child.message) == ("OutOfMemory", "step 12: no memory left")
    child = see(child_document("Job", true=FAILED_JOB), single(1, message="Traceback\nValueError: no\n\n"))
    assert (child.reason, child.message) == (None, "ValueError: no")


OOM = pod_document(number=1, phase="Failed", state=ended(137, reason="OOMKilled"))
EVICTED = pod_document(number=1, phase="Failed", reason="Evicted")
DISRUPTED = pod_document(number=1, phase="Failed", conditions=(DRAINED,), state=ended(0, after=93))
KILLED = pod_document(number=1, phase="Failed", state=ended(137, after=88))
RUNC = "OCI runtime create failed: failed to set MOUNT_ATTR_IDMAP on /var/lib/kubelet/pods/1/volumes/results"
MAPPED = pod_document(number=1, phase="Failed", state=ended(128, reason="StartError", message=RUNC))


@pytest.mark.parametrize(
    ("pod", "true", "reason", "signal"),
    [
        (OOM, FAILED_MPI, "OOMKilled", 9),
        (EVICTED, FAILED_MPI, "Evicted", None),
        (EVICTED, {"Failed": "MPIJobEvicted"}, "Evicted", None),
        (DISRUPTED, FAILED_MPI, "Disrupted", None),
        (KILLED, FAILED_MPI, "Killed", 9),
        (MAPPED, FAILED_MPI, "UserNamespaceFailed", None),
    ],
    ids=["memory", "evicted", "evicted, the launcher goes on", "drained", "killed", "not mapped"],
)
def test_what_befell_a_worker_is_the_cause_whatever_the_launcher_made_of_it(
    pod: Document, true: dict[str, str], reason: str, signal: int | None
) -> None:
    child = see(child_document(true=true), launcher(1), pod)
    # Where the pod was killed and not taken away, its exit code is told as well: 128 + 9.
    code = 137 if pod is KILLED else None
    assert (child.state, child.reason, child.exit_code, child.signal) == ("Failed", reason, code, signal)
    assert (child.pod, child.node) == ("demo-a1-worker-1", "node-1")
    assert child.message.startswith("Pod demo-a1-worker-1 on node node-1: ")


def test_a_volume_that_no_user_namespace_can_have_is_named_with_what_to_do() -> None:
    pod = single(128, reason="StartError", message=RUNC)
    child = see(child_document("Job", true=FAILED_JOB), pod)
    assert (child.state, child.reason, child.exit_code) == ("Failed", "UserNamespaceFailed", None)
    assert RUNC in child.message
    assert "use a claim of another file system" in child.message


def test_a_program_that_is_not_there_is_a_matter_of_the_job() -> None:
    pod = single(128, reason="StartError", message='exec: "bert-pod": executable file not found in $PATH')
    assert see(child_document("Job", true=FAILED_JOB), pod).exit_code == 128


def test_an_eviction_whose_pod_is_gone_is_known_by_the_mpi_job() -> None:
    child = see(child_document(true={"Failed": "MPIJobEvicted"}))
    assert (child.state, child.reason, child.pod) == ("Failed", "Evicted", None)


@pytest.mark.parametrize("exit_code", [1, 2, 3])
def test_a_worker_that_is_killed_while_it_is_cleaned_away_is_no_cause(exit_code: int) -> None:
    slow = gone_with(pod_document(number=0, phase="Failed", state=ended(137, after=150)))
    child = see(child_document(true=FAILED_MPI), launcher(exit_code), slow)
    assert (child.exit_code, child.pod) == (exit_code, "demo-a1-launcher-0")


def test_the_pod_that_failed_first_is_named_and_not_those_that_died_of_it() -> None:
    workers = [pod_document(number=n, phase="Failed", state=ended(255, after=after)) for n, after in ((0, 89), (1, 80))]
    assert see(child_document(true=FAILED_MPI), launcher(1), *workers).pod in {"demo-a1-worker-0", "demo-a1-worker-1"}
    oom = pod_document(number=2, phase="Failed", state=ended(137, after=70, reason="OOMKilled"))
    assert see(child_document(true=FAILED_MPI), launcher(1), *workers, oom).pod == "demo-a1-worker-2"


@pytest.mark.parametrize(
    ("host", "workers", "pod", "node"),
    [
        ("demo-a1-worker-1", [0, 1], "demo-a1-worker-1", "node-1"),
        ("demo-a1-worker-1", [], "demo-a1-worker-1", None),
        ("elsewhere", [0, 1], "demo-a1-launcher-0", "node-9"),
        (17, [0, 1], "demo-a1-launcher-0", "node-9"),
    ],
    ids=["still there", "cleaned away", "of nobody", "no name"],
)
def test_the_worker_is_named_whose_rank_the_launcher_saw_fail(
    host: object, workers: list[int], pod: str, node: str | None
) -> None:
    record = json.dumps({"exitCode": 4, "reason": "WorkerLost", "firstFailure": {"host": host}})
    pods = [pod_document(number=number) for number in workers]
    child = see(child_document(true=FAILED_MPI), launcher(4, message=record), *pods)
    assert (child.pod, child.node) == (pod, node)


@pytest.mark.parametrize("kind", ["Job", "MPIJob"])
def test_a_pod_that_is_gone_left_no_exit_code(kind: str) -> None:
    child = see(child_document(kind, true=FAILED_JOB))
    assert (child.state, child.reason, child.exit_code, child.signal) == ("Failed", "PodDeleted", None, None)


def test_the_launcher_may_vanish_while_workers_live() -> None:
    child = see(child_document(true=FAILED_MPI), pod_document(number=0), pod_document(number=1))
    assert (child.state, child.reason, child.pod) == ("Failed", "PodDeleted", None)


def test_a_failure_waits_a_moment_for_its_pod_s_exit_code() -> None:
    document = child_document("Job", true=FAILED_JOB)
    running = pod_document("single")
    early = see(document, running, now_s=CREATED_S + 100 + SETTLING_S)
    assert early.state == "Running"
    late = see(document, running, now_s=CREATED_S + 101 + SETTLING_S)
    assert (late.state, late.reason) == ("Failed", "PodDeleted")
    known, pod = read_child(document), read_pod(running)
    assert known is not None
    assert pod is not None
    assert is_settling(known[1], [pod[1]], CREATED_S + 101)
    assert not is_settling(known[1], [], CREATED_S + 101)
    # By a controller whose clock is an hour ahead: nobody knows when it was, so nobody waits.
    assert not is_settling(known[1], [pod[1]], CREATED_S + 101 - 3600)


@pytest.mark.parametrize(("kind", "true"), [("Job", "Complete"), ("MPIJob", "Succeeded")])
def test_success_is_what_the_controller_says(kind: str, true: str) -> None:
    child = see(child_document(kind, true={true: "Done"}, completionTime=at(120)))
    assert (child.state, child.exit_code, child.finished_at_s) == ("Succeeded", 0, CREATED_S + 120)


def test_a_success_takes_an_eviction_back() -> None:
    document = child_document(true={"Succeeded": "MPIJobSucceeded"})
    document["status"]["conditions"].append({"type": "Failed", "status": "False", "reason": "MPIJobEvicted"})
    assert see(document, EVICTED).state == "Succeeded"


RUNNING = [pod_document("launcher"), pod_document(number=0), pod_document(number=1)]


@pytest.mark.parametrize(
    ("true", "pods", "state"),
    [
        ({}, [], "Pending"),
        ({"Created": "MPIJobCreated"}, RUNNING[:2], "Pending"),
        ({"Created": "MPIJobCreated"}, RUNNING[1:], "Pending"),
        ({"Created": "MPIJobCreated"}, RUNNING, "Running"),
        # Pods tell of the end before their controllers do; a start deadline must not fall into that gap.
        ({}, [pod_document("launcher", phase="Succeeded"), *RUNNING[1:]], "Running"),
        ({}, [launcher(1)], "Running"),
        ({}, [RUNNING[0], RUNNING[1], KILLED], "Running"),
        ({"Running": "MPIJobRunning"}, RUNNING[1:2], "Running"),
    ],
)
def test_an_mpi_job_runs_once_the_launcher_and_all_workers_do(
    true: dict[str, str], pods: list[Document], state: str
) -> None:
    assert see(child_document(true=true), *pods).state == state


@pytest.mark.parametrize(
    ("true", "phase", "state"),
    [
        ({}, "Pending", "Pending"),
        ({}, "Running", "Running"),
        ({}, "Succeeded", "Running"),
        ({}, "Failed", "Running"),
        ({"FailureTarget": "BackoffLimitExceeded"}, "", "Running"),
    ],
)
def test_a_job_runs_from_its_pod_s_start_until_its_controller_says_the_end(
    true: dict[str, str], phase: str, state: str
) -> None:
    pods = [pod_document("single", phase=phase)] if phase else []
    assert see(child_document("Job", true=true), *pods).state == state


LAUNCHER_RUNS = {"Launcher": {"active": 1}, "Worker": {"active": 2}}


@pytest.mark.parametrize(
    ("kind", "true", "status", "state"),
    [
        ("Job", {}, {"active": 1, "ready": 1}, "Running"),
        ("Job", {}, {"active": 1, "ready": 0}, "Pending"),
        ("Job", {}, {"active": 1}, "Pending"),
        ("Job", {}, {"ready": "1"}, "Pending"),
        ("Job", {"Suspended": "JobSuspended"}, {"ready": 1}, "Pending"),
        ("MPIJob", {"Running": "MPIJobRunning"}, {"replicaStatuses": LAUNCHER_RUNS}, "Running"),
        ("MPIJob", {"Created": "MPIJobCreated"}, {"replicaStatuses": LAUNCHER_RUNS}, "Pending"),
        ("MPIJob", {"Running": "MPIJobRunning"}, {"replicaStatuses": {"Worker": {"active": 2}}}, "Pending"),
        ("MPIJob", {"Running": "MPIJobRunning"}, {"replicaStatuses": {"Launcher": {}}}, "Pending"),
    ],
)
def test_pods_whose_labels_were_changed_run_as_their_controller_counts_them(
    kind: str, true: dict[str, str], status: Document, state: str
) -> None:
    assert see(child_document(kind, true=true, **status)).state == state


@pytest.mark.parametrize(("kind", "spec"), [("Job", {"suspend": True}), ("MPIJob", {"runPolicy": {"suspend": True}})])
def test_a_child_that_a_queue_holds_back_is_queued(kind: str, spec: Document) -> None:
    assert see({**child_document(kind), "spec": spec}).state == "Queued"


def test_waiting_counts_from_the_last_time_that_a_queue_let_it_go() -> None:
    assert see(child_document()).waiting_since_s == CREATED_S
    assert see(child_document(startTime=at(3600)), now_s=CREATED_S + 4000).waiting_since_s == CREATED_S + 3600
    let_go_unseen = child_document(true={"Suspended": "MPIJobSuspended"}, startTime=at(0))
    assert see(let_go_unseen).waiting_since_s is None


def test_a_deleted_child_is_stopping_and_not_blocked() -> None:
    blocked = pod_document("single", phase="Pending", state={"waiting": {"reason": "ErrImagePull"}})
    child = see(gone_with(child_document("Job")), blocked)
    assert (child.state, child.stopping, child.blocker) == ("Pending", True, None)


@pytest.mark.parametrize(("off_s", "written_s"), [(3600, 200), (-3600, 0), (0, 90)])
def test_a_child_ended_between_its_creation_and_now_whatever_its_node_says(off_s: float, written_s: float) -> None:
    child = see(child_document("Job", true=FAILED_JOB), single(1, after=90 + off_s))
    assert child.finished_at_s == CREATED_S + written_s


def test_a_child_that_was_let_go_in_an_hour_waits_since_its_pods_were_made() -> None:
    let_go = child_document(startTime=at(3600))
    assert see(let_go, now_s=CREATED_S + 200).waiting_since_s == CREATED_S + 200
    pod = pod_document(phase="Pending", created=150)
    assert see(let_go, pod, now_s=CREATED_S + 200).waiting_since_s == CREATED_S + 150


def test_a_child_that_was_held_for_hours_waits_since_its_pods_were_made_though_its_controller_is_behind() -> None:
    let_go = child_document(startTime=at(3600))
    pod = pod_document(phase="Pending", created=7200)
    assert see(let_go, pod, now_s=CREATED_S + 7200).waiting_since_s == CREATED_S + 7200


RUNS = {"Created": "MPIJobCreated", "Running": "MPIJobRunning"}
LOST = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "could not be located"}}


def test_a_worker_that_has_ended_fails_an_attempt_whose_launcher_does_not_notice() -> None:
    # As after a restart of kubelet between the creation of a container and its start: it lets the pod fail, and the
    # launcher waits for its sshd.
    child = child_document(true=RUNS)
    pods = pod_document("launcher"), pod_document(phase="Failed", state=ended(1)), pod_document(number=1)
    early = see(child, *pods, now_s=CREATED_S + 90 + LOST_WORKER_S - 1)
    assert (early.state, early.lost) == ("Running", ""), "the launcher may still say what happened"
    late = see(child, *pods, now_s=CREATED_S + 90 + LOST_WORKER_S)
    assert late.lost == (
        "Pod demo-a1-worker-0 on node node-1: ended with exit code 1 (Error). The launcher waits for it"
    )
    assert (late.pod, late.node) == ("demo-a1-worker-0", "node-1")
    unknown = see(child, pods[0], pod_document(phase="Failed", state=LOST), now_s=CREATED_S + LOST_WORKER_S)
    assert "(ContainerStatusUnknown)" in unknown.lost


def test_a_worker_that_its_node_has_stopped_is_lost_although_it_ended_well() -> None:
    # kubelet's SIGTERM without a deletion, as when a node shuts down: sshd's pod ends with exit code 0.
    child, launches = child_document(true=RUNS), pod_document("launcher")
    stopped = pod_document(phase="Succeeded", state=ended(0, reason="Completed"))
    pods = launches, stopped, pod_document(number=1)
    assert see(child, *pods, now_s=CREATED_S + 90 + LOST_WORKER_S - 1).lost == ""
    late = see(child, *pods, now_s=CREATED_S + 90 + LOST_WORKER_S)
    assert late.lost == (
        "Pod demo-a1-worker-0 on node node-1: was stopped, exit code 0 (Completed). The launcher waits for it"
    )
    assert (late.reason, late.pod, late.node) == ("Killed", "demo-a1-worker-0", "node-1")
    assert not see(child, launches, gone_with(stopped), now_s=CREATED_S + 500).lost, "its child is being cleaned up"
    assert not see(child, launcher(1), stopped, now_s=CREATED_S + 500).lost


def test_a_lost_worker_s_own_cause_is_told() -> None:
    child, launches = child_document(true=RUNS), pod_document("launcher")
    for ended_by, reason in (("OOMKilled", "OOMKilled"), ("Error", "Killed")):
        worker = pod_document(phase="Failed", state={"terminated": {"exitCode": 137, "reason": ended_by}})
        assert see(child, launches, worker, now_s=CREATED_S + 500).reason == reason
    evicted = pod_document(phase="Failed", reason="Evicted")
    assert see(child, launches, evicted, now_s=CREATED_S + 500).reason == "Evicted"


@pytest.mark.parametrize(("phase", "code"), [("Failed", 1), ("Succeeded", 0)])
@pytest.mark.parametrize("off_s", [-3600, 0, 3600])
def test_a_worker_was_lost_when_the_api_server_was_told_whatever_its_nodes_clock_says(
    off_s: float, phase: str, code: int
) -> None:
    child, launches = child_document(true=RUNS), pod_document("launcher")
    worker = pod_document(phase=phase, state=ended(code, after=90 + off_s))
    worker["metadata"]["managedFields"] = [
        {"manager": "kube-controller-manager", "time": at(0)},
        {"manager": "kubelet", "subresource": "status", "time": at(91)},
    ]
    assert not see(child, launches, worker, now_s=CREATED_S + 90 + LOST_WORKER_S).lost
    assert see(child, launches, worker, now_s=CREATED_S + 91 + LOST_WORKER_S).lost


def test_workers_end_after_their_launcher_and_with_their_child() -> None:
    worker, now_s = pod_document(phase="Failed", state=ended(1)), CREATED_S + 500
    running = child_document(true=RUNS)
    assert not see(running, launcher(1), worker, now_s=now_s).lost, "it is about to end by itself"
    assert not see(gone_with(running), pod_document("launcher"), worker, now_s=now_s).lost
    assert not see(running, pod_document("launcher"), gone_with(worker), now_s=now_s).lost
    assert not see(running, pod_document("launcher"), pod_document(), now_s=now_s).lost
