"""A started job runs what its first attempt was frozen with, or nothing: never what other settings would make of it.

Inputs: a profile with ranks and a volume, an operator that is started again without it. Observed: children, status.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster_api import Api, wait_until
from cluster_jobs import CLAIM, Jobs, condition, job_document
from kubelet import FakeKubelet
from operator_process import OperatorProcess

PROFILE = {
    "slotsPerWorker": 2,
    "output": {"volume": CLAIM},
    "scheduling": {"schedulerName": "tests"},
    "image": "registry.example.com/trainer:1",
}
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "none"},
    "spec": {"hard": {"count/configmaps": "0"}},
}


@pytest.fixture
def operator(tmp_path: Path, operator_config: Path) -> Iterator[OperatorProcess]:
    """An operator of this test's own, with the profile."""
    with OperatorProcess(tmp_path, operator_config, profiles={"p": PROFILE}, defaultProfile="p") as running:
        yield running


def profiled_job(name: str) -> dict[str, Any]:
    document = job_document(name)
    for field in ("slotsPerWorker", "image", "scheduling"):
        document["spec"].pop(field, None)
    document["spec"]["output"] = {"path": "runs/x"}
    return document


def restart_without_profile(operator: OperatorProcess) -> None:
    operator.kill()
    operator.configure()
    operator.start()


def test_before_it_is_frozen_it_is_judged_again(
    api: Api, namespace: str, jobs: Jobs, operator: OperatorProcess
) -> None:
    api.create(QUOTA, namespace).expect()
    wait_until(lambda: api.get("v1/resourcequotas", "none", namespace).body.get("status", {}).get("used"), "quota")
    api.create(profiled_job("held"), namespace).expect()
    jobs.wait("held", lambda status: condition(status, "Blocked").get("reason") == "QuotaExceeded", "the quota")
    restart_without_profile(operator)
    api.delete("v1/resourcequotas", "none", namespace).expect()
    status = jobs.wait("held", lambda status: condition(status, "Blocked").get("reason") == "Rejected", "a refusal", 90)
    assert "spec.output.volume" in condition(status, "Blocked")["message"]
    assert jobs.children("held") == []


def test_without_its_frozen_configuration_no_further_attempt_is_made(
    api: Api, namespace: str, jobs: Jobs, operator: OperatorProcess
) -> None:
    api.create(profiled_job("lost"), namespace).expect()
    (pod,) = wait_until(lambda: jobs.pods("lost"), "its pod")
    kubelet = FakeKubelet(api, namespace)
    kubelet.run(pod)
    jobs.wait_phase("lost", "Running")
    api.delete("v1/configmaps", "lost-frozen", namespace).expect()
    restart_without_profile(operator)
    kubelet.fail(jobs.pods("lost")[0], 1)
    status = jobs.wait(
        "lost", lambda status: condition(status, "Blocked").get("reason") == "FrozenConfigurationMissing", "a reason"
    )
    assert "lost-frozen" in condition(status, "Blocked")["message"]
    assert [child["metadata"]["name"] for child in jobs.children("lost")] in ([], ["lost-a1-training"])
