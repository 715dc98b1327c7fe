"""The operator's two pods and the Lease that says which of them works: one killed, one asked to leave, one robbed."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime

from cluster_api import Api, wait_until
from job_cluster import SYSTEM, JobCluster, Json
from node_processes import signal_pod
from operator_places import operator_pods, wait_ready

LEASES, LEASE = "coordination.k8s.io/v1/leases", "bert-operator"
DEADLINE_S = 60.0


def holder(cluster: JobCluster) -> str:
    """Return who holds the Lease; empty: nobody."""
    lease = _api(cluster).get(LEASES, LEASE, SYSTEM)
    return "" if lease.status == 404 else str(lease.expect()["spec"].get("holderIdentity") or "")


def leader(cluster: JobCluster) -> Json:
    """Return the operator's pod that works."""
    return next(pod for pod in operator_pods(cluster) if holder(cluster).startswith(pod["metadata"]["name"]))


def wait_two(cluster: JobCluster) -> None:
    """Wait until one works and another one stands by."""
    wait_ready(cluster)
    wait_until(lambda: holder(cluster), "an operator to take the Lease", timeout_s=DEADLINE_S)


def kill_leader(cluster: JobCluster) -> None:
    """SIGKILL the one that works, and take its pod away as a lost node's are."""
    pod = leader(cluster)
    assert signal_pod(pod, signal.SIGKILL), "the leader had no process"
    name = pod["metadata"]["name"]
    cluster.kubectl("-n", SYSTEM, "delete", "pod", name, "--grace-period=0", "--force", "--wait=false")


def takeover(cluster: JobCluster) -> float:
    """Return the seconds from the death of the one that works until the other one holds the Lease."""
    wait_two(cluster)
    before, began_s = holder(cluster), time.monotonic()
    kill_leader(cluster)
    return _wait_other(cluster, before) - began_s


def polite_takeover(cluster: JobCluster) -> float:
    """Return the seconds from the deletion of the pod that works, or SIGTERM, until the other one holds the Lease."""
    wait_two(cluster)
    pod, before, began_s = leader(cluster), holder(cluster), time.monotonic()
    cluster.kubectl("-n", SYSTEM, "delete", "pod", pod["metadata"]["name"], "--wait=false")
    signal_pod(pod, signal.SIGTERM)  # kubelet's own comes some time after the request
    return _wait_other(cluster, before) - began_s


def steal_lease(cluster: JobCluster) -> None:
    """Write a holder into the Lease that is none of the operators: until that one's time is over nobody may work."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "thief", "leaseDurationSeconds": 10, "acquireTime": now, "renewTime": now}
    _api(cluster).patch(LEASES, LEASE, {"spec": spec}, SYSTEM).expect()


def _wait_other(cluster: JobCluster, before: str) -> float:
    """Return when somebody else holds the Lease, on this machine's clock."""
    wait_until(
        lambda: holder(cluster) not in ("", before), "the other operator to work", timeout_s=DEADLINE_S, every_s=0.02
    )
    return time.monotonic()


def _api(cluster: JobCluster) -> Api:
    assert cluster.node is not None, "only on a node of this machine"
    return cluster.node.api
