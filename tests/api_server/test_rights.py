"""The operator's rights are those that it uses: none is missing, and none is there for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_operator.api.crd import render_crd
from bert_operator.names import UNSEEN_GENERATION
from cluster_api import Api, path_of, wait_until
from cluster_jobs import NO_SCHEDULER, Jobs, job_document
from control_plane import ControlPlane, load_documents, namespace_of
from kubelet import FakeKubelet
from operator_process import MANIFESTS, USER, OperatorProcess, install_operator

Json = dict[str, Any]
Right = tuple[str, str, str]

ROOT = Path(__file__).parents[2]
UNUSED_FOR_A_REASON: dict[Right, str] = {
    ("bert-operator.dev", "bertpretrainjobs/finalizers", "update"): (
        "asked for by OwnerReferencesPermissionEnforcement, where it is switched on, when a child is created"
    ),
    **{
        ("kueue.x-k8s.io", "workloads", verb): "asked where Kueue is: test_kueue.py fails without it"
        for verb in ("get", "list")
    },
}
WITHOUT_A_COMMAND: dict[Right, str] = {
    (
        "bert-operator.dev",
        "bertpretrainjobs",
        "update",
    ): "kubectl replace, and dashboards that edit; no more than patch",
    ("bert-operator.dev", "bertpretrainjobs", "deletecollection"): "clients that delete by label; no more than delete",
}
"""What Kubernetes' own ``edit`` gives of every kind, so that nobody wonders why a job lacks it."""
BPJ, MPI_JOBS = "bert-operator.dev/v1alpha1/bertpretrainjobs", "kubeflow.org/v2beta1/mpijobs"
LEASE, LEASES = "bert-operator", "coordination.k8s.io/v1/leases"
POLICIES = "networking.k8s.io/v1/networkpolicies"
ADMIN, SUBMITS = "bert-operator-admin", "bert-operator-edit"
NODES: Right = ("", "nodes", "get")
PEOPLE = {name: f"system:serviceaccount:people:{name}" for name in ("manager", "runner", "viewer", "editor")}
"""Who looks after all jobs, who runs the operator, who sees jobs, who submits them. Accounts with tokens: audit rules
do not match impersonation."""


@pytest.fixture(scope="module")
def audited() -> Iterator[ControlPlane]:
    with ControlPlane(definitions=[render_crd()], audited_users=[USER, *PEOPLE.values()]) as running:
        yield running


def shipped_rights() -> set[Right]:
    (role,) = [item for item in load_documents(MANIFESTS / "base/rbac.yaml") if item["kind"] == "ClusterRole"]
    return rights_of(role)


def rights_of(role: Json) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def requests_on_objects(control_plane: ControlPlane, since: int = 0, user: str = USER) -> list[Json]:
    entries = [entry for entry in control_plane.audit_log()[since:] if "resource" in entry.get("objectRef", {})]
    return [entry for entry in entries if entry["user"]["username"] == user]


def right_of(entry: Json) -> Right:
    about = entry["objectRef"]
    part = f"/{about['subresource']}" if "subresource" in about else ""
    return about.get("apiGroup", ""), f"{about['resource']}{part}", entry["verb"]


def forbidden(entries: list[Json]) -> set[Right]:
    return {right_of(entry) for entry in entries if entry["annotations"]["authorization.k8s.io/decision"] != "allow"}


def new_namespace(api: Api, name: str) -> str:
    api.create(namespace_of(name)).expect()
    wait_until(lambda: api.get("v1/serviceaccounts", "default", name).status == 200, f"ServiceAccount in {name}")
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
        jobs.create("taken-config")
        jobs.wait_phase("retried", "Running", attempt=4)
        # The same Events a second time are counted, not written again.
        for _ in range(2):
            jobs.change("retried", runPolicy={"suspend": True}).expect()
            jobs.wait_phase("retried", "Stopped")
            # Corrected before the next attempt.
            api.patch(POLICIES, "retried-pods", {"spec": {"egress": []}}, namespace).expect()
            jobs.change("retried", runPolicy={"suspend": False}).expect()
            jobs.wait("retried", lambda status: status["phase"] != "Stopped", "the job to go on")
        wait_until(lambda: jobs.is_gone("retried"), "the job that has outlived its TTL to go")
        for name in ("taken-job", "taken-mpi-job"):
            wait_until(lambda name=name: jobs.children(name), "a child of another name")
        # What has no other name is waited for, and the job is read before its attempt is tried again.
        jobs.wait("taken-config", lambda status: status.get("reason") is not None, "a word about the name")
        api.delete("v1/configmaps", "taken-config-frozen", namespace).expect()
        wait_until(lambda: jobs.children("taken-config"), "the name to be noticed as free")


def take_names(api: Api, namespace: str) -> None:
    api.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "taken-config-frozen"}}, namespace
    ).expect()
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
    wait_until(lambda: as_operator.get("v1/pods", "", "others").status == 403, "the other rights to go")
    since = len(audited.audit_log())
    with OperatorProcess(tmp_path, config, namespaces=["ours"], jobNetworkPolicy=True):
        others.create("alien")
        live_full_lives(ours)
        entries = requests_on_objects(audited, since)
    assert forbidden(entries) == set()
    assert {entry["objectRef"].get("namespace") for entry in entries} == {"ours"}
    assert others.status("alien")["observedGeneration"] == UNSEEN_GENERATION
    unused = shipped_rights() - {right_of(entry) for entry in entries}
    assert unused == {*UNUSED_FOR_A_REASON, NODES}, "a binding in a namespace cannot grant it"


def as_person(control_plane: ControlPlane, name: str, role: Json, namespace: str, *, sees: str = "v1/pods") -> Api:
    """Return a client of somebody who has a role, in one namespace or in all. sees: a kind that the role lets them."""
    api, group = control_plane.api, "rbac.authorization.k8s.io"
    account = {"kind": "ServiceAccount", "name": name, "namespace": "people"}
    if api.get("v1/namespaces", "people").status == 404:
        new_namespace(api, "people")
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}, "people").expect()
    binding: Json = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": role["kind"], "name": role["metadata"]["name"]},
        "subjects": [account],
    }
    api.server_side_apply(role, "" if role["kind"] == "ClusterRole" else namespace).expect(200, 201)
    api.create(binding, namespace).expect()
    person = control_plane.api_as(control_plane.service_account_token("people", name))
    wait_until(lambda: person.get(sees, "", namespace or "default").status == 200, f"the rights of {name}")
    return person


def look_at(person: Api, resource: str, namespace: str, *, follow: bool = True) -> None:
    """Do what ``kubectl get``, ``get NAME`` and ``get --watch`` do; objects that are not there need the same right."""
    person.list(resource, namespace)
    person.get(resource, "any", namespace).expect(200, 404)
    if follow:
        person.text(f"{path_of(resource, namespace=namespace)}?watch=true&timeoutSeconds=1")


def test_who_looks_after_all_jobs_has_the_rights_for_that_and_no_others(audited: ControlPlane) -> None:
    roles = load_documents(MANIFESTS / "base/user-roles.yaml")
    (role,) = [item for item in roles if (item["kind"], item["metadata"]["name"]) == ("ClusterRole", ADMIN)]
    jobs, children = BPJ, ("batch/v1/jobs", MPI_JOBS)
    place = new_namespace(audited.api, "looked-after")
    Jobs(audited.api, place).create("demo")
    person = as_person(audited, "manager", role, "")
    since = len(audited.audit_log())
    for resource in (jobs, *children, "v1/pods", "v1/events"):
        look_at(person, resource, place)
    for resource in ("v1/persistentvolumeclaims", "v1/resourcequotas"):
        look_at(person, resource, place, follow=False)
    for resource in ("v1/nodes", "v1/persistentvolumes"):
        look_at(person, resource, "", follow=False)
    person.request("GET", f"/api/v1/namespaces/{place}/pods/any/log").expect(404)
    person.patch(jobs, "demo", {"spec": {"runPolicy": {"suspend": True}}}, place).expect()
    person.delete(jobs, "demo", place).expect()
    for resource in (*children, "v1/pods"):
        person.delete(resource, "any", place).expect(404)
    entries = requests_on_objects(audited, since, PEOPLE["manager"])
    assert forbidden(entries) == set()
    assert rights_of(role) == {right_of(entry) for entry in entries}
    for refused in ("v1/configmaps", "v1/secrets"):
        assert person.get(refused, "any", place).status == 403
    assert person.create(job_document("mine"), place).status == 403


def test_who_runs_the_operator_has_the_rights_for_that_and_no_others(audited: ControlPlane) -> None:
    roles = load_documents(MANIFESTS / "base/user-roles.yaml")
    (role,) = [item for item in roles if (item["kind"], item["metadata"]["name"]) == ("Role", ADMIN)]
    place = role["metadata"]["namespace"]
    if audited.api.get("v1/namespaces", place).status == 404:
        new_namespace(audited.api, place)
    person = as_person(audited, "runner", role, place)
    since = len(audited.audit_log())
    for resource in ("v1/configmaps", "apps/v1/deployments", "v1/pods", "v1/events"):
        look_at(person, resource, place)
    settings: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other-settings"}, "data": {}}
    person.create(settings, place).expect()
    person.patch("v1/configmaps", "other-settings", {"data": {"settings.yaml": ""}}, place).expect()
    person.delete("v1/configmaps", "other-settings", place).expect()
    person.patch("apps/v1/deployments", "any", {"spec": {}}, place).expect(404)
    person.request("GET", f"/api/v1/namespaces/{place}/pods/any/log").expect(404)
    entries = requests_on_objects(audited, since, PEOPLE["runner"])
    assert forbidden(entries) == set()
    assert rights_of(role) == {right_of(entry) for entry in entries}


def user_role(name: str) -> Json:
    (role,) = [item for item in load_documents(MANIFESTS / "base/user-roles.yaml") if item["metadata"]["name"] == name]
    return role


def in_the_guides(command: str) -> bool:
    pages = [*(ROOT / "docs/guides").glob("*.md"), *(ROOT / "docs/tutorials").glob("*.md"), ROOT / "README.md"]
    return any(command in page.read_text() for page in pages)


def test_who_sees_jobs_and_who_submits_them_have_the_rights_that_the_guides_commands_use(audited: ControlPlane) -> None:
    place, view, edit = new_namespace(audited.api, "submitted"), user_role("bert-operator-view"), user_role(SUBMITS)
    viewer = as_person(audited, "viewer", view, place, sees=BPJ)
    # Whoever may submit may look: Kubernetes' own edit holds all of view.
    both = {**edit, "metadata": {"name": "submits"}, "rules": [*view["rules"], *edit["rules"]]}
    editor = as_person(audited, "editor", both, place, sees=BPJ)
    since = len(audited.audit_log())
    sees: dict[str, Callable[[], object]] = {
        "kubectl get bpj": lambda: look_at(viewer, BPJ, place),
        # Its children, as they come and go.
        "kubectl bert tree": lambda: look_at(viewer, MPI_JOBS, place),
    }
    submits: dict[str, Callable[[], object]] = {
        "kubectl bert submit": lambda: editor.create(job_document("demo"), place).expect(),
        "kubectl bert suspend": lambda: editor.patch(
            BPJ, "demo", {"spec": {"runPolicy": {"suspend": True}}}, place
        ).expect(),
        "kubectl delete -k deploy/kustomize/jobs/": lambda: editor.delete(BPJ, "demo", place).expect(),
    }
    for command, request in {**sees, **submits}.items():
        assert in_the_guides(command), command
        request()
    seen, submitted = (requests_on_objects(audited, since, PEOPLE[name]) for name in ("viewer", "editor"))
    assert forbidden([*seen, *submitted]) == set()
    assert rights_of(view) == {right_of(entry) for entry in seen}
    assert rights_of(edit) == {right_of(entry) for entry in submitted} | WITHOUT_A_COMMAND.keys()
    assert {entry["verb"] for entry in submitted} & {verb for *_, verb in WITHOUT_A_COMMAND} == set()
    assert viewer.create(job_document("mine"), place).status == 403
    assert editor.patch(BPJ, "demo", {"status": {}}, place, subresource="status").status == 403


def test_an_operator_uses_all_of_the_lease_s_role_and_no_other_lease(audited: ControlPlane, tmp_path: Path) -> None:
    (role,) = [item for item in load_documents(MANIFESTS / "base/rbac.yaml") if item["kind"] == "Role"]
    config, account = audited.kubeconfig(install_operator(audited)), role["metadata"]["namespace"]
    audited.api.delete(LEASES, LEASE, account).expect(200, 404)
    since = len(audited.audit_log())

    def asked() -> list[Json]:
        entries = requests_on_objects(audited, since)
        return [entry for entry in entries if entry["objectRef"]["resource"] == "leases"]

    with OperatorProcess(tmp_path, config, environment={"POD_NAMESPACE": account}, lease=LEASE):
        wait_until(lambda: "patch" in {entry["verb"] for entry in asked()}, "the Lease to be renewed")
    entries = asked()
    assert forbidden(entries) == set()
    assert rights_of(role) == {right_of(entry) for entry in entries}
    # A Lease that is made has its name in the object alone.
    assert {entry["objectRef"].get("name", LEASE) for entry in entries} == {LEASE}


def test_what_is_shipped_for_namespaces_binds_the_same_role() -> None:
    (binding,) = load_documents(MANIFESTS / "components/namespaced/role-binding.yaml")
    (shipped,) = [item for item in load_documents(MANIFESTS / "base/rbac.yaml") if item["kind"] == "ClusterRoleBinding"]
    assert (binding["roleRef"], binding["subjects"]) == (shipped["roleRef"], shipped["subjects"])
