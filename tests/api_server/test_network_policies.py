"""Every job gets its NetworkPolicy before its first pod, and keeps it as the settings want it, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster_api import Api, wait_until
from cluster_jobs import Jobs
from kubelet import FakeKubelet
from operator_process import OperatorProcess

Json = dict[str, Any]
POLICIES = "networking.k8s.io/v1/networkpolicies"
TRACKER = {"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "tracker"}}}]}
PORTS = {"ports": [{"port": 5000}]}


@pytest.fixture(scope="module")
def strict(operator_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """An operator with policies switched on."""
    folder = tmp_path_factory.mktemp("strict")
    with OperatorProcess(folder, operator_config, jobNetworkPolicy=True, jobEgress=[{**TRACKER, **PORTS}]) as running:
        yield running


def restart(strict: OperatorProcess, **settings: Any) -> None:
    strict.configure(**settings)
    strict.restart()


@pytest.mark.usefixtures("strict")
def test_it_is_there_before_the_pods_and_goes_with_the_job(api: Api, namespace: str, jobs: Jobs) -> None:
    jobs.create("demo", logging={"prometheusPort": 9400})
    wait_until(lambda: jobs.children("demo"), "a child")
    policy = api.get(POLICIES, "demo-pods", namespace).expect()
    child = api.get("batch/v1/jobs", "demo-a1-training", namespace).expect()
    assert int(policy["metadata"]["resourceVersion"]) < int(child["metadata"]["resourceVersion"])
    rules = policy["spec"]["egress"]
    assert rules[-1] == {**TRACKER, "ports": [{"protocol": "TCP", "port": 5000}]}
    assert len(policy["spec"]["ingress"]) == 2
    jobs.delete("demo")
    wait_until(lambda: api.get(POLICIES, "demo-pods", namespace).status == 404, "the garbage collector")


def test_another_attempt_writes_it_only_where_it_differs(
    api: Api, namespace: str, jobs: Jobs, strict: OperatorProcess
) -> None:
    def generation() -> int:
        document = api.get(POLICIES, "demo-pods", namespace).expect()
        found: int = document["metadata"]["generation"]
        return found

    try:
        with FakeKubelet(api, namespace) as kubelet:
            kubelet.fates |= {1: kubelet.failing(4), 2: None, 3: None}
            jobs.create("demo")
            jobs.wait_phase("demo", "Running", attempt=2)
            assert generation() == 1
            jobs.change("demo", runPolicy={"suspend": True}).expect()
            jobs.wait_phase("demo", "Stopped")
            restart(strict, jobNetworkPolicy=True)
            jobs.change("demo", runPolicy={"suspend": False}).expect()
            jobs.wait_phase("demo", "Running", attempt=3)
            assert generation() == 2
            spec = api.get(POLICIES, "demo-pods", namespace).expect()["spec"]
            assert len(spec["egress"]) == 3, "what the settings no longer allow"
    finally:
        restart(strict, jobNetworkPolicy=True, jobEgress=[{**TRACKER, **PORTS}])


@pytest.mark.usefixtures("strict")
def test_no_pod_starts_where_somebody_else_has_taken_its_name(api: Api, namespace: str, jobs: Jobs) -> None:
    document = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "demo-pods"},
        "spec": {"podSelector": {}, "egress": [{}]},
    }
    api.create(document, namespace).expect()
    jobs.create("demo")
    status = jobs.wait("demo", lambda status: status.get("reason") == "NameTaken", "a word about the name")
    assert "NetworkPolicy demo-pods exists and is not this job's. Next: delete it" in str(status)
    assert jobs.pods("demo") == []
    api.delete(POLICIES, "demo-pods", namespace).expect()
    wait_until(lambda: jobs.children("demo"), "a child")


def test_no_pod_starts_where_the_operator_may_not_write_it(
    api: Api, namespace: str, jobs: Jobs, strict: OperatorProcess
) -> None:
    role = api.get("rbac.authorization.k8s.io/v1/clusterroles", "bert-operator").expect()
    without = [rule for rule in role["rules"] if "networkpolicies" not in rule["resources"]]
    assert len(without) == len(role["rules"]) - 1
    try:
        api.patch("rbac.authorization.k8s.io/v1/clusterroles", "bert-operator", {"rules": without}).expect()
        jobs.create("demo")
        status = jobs.wait("demo", lambda status: status.get("reason") == "Forbidden", "a word about the right")
        assert "set jobNetworkPolicy: false" in str(status)
        assert jobs.pods("demo") == []
    finally:
        rules = {"rules": role["rules"]}
        api.patch("rbac.authorization.k8s.io/v1/clusterroles", "bert-operator", rules).expect()
    assert strict.is_ready()
    wait_until(lambda: jobs.children("demo"), "a child, without another start")


def test_switched_off_there_is_none(api: Api, namespace: str, jobs: Jobs, strict: OperatorProcess) -> None:
    try:
        restart(strict)
        jobs.create("demo")
        wait_until(lambda: jobs.children("demo"), "a child")
        assert api.list(POLICIES, namespace) == []
    finally:
        restart(strict, jobNetworkPolicy=True, jobEgress=[{**TRACKER, **PORTS}])
