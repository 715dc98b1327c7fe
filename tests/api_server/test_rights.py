"""The operator's rights are those that it uses: none is missing, and none is there for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_operator.api.crd import render_crd
from cluster_api import Api, wait_until
from cluster_jobs import NO_SCHEDULER, Jobs
from control_plane import ControlPlane, load_documents, namespace_of
from kubelet import FakeKubelet
from operator_process import MANIFESTS, USER, OperatorProcess, install_operator

Json = dict[str, Any]
Right = tuple[str, str, str]

UNUSED_FOR_A_REASON: dict[Right, str] = {
    ("bert-operator.dev", "bertpretrainjobs/finalizers", "update"): (
        "asked for by OwnerReferencesPermissionEnforcement, where it is switched on, when a child is created"
    ),
}
POLICIES = "networking.k8s.io/v1/networkpolicies"
NODES: Right = ("", "nodes", "get")


@pytest.fixture(scope="module")
def audited() -> Iterator[ControlPlane]:
    with ControlPlane(definitions=[render_crd()], audited_user=USER) as running:
        yield running


def shipped_rights() -> set[Right]:
    (role,) = [item for item in load_documents(MANIFESTS / "base/rbac.yaml") if item["kind"] == "ClusterRole"]
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def requests_on_objects(control_plane: ControlPlane, since: int = 0) -> list[Json]:
    return [entry for entry in control_plane.audit_log()[since:] if "resource" in entry.get("objectRef", {})]


def right_of(entry: Json) -> Right:
    about = entry["objectRef"]
    part = f"/{about['subresource']}" if "subresource" in about else ""
    return about.get("apiGroup", ""), f"{about['resource']}{part}", entry["verb"]


def forbidden(entries: list[Json]) -> set[Right]:
    return {right_of(entry) for entry in entries if entry["annotations"]["authorization.k8s.io/decision"] != "allow"}


def new_namespace(api: Api, name: str) -> str:
    api.create(namespace_of(name)).expect()
    wait_until(lambda: api.get("v1/serviceaccounts", "default", name).status == 200, 20, f"ServiceAccount in {name}")
    return name


def live_full_lives(jobs: Jobs) -> None:
    """Have jobs go through everything that the operator has another request for."""
    api, namespace = jobs.api, jobs.namespace
    take_names(api, namespace)
    with FakeKubelet(api, namespace) as kubelet:
        kubelet.fates |= {1: kubelet.failing(1), 3: kubelet.failing(1), 4: None}
        jobs.create("retried", prepare=True, workers=2, runPolicy={"ttlSecondsAfterFinished": 0})
        jobs.create("taken-job")
        jobs.create("taken-mpi-job", workers=2)
        jobs.wait_phase("retried", "Running", attempt=4)
        # The same Events a second time are counted, not written again.
        for _ in range(2):
            jobs.change("retried", runPolicy={"suspend": True}).expect()
            jobs.wait_phase("retried", "Stopped")
            # Corrected before the next attempt.
            api.patch(POLICIES, "retried-pods", {"spec": {"egress": []}}, namespace).expect()
            jobs.change("retried", runPolicy={"suspend": False}).expect()
            jobs.wait("retried", lambda status: status["phase"] != "Stopped", "the job to go on")
        wait_until(lambda: jobs.is_gone("retried"), 30, "the job that has outlived its TTL to go")
        for name in ("taken-job", "taken-mpi-job"):
            jobs.wait(name, lambda status: status.get("reason") == "NameTaken", "a word about the name")


def take_names(api: Api, namespace: str) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "busybox"}], **NO_SCHEDULER}}
    job: Json = {"template": {"spec": {**template["spec"], "restartPolicy": "Never"}}, "suspend": True}
    replicas = {"Launcher": {"template": template}, "Worker": {"template": template}}
    mpi_job: Json = {"mpiReplicaSpecs": replicas, "runPolicy": {"suspend": True}}
    for version, kind, name, spec in (
        ("batch/v1", "Job", "taken-job-a1-training", job),
        ("kubeflow.org/v2beta1", "MPIJob", "taken-mpi-job-a1", mpi_job),
    ):
        document = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
        api.create(document, namespace).expect()


def test_in_the_whole_cluster_no_right_is_missing_and_none_is_for_nothing(
    audited: ControlPlane, tmp_path: Path
) -> None:
    jobs = Jobs(audited.api, new_namespace(audited.api, "team"))
    with OperatorProcess(tmp_path, audited.kubeconfig(install_operator(audited)), jobNetworkPolicy=True) as operator:
        since = len(audited.audit_log())
        live_full_lives(jobs)
        operator.restart()
        live_on = requests_on_objects(audited, since)
    used = {right_of(entry) for entry in live_on}
    assert forbidden(live_on) == set()
    assert used - shipped_rights() == set()
    assert shipped_rights() - used == set(UNUSED_FOR_A_REASON)


def test_in_one_namespace_the_same_rights_are_enough_and_nothing_else_is_looked_at(
    audited: ControlPlane, tmp_path: Path
) -> None:
    api = audited.api
    api.delete("rbac.authorization.k8s.io/v1/clusterrolebindings", "bert-operator").expect(200, 404)
    ours, others = (Jobs(api, new_namespace(api, name)) for name in ("ours", "others"))
    config = audited.kubeconfig(install_operator(audited, namespaces=["ours"]))
    as_operator = audited.api_as(audited.service_account_token("bert-operator", "bert-operator"))
    wait_until(lambda: as_operator.get("v1/pods", "", "others").status == 403, 10, "the other rights to go")
    since = len(audited.audit_log())
    with OperatorProcess(tmp_path, config, namespaces=["ours"], jobNetworkPolicy=True):
        others.create("alien")
        live_full_lives(ours)
        entries = requests_on_objects(audited, since)
    assert forbidden(entries) == set()
    assert {entry["objectRef"].get("namespace") for entry in entries} == {"ours"}
    assert others.status("alien") == {}
    unused = shipped_rights() - {right_of(entry) for entry in entries}
    assert unused == {*UNUSED_FOR_A_REASON, NODES}, "a binding in a namespace cannot grant it"


def test_what_is_shipped_for_namespaces_binds_the_same_role() -> None:
    (binding,) = load_documents(MANIFESTS / "components/namespaced/role-binding.yaml")
    (shipped,) = [item for item in load_documents(MANIFESTS / "base/rbac.yaml") if item["kind"] == "ClusterRoleBinding"]
    assert (binding["roleRef"], binding["subjects"]) == (shipped["roleRef"], shipped["subjects"])
