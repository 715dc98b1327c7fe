"""What keeps a job from running is said in its status within a minute, as cause and remedy, and taken back after."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_operator.api.crd import render_crd
from cluster_api import Api, in_parallel, wait_until
from cluster_jobs import CLAIM, NO_SCHEDULER, Jobs, condition
from control_plane import ControlPlane, load_documents, namespace_of
from kubelet import FakeKubelet
from operator_process import JOBS, MANIFESTS, OperatorProcess, install_operator

Json = dict[str, Any]
MINUTE_S = 55.0


class Clock:
    """Prints how long things take."""

    def __init__(self, what: str) -> None:
        self._what, self._began_s = what, time.monotonic()

    def lap(self, step: str) -> None:
        now_s = time.monotonic()
        print(f"{self._what}: {step} after {now_s - self._began_s:.1f} s")
        self._began_s = now_s


def wait_blocked(jobs: Jobs, name: str, reason: str, *words: str) -> Clock:
    """Wait until a job says what blocks it; its message holds these words and a remedy."""
    clock = Clock(reason)
    status = jobs.wait(
        name,
        lambda status: condition(status, "Blocked").get("reason") == reason and status.get("reason") == reason,
        reason,
        MINUTE_S,
    )
    clock.lap("reported")
    message = status["message"]
    assert condition(status, "Blocked")["status"] == "True"
    assert condition(status, "Blocked")["message"] == message
    assert [word for word in (*words, "Next: ") if word not in message] == []
    wait_until(lambda: reason in jobs.events(name), f"an Event {reason}")
    return clock


def wait_cleared(jobs: Jobs, name: str, clock: Clock, phase: str = "Succeeded") -> None:
    status = jobs.wait_phase(name, phase, timeout_s=MINUTE_S)
    clock.lap(phase)
    cleared = condition(status, "Blocked")
    assert (cleared["status"], cleared["reason"]) == ("False", "Cleared")
    assert "Next: " not in status["message"]


def first_pod(jobs: Jobs, name: str) -> Json:
    return wait_until(lambda: jobs.pods(name), "the pod")[0]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("operator")
def test_a_quota_that_leaves_no_room(api: Api, namespace: str, jobs: Jobs, workers: int) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    api.create(quota, namespace).expect()
    wait_until(lambda: api.get("v1/resourcequotas", "none", namespace).body.get("status"), "the quota to count")
    jobs.create("bert", workers=workers)
    clock = wait_blocked(jobs, "bert", "QuotaExceeded", "exceeded quota: none", "spec.resources")
    api.delete("v1/resourcequotas", "none", namespace).expect()
    with FakeKubelet(api, namespace):
        wait_cleared(jobs, "bert", clock)


@pytest.mark.usefixtures("operator")
def test_pod_security_that_forbids_a_volume(api: Api, namespace: str, jobs: Jobs) -> None:
    def enforce(level: str) -> None:
        labels = {"pod-security.kubernetes.io/enforce": level}
        api.server_side_apply(namespace_of(namespace, labels)).expect()

    enforce("restricted")
    share = {"nfs": {"server": "nas.example.com", "path": "/export"}}
    jobs.create("bert", output={"path": "run", "volume": share})
    clock = wait_blocked(jobs, "bert", "PodSecurityViolated", "violates PodSecurity", "nfs", "persistentVolumeClaim")
    enforce("privileged")
    with FakeKubelet(api, namespace):
        wait_cleared(jobs, "bert", clock)


Mishap = Callable[[Api, Json], None]


def wait_in_vain(reason: str, message: str) -> Mishap:
    return lambda api, pod: FakeKubelet(api).wait_image(pod, reason, message)


def fail_to_mount(api: Api, pod: Json) -> None:
    FakeKubelet(api).wait_image(pod, "ContainerCreating", "")
    metadata = pod["metadata"]
    subject = {"kind": "Pod", "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]}
    now = metadata["creationTimestamp"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.mount", "namespace": metadata["namespace"]},
        "involvedObject": {"apiVersion": "v1", **subject},
        "type": "Warning",
        "reason": "FailedMount",
        "message": "MountVolume.SetUp failed for volume output: mount.nfs: access denied by server",
        "firstTimestamp": now,
        "lastTimestamp": now,
    }
    api.create(event, metadata["namespace"]).expect()


@pytest.mark.parametrize(
    ("happens", "reason", "words"),
    [
        pytest.param(
            wait_in_vain("ImagePullBackOff", "Back-off pulling image: not found"),
            "ImagePullFailed",
            ["not found", "spec.image"],
            id="image",
        ),
        pytest.param(
            wait_in_vain("CreateContainerConfigError", 'secret "keys" not found'),
            "ContainerConfigInvalid",
            ['secret "keys" not found', "create the Secret"],
            id="secret",
        ),
        pytest.param(fail_to_mount, "VolumeFailed", ["access denied by server", "NFS"], id="mount"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("operator")
def test_a_pod_that_cannot_start(
    api: Api,
    namespace: str,
    jobs: Jobs,
    happens: Mishap,
    reason: str,
    words: list[str],
    workers: int,
) -> None:
    jobs.create("bert", workers=workers)
    pod = first_pod(jobs, "bert")
    happens(api, pod)
    clock = wait_blocked(jobs, "bert", reason, pod["metadata"]["name"], *words)
    with FakeKubelet(api, namespace):
        wait_cleared(jobs, "bert", clock)


@pytest.mark.usefixtures("operator")
def test_pods_for_which_no_node_is_large_enough(api: Api, namespace: str, jobs: Jobs) -> None:
    jobs.create("bert", scheduling={})
    clock = wait_blocked(jobs, "bert", "Unschedulable", "bert-a1-training-", "kubectl get nodes")
    with FakeKubelet(api, namespace):
        wait_cleared(jobs, "bert", clock)


def test_two_hundred_jobs_that_no_node_can_take_hold_up_nobody(
    operator: OperatorProcess, api: Api, namespace: str, jobs: Jobs
) -> None:
    names = [f"wide-{number:03}" for number in range(200)]
    clock = Clock("200 unschedulable jobs")
    in_parallel(lambda name: jobs.create(name, scheduling={}), names)

    def seen() -> dict[str, Json]:
        return {item["metadata"]["name"]: item for item in api.list(JOBS, namespace)}

    def waiting() -> list[str]:
        found = seen()
        return [name for name in names if (found[name].get("status") or {}).get("reason") != "Unschedulable"]

    wait_until(lambda: not waiting(), lambda: f"Unschedulable of {waiting()}")
    clock.lap("reported")
    # Its pod asks another scheduler, which this kubelet plays: a job that fits is not behind those that do not.
    jobs.create("small")
    child = wait_until(lambda: jobs.children("small"), "the child of a job that fits")[0]
    clock.lap("the child of another job")
    assert jobs.children("wide-000") != []
    # Each says its reason once. What time changes is no news: nothing is written while they wait.
    before = seen()
    operator.wait_resyncs(2)
    after = seen()
    assert [name for name in names if after[name] != before[name]] == []
    with FakeKubelet(api, namespace):
        for name in ("small", names[0], names[-1]):
            jobs.wait_phase(name, "Succeeded", timeout_s=MINUTE_S)
    clock.lap("Succeeded once there are nodes")
    assert child["metadata"]["uid"] == jobs.status("small")["child"]["uid"]


@pytest.mark.parametrize(("resource", "name"), [("ConfigMap", "bert-frozen")])
@pytest.mark.usefixtures("operator")
def test_a_name_that_somebody_else_has_taken(api: Api, namespace: str, jobs: Jobs, resource: str, name: str) -> None:
    containers = [{"name": "main", "image": "busybox"}]
    template = {"spec": {"containers": containers, "restartPolicy": "Never", **NO_SCHEDULER}}
    bodies: dict[str, Json] = {
        "Job": {"apiVersion": "batch/v1", "spec": {"suspend": True, "template": template}},
        "ConfigMap": {"apiVersion": "v1"},
    }
    foreign = api.create({"kind": resource, "metadata": {"name": name}, **bodies[resource]}, namespace).expect()
    jobs.create("bert")
    clock = wait_blocked(jobs, "bert", "NameTaken", f"{resource} {name}", "or rename the job")
    path = api.path_for(foreign, namespace)
    assert api.request("GET", path).expect()["metadata"]["uid"] == foreign["metadata"]["uid"], "it is not ours"
    api.request("DELETE", path, {"propagationPolicy": "Background"}).expect()
    with FakeKubelet(api, namespace):
        wait_cleared(jobs, "bert", clock)


@pytest.mark.parametrize(
    ("volume", "path", "next_step"),
    [
        pytest.param(None, "spec.output.volume", "persistentVolumeClaim: {claimName: results}", id="no volume"),
        pytest.param({"hostPath": {"path": "/srv"}}, "spec.output.volume.hostPath", "allowHostPath", id="hostPath"),
    ],
)
@pytest.mark.usefixtures("operator")
def test_a_job_that_is_not_for_this_cluster(
    api: Api, namespace: str, jobs: Jobs, volume: Json | None, path: str, next_step: str
) -> None:
    jobs.create("bert", output={"path": "runs/bert", **({"volume": volume} if volume else {})}, dataset={"path": "/d"})
    clock = Clock(path)
    status = jobs.wait_phase("bert", "Invalid")
    clock.lap("reported")
    told = condition(status, "Valid")
    assert (told["status"], told["reason"], status["attempt"]) == ("False", "SpecInvalid", 0)
    assert path in status["message"]
    assert next_step in status["message"]
    assert jobs.children("bert") == []
    # Events are written after the status.
    wait_until(lambda: "SpecInvalid" in jobs.events("bert"), "the Event")
    jobs.change("bert", output={"volume": {"hostPath": None, **CLAIM}}).expect()
    with FakeKubelet(api, namespace):
        status = jobs.wait_phase("bert", "Succeeded")
    clock.lap("Succeeded")
    assert condition(status, "Valid")["status"] == "True"


@pytest.mark.usefixtures("operator")
def test_a_dry_run_that_is_refused_is_told_once(jobs: Jobs) -> None:
    """Its object has a name that the API server makes up anew each time; a status with it was written at each retry."""
    user = {"runAsUser": 1000, "fsGroup": 600, "hostUsers": False}  # a field that is tried first
    spread = [{"topologyKey": "zone", "maxSkew": skew} for skew in (1, 2)]  # each key once, says the definition
    jobs.create(
        "bert", workers=2, securityContext=user, scheduling={**NO_SCHEDULER, "topologySpreadConstraints": spread}
    )
    clock = Clock("refused")
    status = jobs.wait("bert", lambda status: condition(status, "Blocked").get("reason") == "Rejected", "the refusal")
    clock.lap("reported")
    assert 'MPIJob.kubeflow.org "bert-a1" is invalid' in condition(status, "Blocked")["message"]


def test_an_mpi_operator_that_does_not_run(
    operator: OperatorProcess, control_plane: ControlPlane, api: Api, namespace: str, jobs: Jobs
) -> None:
    control_plane.mpi_operator.kill()
    try:
        jobs.create("bert", workers=2)
        clock = wait_blocked(jobs, "bert", "MPIOperatorSilent", "MPIJob bert-a1", "kubectl get deployments")
    finally:
        control_plane.mpi_operator.start()
    with FakeKubelet(api, namespace):
        wait_cleared(jobs, "bert", clock)


@pytest.fixture(scope="module")
def bare_control_plane() -> Iterator[ControlPlane]:
    """A cluster on which nobody has installed mpi-operator."""
    start = ("etcd", "kube-apiserver", "kube-controller-manager")
    with ControlPlane(start=start, definitions=[render_crd()]) as running:
        yield running


def test_a_cluster_without_mpi_jobs(bare_control_plane: ControlPlane, tmp_path: Path) -> None:
    api = bare_control_plane.api
    config = bare_control_plane.kubeconfig(install_operator(bare_control_plane))
    jobs = Jobs(api, "default")
    with OperatorProcess(tmp_path, config) as operator, FakeKubelet(api, "default"):
        running = operator.pid
        jobs.create("bert", workers=2)
        clock = wait_blocked(jobs, "bert", "MPIJobAPIMissing", "mpijobs.kubeflow.org")
        jobs.create("single")
        jobs.wait_phase("single", "Succeeded")
        bare_control_plane.install_mpi_operator()
        bare_control_plane.mpi_operator.start()
        wait_cleared(jobs, "bert", clock)
        assert operator.pid == running


GROUP = "rbac.authorization.k8s.io"


def grant(api: Api, namespace: str, account: str, *, without: tuple[str, str] | None = None) -> None:
    """Give an account the operator's rights in one namespace, but for one resource and verb."""
    (shipped,) = [item for item in load_documents(MANIFESTS / "base/rbac.yaml") if item["kind"] == "ClusterRole"]
    for rule in shipped["rules"]:
        if without and without[0] in rule["resources"]:
            rule["verbs"].remove(without[1])
    role = {"apiVersion": f"{GROUP}/v1", "kind": "Role", "metadata": {"name": account}, "rules": shipped["rules"]}
    binding = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": account},
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    for document in (role, binding):
        api.server_side_apply(document, namespace).expect()


def test_an_operator_that_lacks_a_right_in_the_namespace(
    operator: OperatorProcess, control_plane: ControlPlane, api: Api, namespace: str, jobs: Jobs, tmp_path: Path
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "poor"}}
    api.create(account, namespace).expect()
    config = control_plane.kubeconfig(control_plane.service_account_token(namespace, "poor"))
    operator.kill()  # it has the rights of the whole cluster
    limited = OperatorProcess(tmp_path, config, namespaces=[namespace])
    try:
        # No binding yet: there is no place to say so but its log and its probe.
        limited.launch()
        wait_until(lambda: "cannot list resource" in limited.log(), "a word in the log")
        assert limited.page("/readyz")[0] == 503
        grant(api, namespace, "poor", without=("jobs", "create"))
        clock = Clock("no binding")
        limited.wait_ready()
        clock.lap("ready")
        jobs.create("bert")
        clock = wait_blocked(jobs, "bert", "Forbidden", "cannot create resource", "granted")
        grant(api, namespace, "poor")
        with FakeKubelet(api, namespace):
            wait_cleared(jobs, "bert", clock)
    finally:
        limited.kill()
        operator.start()
