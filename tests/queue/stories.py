"""What a queue does to a job, seen from outside: preempted, re-admitted, and at its end the undisturbed run's result.

The one that takes the quota is a plain Job of a higher priority. Whether a job was right is asked of its files, as in
``tests/chaos``: the sums of its last checkpoint, its evaluations, the samples of every step, and who committed when.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from urllib3.exceptions import HTTPError

from bench import Bench, chaos_job, folder_of, outcome_of
from cluster_api import wait_until
from job_cluster import Json, Namespace
from job_watch import JobWatch, Step, surviving
from kueue import PRIORITY_LABEL, WORKLOADS
from real_jobs import RealJob
from verdict import commits_by_turns, compare_ledgers, compare_outcomes

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
TRAINING, URGENT = "training", "urgent"
"""The two queues, and the priority class of those in the second."""
GOES_S, RETURNS_S, ENDS_S = 180.0, 120.0, 400.0
LOOK_S = 0.2
SAYS_S = 15.0
"""Longest time until the status of a preempted job says so."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the run without a queue has left."""

    ledger: dict[Step, tuple[int, ...]]
    outcome: dict[str, str]


@dataclass(frozen=True, slots=True)
class Preempted:
    """How one preemption went."""

    story: str
    step: int
    """Steps that had been trained when the other one asked for the quota."""
    resume_s: float
    """From the second admission to a step."""
    lost_steps: int
    """That were trained a second time."""
    lost_samples: int
    doubled_samples: int
    findings: tuple[str, ...]


def queued_job(name: str, *, workers: int, **spec: Any) -> Json:
    """Return the job of ``tests/chaos`` in the queue for training."""
    return chaos_job(name, workers=workers, queueName=TRAINING, **spec)


@contextmanager
def urgent_job(namespace: Namespace, image: str, pods: int) -> Iterator[str]:
    """Have a Job of a higher priority ask for the quota of so many pods, and delete it at the end; gives its name."""
    name = f"urgent-{time.monotonic_ns()}"
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "3600"],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsUser": 1000, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    labels = {QUEUE_LABEL: URGENT, PRIORITY_LABEL: URGENT}
    metadata = {"name": name, "namespace": namespace.name, "labels": labels}
    spec = {"template": {"spec": pod}, "backoffLimit": 0, "parallelism": pods, "completions": pods}
    namespace.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
    try:
        yield name
    finally:
        namespace.kubectl("delete", "job", name, "--ignore-not-found", "--wait=false")


def tell_preemption(
    bench: Bench,
    expected: Expected,
    story: str,
    *,
    workers: int,
    quota: int,
    after_steps: int,
    disturb: Callable[[RealJob], None],
) -> Preempted:
    """Let a job be preempted once, and compare what it ends with.

    Args:
        bench: Cluster, namespace and dataset.
        expected: Of the run that nothing happened to, with as many ranks.
        story: Name of the job.
        workers: Of the job: one pod, or an MPIJob.
        quota: Pods that there is room for.
        after_steps: When the urgent one comes.
        disturb: Called once the job has been told to stop.
    """
    namespace = bench.namespace
    namespace.apply(queued_job(story, workers=workers))
    job, findings = RealJob(namespace, story), list[str]()
    with JobWatch(folder_of(job)) as watch, _Runs(job) as runs:
        wait_until(lambda: watch.reached >= after_steps, partial(_progress, job, watch), timeout_s=ENDS_S, every_s=0.05)
        # All of the quota: beside a job of one pod there is room for others.
        with urgent_job(namespace, bench.cluster.trainer_image, pods=quota) as urgent:
            wait_until(lambda: is_evicted(job), lambda: f"{story} to be preempted", timeout_s=GOES_S, every_s=0.1)
            step = watch.reached
            disturb(job)
            wait_until(lambda: not _pods(job), lambda: f"the pods of {story} to go", timeout_s=GOES_S, every_s=0.2)
            job.wait_phase("Queued", timeout_s=GOES_S)
            wait_until(
                lambda: _is_running(namespace, urgent), lambda: f"{urgent} to run", timeout_s=GOES_S, every_s=0.2
            )
            # An operator that has just begun reads Workloads one after another.
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: not _missing_words(job), "the status to say why", timeout_s=SAYS_S, every_s=0.2)
            findings += _missing_words(job)
        trained = len(watch.lines)
        wait_until(lambda: is_admitted(job), lambda: f"{story} to be admitted", timeout_s=RETURNS_S, every_s=0.02)
        admitted_s = time.monotonic()
        wait_until(
            lambda: len(watch.lines) > trained, partial(_progress, job, watch), timeout_s=RETURNS_S, every_s=0.02
        )
        resume_s = time.monotonic() - admitted_s
        job.wait_phase("Succeeded", timeout_s=ENDS_S)
    lost, doubled = compare_ledgers(surviving(watch.lines), expected.ledger, whole=True)
    if differs := compare_outcomes(outcome_of(job, folder_of(job)), expected.outcome):
        findings.append(differs)
    if turns := commits_by_turns(watch.commits):
        findings.append(turns)
    if len({commit.owner for commit in watch.commits}) < 2:
        findings.append("only one run has committed a checkpoint")
    if runs.most_at_once > 1:
        findings.append(f"{runs.most_at_once} launchers or single pods at once")
    if job.status().get("failures"):
        findings.append(f"counted as failures: {job.status()['failures']}")
    lost_steps = len(watch.lines) - watch.reached
    return Preempted(story, step, resume_s, lost_steps, lost, doubled, tuple(findings))


class _Runs:
    """Counts how many pods lead a run of a job at the same time: ``with _Runs(job) as runs: ...``."""

    def __init__(self, job: RealJob) -> None:
        self._job = job
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.most_at_once = 0

    def __enter__(self) -> _Runs:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            with contextlib.suppress(OSError, HTTPError, AssertionError):  # the API server may be away on purpose
                leaders = [*self._job.pods("launcher"), *self._job.pods("single")]
                running = [pod for pod in leaders if pod["status"].get("phase") == "Running"]
                self.most_at_once = max(self.most_at_once, len(running))


def workload_of(job: RealJob) -> Json:
    """Return the Workload of the newest child of a job; empty where there is none, or the API server is away."""
    node = job.namespace.cluster.node
    assert node is not None
    found: list[Json] = []
    with contextlib.suppress(OSError, HTTPError, AssertionError):
        for workload in node.api.list(WORKLOADS, job.namespace.name):
            owners = [owner["name"] for owner in workload["metadata"].get("ownerReferences", ())]
            if any(name.startswith(f"{job.name}-a") for name in owners):
                found.append(workload)
    return max(found, key=lambda workload: str(workload["metadata"]["creationTimestamp"]), default={})


def is_evicted(job: RealJob) -> bool:
    """Whether a queue has told a job to stop, and not admitted it since."""
    return "Evicted" in _conditions(job)


def is_admitted(job: RealJob) -> bool:
    """Whether a queue lets a job run."""
    conditions = _conditions(job)
    return "Admitted" in conditions and "Evicted" not in conditions


def _conditions(job: RealJob) -> set[str]:
    conditions = workload_of(job).get("status", {}).get("conditions") or ()
    return {str(item["type"]) for item in conditions if item["status"] == "True"}


def _missing_words(job: RealJob) -> list[str]:
    """Say what the status of a preempted job does not tell."""
    status = job.status()
    told = f"{status.get('reason')}: {status.get('message')}"
    return [] if "preempt" in told.lower() else [f"the status does not say that it was preempted ({told})"]


def _pods(job: RealJob) -> list[Json]:
    return [pod for role in ("launcher", "worker", "single") for pod in job.pods(role)]


def _is_running(namespace: Namespace, job: str) -> bool:
    pods = namespace.list("pods", f"batch.kubernetes.io/job-name={job}")
    return any(pod["status"].get("phase") == "Running" for pod in pods)


def _progress(job: RealJob, watch: JobWatch) -> str:
    return f"a step of {job.name} after {watch.reached}, whose status is {job.status()}"
