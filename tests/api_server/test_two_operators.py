"""Two operators with one Lease: one works, the other follows it, whether it is killed, leaves or is robbed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_operator.api.crd import render_crd
from cluster_api import Api, wait_until
from cluster_jobs import Jobs
from control_plane import ControlPlane, namespace_of
from operator_process import ACCOUNT, USER, OperatorProcess, install_operator

Json = dict[str, Any]

LEASES, LEASE = "coordination.k8s.io/v1/leases", "bert-operator"
TAKES_OVER_S = 60.0
"""Longest wait for the other one. How long it takes is printed, and measured by make test-queue."""


@pytest.fixture(scope="module")
def audited() -> Iterator[ControlPlane]:
    with ControlPlane(definitions=[render_crd()], audited_users=[USER]) as running:
        yield running


@pytest.fixture
def two(audited: ControlPlane, tmp_path: Path) -> Iterator[dict[str, OperatorProcess]]:
    """Two operators that are ready, by name; the first one that was started leads."""
    audited.api.delete(LEASES, LEASE, ACCOUNT).expect(200, 404)
    config = audited.kubeconfig(install_operator(audited))
    environment = {"POD_NAMESPACE": ACCOUNT}
    first, second = (
        OperatorProcess(tmp_path, config, name=name, environment=environment, lease=LEASE)
        for name in ("first", "second")
    )
    with first:
        wait_until(lambda: leads(first), "the first operator to lead", timeout_s=TAKES_OVER_S)
        with second:
            yield {"first": first, "second": second}


@pytest.fixture
def jobs(audited: ControlPlane) -> Jobs:
    name = f"team-{time.monotonic_ns()}"
    audited.api.create(namespace_of(name)).expect()
    wait_until(lambda: audited.api.get("v1/serviceaccounts", "default", name).status == 200, "the ServiceAccount")
    return Jobs(audited.api, name)


def leads(operator: OperatorProcess) -> bool:
    return operator.figure("leader") == 1


def holder(api: Api) -> str:
    return str(api.get(LEASES, LEASE, ACCOUNT).expect()["spec"].get("holderIdentity") or "")


@pytest.mark.parametrize(
    ("what", "end"), [("takeover_s", OperatorProcess.kill), ("polite_takeover_s", OperatorProcess.stop)]
)
def test_the_second_one_goes_on_where_the_first_one_ends(
    two: dict[str, OperatorProcess], jobs: Jobs, what: str, end: Callable[[OperatorProcess], None]
) -> None:
    first, second = two["first"], two["second"]
    jobs.create("before")
    jobs.wait("before", lambda status: status.get("attempt") == 1, "its first attempt")
    assert leads(first)
    assert not leads(second)
    before, began_s = holder(jobs.api), time.monotonic()
    end(first)
    jobs.create("after")
    wait_until(lambda: holder(jobs.api) not in ("", before), "another holder of the Lease", timeout_s=TAKES_OVER_S)
    print(f"{what}={time.monotonic() - began_s:.1f}")
    jobs.wait("after", lambda status: status.get("attempt") == 1, "its first attempt")
    assert leads(second)
    assert jobs.status("before")["attempt"] == 1, "what the first one began is gone on with, not begun again"


def test_who_is_robbed_ends_and_nobody_writes_until_the_lease_is_free(
    two: dict[str, OperatorProcess], jobs: Jobs, audited: ControlPlane
) -> None:
    first, second = two["first"], two["second"]
    jobs.api.patch(LEASES, LEASE, {"spec": {"holderIdentity": "thief"}}, ACCOUNT).expect()
    wait_until(lambda: not first.pid, "the robbed operator to end", timeout_s=TAKES_OVER_S)
    since = len(audited.audit_log())
    jobs.create("later")
    jobs.wait("later", lambda status: status.get("attempt") == 1, "its first attempt", TAKES_OVER_S)
    assert leads(second)
    entries = audited.audit_log()[since:]
    written = [entry for entry in entries if entry["verb"] in ("create", "update", "patch", "delete")]
    assert written[0]["objectRef"]["resource"] == "leases", "it is taken before anything else is written"
    assert {"bertpretrainjobs", "mpijobs"} & {entry["objectRef"]["resource"] for entry in written}
