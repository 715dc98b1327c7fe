"""The operator in its pod, and in place of it the operator as a process of this machine.

What stands in its pod cannot be given a slow API server or another clock while it runs; a process can. It is the same
program with the same account, behind a proxy that delays requests, and with libfaketime, whose offset is read anew
every second (https://github.com/wolfcw/libfaketime, "Changing time while a program is running"). The clock of this
machine is never touched.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster_api import wait_until
from fault import NotInEffect
from flaky_proxy import FlakyProxy
from job_cluster import SYSTEM, JobCluster, Json, poll
from node_processes import signal_pod
from operator_process import ACCOUNT, OperatorProcess

DEPLOYMENT = "deployment/bert-operator"
READY_S = 90
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
SHARED = Path("/dev/shm")  # noqa: S108 - where sem_open(3) and shm_open(3) put theirs
_COMPARES_EVERY_S = 2.0
"""How often the process notes the time in its metrics: what its clock says is read there."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """The operator as a process of this machine."""

    process: OperatorProcess
    proxy: FlakyProxy
    clock_file: Path

    def set_clock(self, offset_s: int) -> None:
        """Set the process's clock, so many seconds from this machine's, and return once it goes by that.

        Raises NotInEffect.
        """
        self.clock_file.write_text(f"{offset_s:+d}")

        def is_set() -> bool:
            return abs(self.process.figure("last_sweep_timestamp_seconds") - time.time() - offset_s) < 60

        try:
            wait_until(is_set, "the operator's clock", every_s=0.2)
        except TimeoutError as late:
            raise NotInEffect(f"libfaketime did not move the operator's clock: {late}") from late


@contextlib.contextmanager
def stand_in(cluster: JobCluster, folder: Path) -> Iterator[StandIn]:
    """Stop the operator's pod and run the operator as a process, and the other way round at the end.

    folder: for its log; made anew. Raises NotInEffect where libfaketime is missing.
    """
    if not FAKETIME.exists():
        raise NotInEffect(f"{FAKETIME} is missing; apt-get install libfaketime")
    node = cluster.node
    assert node is not None, "only on a node of this machine"
    folder.mkdir(parents=True, exist_ok=True)
    clock_file = folder / "clock"
    clock_file.write_text("+0")
    with FlakyProxy(node.url, node.ca_file) as proxy:
        token = node.service_account_token(SYSTEM, ACCOUNT)
        process = OperatorProcess(
            folder,
            node.kubeconfig(token, server=proxy.url),
            environment={
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(clock_file),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            },
            trainerImage=cluster.trainer_image,
            sweepSeconds=_COMPARES_EVERY_S,
        )
        scale(cluster, 0)
        try:
            with process:
                number = process.pid
                try:
                    yield StandIn(process, proxy, clock_file)
                finally:
                    process.kill()
                    # What libfaketime shares between processes, and leaves behind where one is killed.
                    for name in (f"faketime_shm_{number}", f"sem.faketime_sem_{number}"):
                        (SHARED / name).unlink(missing_ok=True)
        finally:
            scale(cluster, 1)


def scale(cluster: JobCluster, replicas: int) -> None:
    """Have so many pods of the operator, and wait for that."""
    cluster.kubectl("-n", SYSTEM, "scale", DEPLOYMENT, f"--replicas={replicas}")
    if replicas:
        wait_ready(cluster)
    else:
        poll(lambda: not operator_pods(cluster), "the operator's pod to go", timeout_s=READY_S)


def operator_pods(cluster: JobCluster) -> list[Json]:
    """Return the operator's pods, those that are leaving included."""
    words = ("get", "pods", "-l", "app.kubernetes.io/name=bert-operator", "-o", "json")
    return [*json.loads(cluster.kubectl("-n", SYSTEM, *words))["items"]]


def kill_operator(cluster: JobCluster) -> None:
    """SIGKILL the operator. Its pod is deleted as well, so that kubelet's back-off does not decide when it is back.

    Raises NotInEffect where it does not run.
    """
    pods = operator_pods(cluster)
    if not sum(signal_pod(pod, signal.SIGKILL) for pod in pods):
        raise NotInEffect("no operator was running")
    for pod in pods:
        words = ("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force", "--wait=false")
        cluster.kubectl("-n", SYSTEM, *words)


def wait_ready(cluster: JobCluster) -> None:
    """Wait until the operator's newest pod is ready."""
    cluster.kubectl("-n", SYSTEM, "rollout", "status", DEPLOYMENT, f"--timeout={READY_S}s")
