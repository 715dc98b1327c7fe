"""What a tenant reaches who may only create jobs, and one with Kubernetes' own ``edit``: the namespace is the border.

The table of rights is asked of the API server's authorizer. What a job's pods reach is read off the pods that the
operator has the API server make. SECURITY.md draws the conclusions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster_api import Api, wait_until
from cluster_jobs import CLAIM, Jobs, job_document
from control_plane import load_documents
from kubelet import FakeKubelet
from operator_process import JOBS, MANIFESTS, OperatorProcess

Json = dict[str, Any]

RBAC = "rbac.authorization.k8s.io"
SUBMITTER, EDITOR = "submitter", "editor"
OWN, OTHER, OPERATORS = "own", "kube-system", "bert-operator"

# Verb, group and resource, namespace: and who may do that.
RIGHTS: dict[tuple[str, str, str], set[str]] = {
    ("create", "bert-operator.dev/bertpretrainjobs", OWN): {SUBMITTER, EDITOR},
    ("get", "bert-operator.dev/bertpretrainjobs", OWN): {EDITOR},
    ("patch", "bert-operator.dev/bertpretrainjobs", OWN): {EDITOR},
    ("delete", "bert-operator.dev/bertpretrainjobs", OWN): {EDITOR},
    # Who may write these is believed: attempts, failures, the hash of what is run, the image.
    ("patch", "bert-operator.dev/bertpretrainjobs/status", OWN): set(),
    ("update", "bert-operator.dev/bertpretrainjobs/status", OWN): set(),
    ("update", "bert-operator.dev/bertpretrainjobs/finalizers", OWN): set(),
    ("patch", "/pods/status", OWN): set(),
    # Kubernetes' own edit.
    ("get", "/secrets", OWN): {EDITOR},
    ("create", "/pods", OWN): {EDITOR},
    ("create", "/pods/exec", OWN): {EDITOR},
    ("get", "/pods/log", OWN): {EDITOR},
    ("create", "/configmaps", OWN): {EDITOR},
    ("delete", "/configmaps", OWN): {EDITOR},
    ("patch", "batch/jobs", OWN): {EDITOR},
    ("create", "/serviceaccounts/token", OWN): {EDITOR},
    # Bounds of the namespace.
    ("delete", "/resourcequotas", OWN): set(),
    ("create", f"{RBAC}/rolebindings", OWN): set(),
    ("delete", "networking.k8s.io/networkpolicies", OWN): {EDITOR},
    # Beyond it.
    ("create", "bert-operator.dev/bertpretrainjobs", OTHER): set(),
    ("get", "/secrets", OTHER): set(),
    ("get", "/configmaps", OPERATORS): set(),
    ("patch", "/configmaps", OPERATORS): set(),
    ("create", "/serviceaccounts/token", OPERATORS): set(),
    ("get", "/nodes", ""): set(),
    ("patch", "apiextensions.k8s.io/customresourcedefinitions", ""): set(),
    ("patch", "admissionregistration.k8s.io/validatingadmissionpolicies", ""): set(),
}


@pytest.fixture
def tenants(api: Api, namespace: str, operator: OperatorProcess) -> Iterator[dict[str, Api]]:
    """Two users of one namespace, by the roles as they are shipped."""
    for document in load_documents(MANIFESTS / "base/user-roles.yaml"):
        api.server_side_apply(document).expect()
    rules = [{"apiGroups": ["bert-operator.dev"], "resources": ["bertpretrainjobs"], "verbs": ["create"]}]
    version = f"{RBAC}/v1"
    role = {"apiVersion": version, "kind": "Role", "metadata": {"name": SUBMITTER}, "rules": rules}
    api.create(role, namespace).expect()
    for user, kind, name in ((SUBMITTER, "Role", SUBMITTER), (EDITOR, "ClusterRole", "edit")):
        subject = {"apiGroup": RBAC, "kind": "User", "name": user}
        reference = {"apiGroup": RBAC, "kind": kind, "name": name}
        metadata = {"name": user}
        binding = {"apiVersion": version, "kind": "RoleBinding", "metadata": metadata, "roleRef": reference}
        api.create({**binding, "subjects": [subject]}, namespace).expect()
    found = {user: api.as_user(user) for user in (SUBMITTER, EDITOR)}
    # The controller that aggregates roles has its own pace.
    wait_until(lambda: found[EDITOR].get(JOBS, "", namespace).status == 200, "edit to hold the right to jobs")
    yield found
    for client in found.values():
        client.close()


def may(api: Api, user: str, verb: str, what: str, namespace: str) -> bool:
    group, _, resource = what.partition("/")
    resource, _, part = resource.partition("/")
    about = {"verb": verb, "group": group, "resource": resource, "subresource": part, "namespace": namespace}
    # The groups that every user who has logged in is in.
    spec = {"user": user, "groups": ["system:authenticated"], "resourceAttributes": about}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": spec}
    answer = api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review).expect()
    return bool(answer["status"]["allowed"])


def test_rights_end_at_the_namespace_and_at_what_the_operator_believes(
    tenants: dict[str, Api], api: Api, namespace: str
) -> None:
    found = {
        (verb, what, where): {
            user for user in tenants if may(api, user, verb, what, namespace if where == OWN else where)
        }
        for verb, what, where in RIGHTS
    }
    assert found == RIGHTS


def test_a_job_has_no_token_no_right_on_the_node_and_no_name_outside_its_namespace(
    tenants: dict[str, Api], namespace: str, jobs: Jobs
) -> None:
    own = {"volumes": [{"name": "a", "source": {**CLAIM, "mountPath": "/mnt/a"}}]}
    env = {
        "env": [{"name": "A", "secret": {"name": "keys", "key": "k"}}],
        "envFrom": [{"secret": "keys"}],  # pragma: allowlist secret
    }
    answer = tenants[SUBMITTER].create(job_document("bert", workers=2, **own, **env), namespace)
    assert answer.status == 201, answer.message
    with FakeKubelet(jobs.api, namespace, {1: None}):
        jobs.wait_phase("bert", "Running")
        pods = jobs.pods("bert")
    assert len(pods) == 3
    for pod in pods:
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["serviceAccountName"] == "default"
        assert not any(spec.get(field) for field in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"))
        kinds = {kind for volume in spec["volumes"] for kind in volume.keys() - {"name"}}
        assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}, kinds
        secrets = {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
        assert secrets <= {"bert-a1-ssh"}, "those that it does not name"
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert not container["securityContext"].get("privileged")
            # This it reaches: any Secret of its own namespace whose name it knows.
            assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]


@pytest.mark.parametrize(
    "spec",
    [
        {"automountServiceAccountToken": True},
        {"hostPID": True},
        {"securityContext": {"privileged": True}},
        {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}},
        {"env": [{"name": "A", "secret": {"name": "keys", "key": "k", "namespace": "kube-system"}}]},
        {"output": {"path": "x", "volume": {"persistentVolumeClaim": {"claimName": "c", "namespace": "kube-system"}}}},
    ],
)
def test_what_would_reach_further_cannot_be_written(tenants: dict[str, Api], namespace: str, spec: Json) -> None:
    for user, client in tenants.items():
        answer = client.create(job_document(f"bert-{user}", **spec), namespace)
        assert answer.status == 400, answer.message
        assert "unknown field" in answer.message


@pytest.mark.parametrize(
    "spec",
    [
        {"output": {"path": "x", "volume": {"hostPath": {"path": "/"}}}},
        {"volumes": [{"name": "a", "source": {"hostPath": {"path": "/etc"}, "mountPath": "/mnt/a"}}]},
        {"serviceAccountName": "default"},
        {"podMetadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "hosts"}}},
        {"network": {"hostNetwork": True}},
        {"network": {"lockMemory": True}},
        {"scheduling": {"safeToForcefullyDelete": True}},
        {"resources": {"memory": "1Gi", "rdma": {"resourceName": "rdma/hca"}}},
    ],
)
def test_what_reaches_the_node_makes_no_pod(tenants: dict[str, Api], namespace: str, jobs: Jobs, spec: Json) -> None:
    for user, client in tenants.items():
        name = f"bert-{user}"
        client.create(job_document(name, **spec), namespace).expect()
        jobs.wait_phase(name, "Invalid")
        assert jobs.children(name) == []
    assert jobs.pods(f"bert-{EDITOR}") == []


def test_an_editor_s_changes_to_what_is_run_are_not_run(tenants: dict[str, Api], namespace: str, jobs: Jobs) -> None:
    tenants[SUBMITTER].create(job_document("bert"), namespace).expect()
    with FakeKubelet(jobs.api, namespace, {1: None}) as kubelet:
        jobs.wait_phase("bert", "Running")
        editor = tenants[EDITOR]
        assert editor.patch(JOBS, "bert", {"spec": {"image": "evil"}}, namespace).status == 422
        frozen = editor.get("v1/configmaps", "bert-frozen", namespace).expect()
        assert editor.patch("v1/configmaps", "bert-frozen", {"data": {"spec.json": "{}"}}, namespace).status == 422
        editor.delete("v1/configmaps", "bert-frozen", namespace).expect()
        data = {**frozen["data"], "spec.json": frozen["data"]["spec.json"].replace("bert-trainer:1", "evil:1")}
        assert data != frozen["data"]
        metadata = {key: frozen["metadata"][key] for key in ("name", "labels", "annotations", "ownerReferences")}
        forged = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data, "immutable": True}
        editor.create(forged, namespace).expect()
        kubelet.fates[1] = kubelet.failing(137, signal=9)
        status = jobs.wait("bert", lambda one: one.get("reason") == "FrozenConfigurationUntrusted", "the refusal")
    assert status["phase"] == "Pending"
    assert "evil" not in str(jobs.children("bert"))
