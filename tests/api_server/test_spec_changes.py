"""Whoever may not create jobs changes ``runPolicy`` alone, also of jobs that have not started."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster_api import Api, wait_until
from cluster_jobs import job_document
from control_plane import load_documents
from operator_process import JOBS, MANIFESTS

Json = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
MANAGER, EDITOR = "manager-of-all", "editor-of-one"
POLICY = "bert-operator-spec-changes"
OTHERS: dict[str, Json] = {
    "another value": {"image": "evil.example/x:1"},
    "one more field": {"envFrom": [{"configMap": "theirs"}]},
    "one field less": {"slotsPerWorker": None},
    "within a field": {"dataset": {"path": "/mnt/output/other"}},
    "besides runPolicy": {"runPolicy": {"suspend": False}, "image": "evil.example/x:1"},
}


@pytest.fixture(scope="module")
def policy(api: Api) -> Iterator[None]:
    for document in load_documents(MANIFESTS / "base/user-roles.yaml"):
        api.server_side_apply(document, document["metadata"].get("namespace", "")).expect(200, 201, 404)
    subject = {"apiGroup": RBAC, "kind": "User", "name": MANAGER}
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "bert-operator-admin"}
    binding: Json = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": MANAGER}}
    api.create({**binding, "roleRef": reference, "subjects": [subject]}).expect()
    yield
    for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        api.delete(f"admissionregistration.k8s.io/v1/{kind}", POLICY).expect()


@pytest.fixture
def job(api: Api, namespace: str, policy: None) -> Api:
    """A suspended job in the namespace; returns who looks after all jobs, once the policy is in force."""
    api.create(job_document("demo", runPolicy={"suspend": True}), namespace).expect()
    manager = api.as_user(MANAGER)
    images = (f"registry.invalid/probe:{number}" for number in range(10_000))

    def is_in_force() -> bool:
        return manager.patch(JOBS, "demo", {"spec": {"image": next(images)}}, namespace).status == 403

    wait_until(is_in_force, "a policy in force")
    return manager


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_other_fields_are_refused_to_who_may_not_create_jobs(job: Api, namespace: str, change: Json) -> None:
    answer = job.patch(JOBS, "demo", {"spec": change}, namespace)
    assert answer.status == 403
    assert "spec: got another field than runPolicy changed; allowed: runPolicy alone" in answer.message


def test_what_they_look_after_jobs_with_is_let_through(job: Api, namespace: str) -> None:
    job.patch(JOBS, "demo", {"spec": {"runPolicy": {"stopGraceSeconds": 60}}}, namespace).expect()
    job.patch(JOBS, "demo", {"spec": {"runPolicy": None}}, namespace).expect()
    job.patch(JOBS, "demo", {"metadata": {"labels": {"team": "nlp"}}}, namespace).expect()


def test_who_may_create_jobs_changes_what_has_not_started(job: Api, api: Api, namespace: str) -> None:
    subject = {"apiGroup": RBAC, "kind": "User", "name": EDITOR}
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "edit"}
    binding: Json = {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": {"name": EDITOR}}
    api.create({**binding, "roleRef": reference, "subjects": [subject]}, namespace).expect()
    editor = api.as_user(EDITOR)
    wait_until(lambda: editor.get(JOBS, "demo", namespace).status == 200, "edit to hold the right to jobs")
    for change in OTHERS.values():
        editor.patch(JOBS, "demo", {"spec": change}, namespace).expect()
