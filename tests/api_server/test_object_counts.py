"""The ResourceQuota that the installation guide has for a team's namespace bounds jobs, attempts and pods by number.

Input: the guide's own document. Each of its bounds is lowered to nothing in turn, and taken away again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_api import Api, wait_until
from cluster_jobs import Jobs, condition, job_document
from kubelet import FakeKubelet
from operator_process import JOBS

GUIDE = Path(__file__).parents[2] / "docs/guides/install.md"
NAME = "object-counts"
QUOTAS = "v1/resourcequotas"
OF_JOBS = "count/bertpretrainjobs.bert-operator.dev"
OF_ATTEMPTS = {"count/jobs.batch": 1, "count/mpijobs.kubeflow.org": 2, "count/pods": 1}
"""Bounds that hold up an attempt, with the workers of a job that meets them."""


def quota_of_the_guide() -> dict[str, Any]:
    (text,) = re.findall(r"^```yaml\n# object-counts.yaml\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def apply_quota(api: Api, namespace: str, exhausted: str) -> None:
    """Apply the quota, with nothing left of one of its bounds, and wait until all of them are counted."""
    document = quota_of_the_guide()
    assert exhausted in document["spec"]["hard"]
    document["spec"]["hard"][exhausted] = "0"
    api.create(document, namespace).expect()
    keys = set(document["spec"]["hard"])
    wait_until(
        lambda: set(api.get(QUOTAS, NAME, namespace).expect().get("status", {}).get("used", {})) == keys,
        "the quota to count",
    )


def test_the_guide_bounds_these() -> None:
    assert set(quota_of_the_guide()["spec"]["hard"]) == {OF_JOBS, *OF_ATTEMPTS}


def test_one_job_too_many_is_refused_at_apply(api: Api, namespace: str) -> None:
    apply_quota(api, namespace, OF_JOBS)
    answer = api.create(job_document("bert"), namespace)
    assert (answer.status, f"exceeded quota: {NAME}" in answer.message) == (403, True), answer.message
    assert api.list(JOBS, namespace) == []


@pytest.mark.parametrize(("bound", "workers"), OF_ATTEMPTS.items(), ids=OF_ATTEMPTS)
@pytest.mark.usefixtures("operator")
def test_one_attempt_too_many_waits_and_says_why(
    api: Api, namespace: str, jobs: Jobs, bound: str, workers: int
) -> None:
    apply_quota(api, namespace, bound)
    jobs.create("bert", workers=workers)
    status = jobs.wait(
        "bert", lambda status: condition(status, "Blocked").get("reason") == "QuotaExceeded", "the quota"
    )
    assert f"exceeded quota: {NAME}" in status["message"]
    api.delete(QUOTAS, NAME, namespace).expect()
    with FakeKubelet(api, namespace):
        jobs.wait_phase("bert", "Succeeded")
