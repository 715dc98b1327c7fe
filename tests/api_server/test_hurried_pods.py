"""What is left of a failed attempt goes soon, on a real API server; what is asked to save gets its time."""

from __future__ import annotations

from typing import Any

import pytest

from cluster_api import Api, wait_until
from cluster_jobs import Jobs
from kubelet import FakeKubelet

Json = dict[str, Any]
GRACE_S = 300


def run_two_workers(api: Api, namespace: str, jobs: Jobs) -> FakeKubelet:
    """Have a job of two workers run; its pods stay until something is done with them."""
    kubelet = FakeKubelet(api, namespace)
    jobs.create("demo", workers=2, runPolicy={"stopGraceSeconds": GRACE_S})
    for role, count in (("worker", 2), ("launcher", 1)):
        wait_until(lambda role=role, count=count: len(of_role(jobs, role)) == count, 60, f"pods of the {role}")  # type: ignore[misc]
        for pod in of_role(jobs, role):
            kubelet.run(pod)
    jobs.wait_phase("demo", "Running", attempt=1)
    return kubelet


def of_role(jobs: Jobs, role: str) -> list[Json]:
    return [pod for pod in jobs.pods("demo") if f"-{role}" in pod["metadata"]["name"]]


def graces(jobs: Jobs) -> list[int | None]:
    return [pod["metadata"].get("deletionGracePeriodSeconds") for pod in of_role(jobs, "worker")]


@pytest.mark.usefixtures("operator")
def test_workers_of_a_failed_attempt_get_ten_seconds(api: Api, namespace: str, jobs: Jobs) -> None:
    kubelet = run_two_workers(api, namespace, jobs)
    (launcher,) = of_role(jobs, "launcher")
    kubelet.fail(launcher, 4, message='{"exitCode": 4, "reason": "Hung", "message": "rank 1 on demo-a1-worker-1"}')
    wait_until(lambda: graces(jobs) == [10, 10], 60, lambda: f"ten seconds, not {graces(jobs)}")
    status = jobs.status("demo")
    assert [failure["reason"] for failure in status["failures"]] == ["Hung"]


@pytest.mark.usefixtures("operator")
def test_workers_of_a_suspended_job_get_their_time(api: Api, namespace: str, jobs: Jobs) -> None:
    run_two_workers(api, namespace, jobs)
    jobs.change("demo", runPolicy={"suspend": True}).expect()
    wait_until(lambda: None not in graces(jobs), 60, "the deletion")
    jobs.wait_phase("demo", "Stopping")
    assert graces(jobs) == [GRACE_S, GRACE_S]
