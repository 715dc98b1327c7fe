"""The test bench is what it says: a real API server with real rules, controllers at work, pods that act."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cluster_api import Api, wait_until
from control_plane import ControlPlane, is_oldest, namespace_of
from kubelet import FakeKubelet

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]
POD_SPEC: Json = {"containers": [{"name": "main", "image": "busybox"}], "restartPolicy": "Never"}


def pod(name: str, **spec: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {**POD_SPEC, **spec}}


def job(name: str) -> Json:
    spec = {"backoffLimit": 0, "template": {"spec": POD_SPEC}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def mpi_job(name: str, workers: int) -> Json:
    def replicas(count: int) -> Json:
        return {"replicas": count, "template": {"spec": {"containers": POD_SPEC["containers"]}}}

    spec = {"slotsPerWorker": 1, "mpiReplicaSpecs": {"Launcher": replicas(1), "Worker": replicas(workers)}}
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": name}, "spec": spec}


def conditions(document: Json) -> dict[str, str]:
    return {item["type"]: item["status"] for item in document.get("status", {}).get("conditions") or []}


def mpi_job_conditions(api: Api, name: str, namespace: str) -> dict[str, str]:
    return conditions(api.get("kubeflow.org/v2beta1/mpijobs", name, namespace).expect())


@pytest.mark.skipif(
    "KUBEBUILDER_ASSETS" in os.environ, reason="requires that KUBEBUILDER_ASSETS brings no other version"
)
def test_the_api_server_is_of_the_pinned_version(api: Api) -> None:
    folder, minor = ("kubernetes-oldest", "v1.31.") if is_oldest() else ("kubernetes", "v1.36.")
    pinned = (ROOT / f"tools/control_plane/{folder}/go.mod").read_text()
    version = api.request("GET", "/version").expect()["gitVersion"]
    assert version.startswith(minor)
    assert f"k8s.io/kubernetes {version}\n" in pinned


def test_a_fresh_service_account_may_do_nothing_until_a_role_says_so(
    control_plane: ControlPlane, api: Api, namespace: str
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}}
    api.create(account, namespace).expect()
    reader = control_plane.api_as(control_plane.service_account_token(namespace, "reader"))
    refused = reader.get("v1/pods", "", namespace)
    assert refused.status == 403
    assert refused.message.startswith(f'pods is forbidden: User "system:serviceaccount:{namespace}:reader" cannot list')

    group = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": "reader"}, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
    }
    for answer in api.create_all([role, binding], namespace):
        answer.expect()
    wait_until(lambda: reader.get("v1/pods", "", namespace).status == 200, "the role to count")
    assert reader.get("v1/secrets", "", namespace).status == 403


def test_a_restricted_namespace_refuses_a_pod_that_may_be_root(api: Api, namespace: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.server_side_apply(namespace_of(namespace, labels)).expect()

    def refusal() -> str:
        answer = api.create(pod("root"), namespace, dry_run=True)
        return answer.message if answer.status == 403 else ""

    assert "runAsNonRoot != true" in wait_until(refusal, "the label to count")
    container = {
        **POD_SPEC["containers"][0],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    api.create(pod("user", containers=[container], securityContext=context), namespace).expect()


def test_unknown_fields_are_refused(api: Api, namespace: str) -> None:
    answer = api.create(pod("typo", restartPolitics="Never"), namespace, dry_run=True)
    assert answer.status == 400
    assert 'unknown field "spec.restartPolitics"' in answer.message


@pytest.mark.parametrize(("ending", "condition"), [("succeed", "Complete"), ("fail", "Failed")])
def test_the_job_controller_makes_a_pod_and_hears_how_it_ended(
    api: Api, namespace: str, ending: str, condition: str
) -> None:
    api.create(job("once"), namespace).expect()
    kubelet = FakeKubelet(api, namespace)
    (made,) = wait_until(lambda: kubelet.pods("job-name=once"), "the job's pod")
    kubelet.run(made)
    getattr(kubelet, ending)(made)
    wait_until(
        lambda: conditions(api.get("batch/v1/jobs", "once", namespace).expect()).get(condition) == "True",
        f"the job to be {condition}",
    )


def test_the_scheduler_finds_no_node(api: Api, namespace: str) -> None:
    api.create(pod("lonely"), namespace).expect()

    def reason() -> str:
        found = api.get("v1/pods", "lonely", namespace).expect()
        return str(next((item["reason"] for item in found["status"].get("conditions") or []), ""))

    assert wait_until(reason, "the scheduler's word") == "Unschedulable"


def test_foreground_deletion_takes_the_owned_objects_first(api: Api, namespace: str) -> None:
    api.create(job("owner"), namespace).expect()
    kubelet = FakeKubelet(api, namespace)
    (made,) = wait_until(lambda: kubelet.pods("job-name=owner"), "the job's pod")
    kubelet.run(made)
    api.delete("batch/v1/jobs", "owner", namespace, propagation="Foreground").expect()

    deleted = wait_until(
        lambda: [each for each in kubelet.pods() if "deletionTimestamp" in each["metadata"]], "the pod's deletion"
    )
    assert len(deleted) == 1
    assert api.get("batch/v1/jobs", "owner", namespace).status == 200, "the owner waits for its pod"
    assert kubelet.remove_deleted() == 1
    wait_until(lambda: api.get("batch/v1/jobs", "owner", namespace).status == 404, "the owner to go")


def test_a_namespace_with_bound_pods_goes_once_they_are_gone(api: Api, namespace: str) -> None:
    passing = f"{namespace}-passing"
    api.create(namespace_of(passing)).expect()
    wait_until(lambda: api.get("v1/serviceaccounts", "default", passing).status == 200, "its ServiceAccount")
    # The controller looks again after half of the grace period.
    api.create(pod("bound", terminationGracePeriodSeconds=1), passing).expect()
    with FakeKubelet(api, passing) as kubelet:
        wait_until(lambda: conditions(kubelet.pods()[0]).get("Ready") == "True", "the pod to run")
        api.delete("v1/namespaces", passing).expect()
        wait_until(lambda: api.get("v1/namespaces", passing).status == 404, "the namespace to go")


def test_an_mpi_job_with_two_workers_runs_and_succeeds(api: Api, namespace: str) -> None:
    api.create(mpi_job("pair", workers=2), namespace).expect()
    with FakeKubelet(api, namespace) as kubelet:
        wait_until(lambda: mpi_job_conditions(api, "pair", namespace).get("Running") == "True", "Running")
        workers = kubelet.pods("training.kubeflow.org/job-role=worker")
        assert sorted(each["metadata"]["name"] for each in workers) == ["pair-worker-0", "pair-worker-1"]
        wait_until(lambda: mpi_job_conditions(api, "pair", namespace).get("Succeeded") == "True", "Succeeded")
    assert mpi_job_conditions(api, "pair", namespace)["Running"] == "False"


def test_an_mpi_job_fails_with_its_launcher(api: Api, namespace: str) -> None:
    document = mpi_job("broken", workers=1)
    document["spec"]["runPolicy"] = {"backoffLimit": 0}
    api.create(document, namespace).expect()
    kubelet = FakeKubelet(api, namespace)
    (launcher,) = wait_until(lambda: kubelet.pods("training.kubeflow.org/job-role=launcher"), "the launcher")
    kubelet.run(launcher)
    kubelet.fail(launcher, oom=True)

    (ended,) = kubelet.pods("training.kubeflow.org/job-role=launcher")
    (container,) = ended["status"]["containerStatuses"]
    assert container["state"]["terminated"]["reason"] == "OOMKilled"
    assert container["state"]["terminated"]["exitCode"] == 137
    wait_until(lambda: mpi_job_conditions(api, "broken", namespace).get("Failed") == "True", "Failed")


def test_mpi_operator_has_the_rights_of_its_release_and_no_more(api: Api) -> None:
    operator = api.as_user("system:serviceaccount:mpi-operator:mpi-operator")
    assert operator.get("v1/pods", "").status == 200
    assert operator.get("v1/nodes", "").status == 403
    assert operator.patch("batch/v1/jobs", "any", {}, "default", subresource="status").status == 403


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_objects_outlive_the_api_server(control_plane: ControlPlane, api: Api, namespace: str, ending: str) -> None:
    note = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note"}, "data": {"word": "kept"}}
    api.create(note, namespace).expect()
    getattr(control_plane.api_server, ending)()
    with pytest.raises(OSError, match="refused"):
        api.get("v1/configmaps", "note", namespace)
    control_plane.api_server.start()
    assert api.get("v1/configmaps", "note", namespace).expect()["data"] == {"word": "kept"}
    # The controllers find it again by themselves.
    api.create(job("after"), namespace).expect()
    wait_until(lambda: api.list("v1/pods", namespace), "the job's pod")


def test_mpi_operator_works_again_after_it_was_killed(control_plane: ControlPlane, api: Api, namespace: str) -> None:
    control_plane.mpi_operator.kill()
    api.create(mpi_job("late", workers=1), namespace).expect()
    control_plane.mpi_operator.start()
    wait_until(lambda: mpi_job_conditions(api, "late", namespace).get("Created") == "True", "Created")


def test_mpi_operator_comes_back_when_it_ends_by_itself(control_plane: ControlPlane) -> None:
    ended = control_plane.mpi_operator.pid
    os.kill(ended, signal.SIGTERM)
    wait_until(lambda: control_plane.mpi_operator.pid not in (0, ended), "another process")
    control_plane.mpi_operator.wait_ready()


def test_a_thousand_dry_run_creations_take_seconds(api: Api, namespace: str) -> None:
    documents = [mpi_job(f"many-{number}", workers=2) for number in range(1000)]
    answers = api.create_all(documents, namespace, dry_run=True)
    assert {answer.status for answer in answers} == {201}
    assert api.list("kubeflow.org/v2beta1/mpijobs", namespace) == []
