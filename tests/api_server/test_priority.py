"""What Kubernetes makes of the operator's PriorityClass, and of the guide's quota that keeps others from its own."""

from __future__ import annotations

from typing import Any

import pytest

from bert_operator.doctor.checks.priority import HIGHEST_OF_USERS
from cluster_api import Api, wait_until
from control_plane import load_documents
from doctor_cluster import system_priorities
from operator_process import MANIFESTS

CLASSES = "scheduling.k8s.io/v1/priorityclasses"
OWN = ("system-cluster-critical", "system-node-critical")


def pod(name: str, priority_class: str) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "image": "registry.example.com/x:1"}], "priorityClassName": priority_class}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_no_class_of_a_user_is_above_the_operator_s(api: Api, namespace: str) -> None:
    (shipped,) = load_documents(MANIFESTS / "base/priority-class.yaml")
    api.create({**shipped, "metadata": {"name": "as-the-operator"}}).expect(201, 409)
    created = api.create(pod("operator", "as-the-operator"), namespace).expect()
    assert created["spec"]["priority"] == HIGHEST_OF_USERS
    above = {**shipped, "metadata": {"name": "above"}, "value": HIGHEST_OF_USERS + 1}
    answer = api.create(above)
    assert (answer.status, "maximum allowed value of a user defined priority" in answer.message) == (422, True), answer
    for name in OWN:
        assert api.get(CLASSES, name).expect()["value"] > HIGHEST_OF_USERS


@pytest.mark.parametrize("name", OWN)
def test_the_guide_s_quota_keeps_pods_from_kubernetes_own_classes(api: Api, namespace: str, name: str) -> None:
    api.create(pod("before", name), namespace).expect(201)
    api.delete("v1/pods", "before", namespace, grace_s=0).expect(200)
    quota = system_priorities()
    quota["metadata"].pop("namespace")
    api.create(quota, namespace).expect(201)

    def counts() -> bool:
        status = api.get("v1/resourcequotas", "system-priorities", namespace).expect().get("status", {})
        return bool(status.get("used") == {"pods": "0"})

    wait_until(counts, "the quota to count")
    answer = api.create(pod("after", name), namespace)
    assert (answer.status, "exceeded quota: system-priorities" in answer.message) == (403, True), answer.message
