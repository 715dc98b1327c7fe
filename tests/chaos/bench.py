"""Where faults happen: a cluster with the operator, a dataset, and the run that nothing happens to."""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cluster_api import wait_until
from control_plane import fill_documents
from faulty_volume import FaultyVolume
from job_cluster import CLAIM, READER, USER, JobCluster, Namespace
from job_watch import JobWatch, Step, read_ledger, surviving
from node import make_volume
from real_jobs import DATA_JOB, STEPS, RealJob, data_job, training_job

LAST_STAGE = [*STEPS][-1]
START_DEADLINE_S = 400.0
UNDISTURBED = "undisturbed"
SLOWER = 4
"""How many times the batches of ``training_job``: at 50 steps a second a job takes a dozen of them between an eviction
and its ranks' stop, and ends inside other faults."""


@dataclass(slots=True)
class Bench:
    """A cluster of one node on this machine, and what the jobs on it share."""

    cluster: JobCluster
    namespace: Namespace
    undisturbed: RealJob
    start_s: float
    """Seconds from the start of the launcher's process to the first step, with nothing else going on."""
    expected_ledger: dict[Step, tuple[int, ...]]
    expected_outcome: dict[str, str]
    slower: int
    _faulty: tuple[Namespace, FaultyVolume] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of_run(cls, undisturbed: RealJob, start_s: float, slower: int = SLOWER) -> Bench:
        """Take a ``chaos_job`` that has succeeded as that to compare with; it was so much slower."""
        folder = folder_of(undisturbed)
        ledger, _ = read_ledger((folder / "ledger.jsonl").read_text())
        namespace = undisturbed.namespace
        return cls(
            namespace.cluster,
            namespace,
            undisturbed,
            start_s,
            surviving(ledger),
            outcome_of(undisturbed, folder),
            slower,
        )

    def make_namespace(self, name: str) -> Namespace:
        """Return a new namespace with a volume that holds the dataset."""
        namespace = self.cluster.make_namespace(name)
        namespace.make_claim()
        copy_dataset(self.namespace, namespace)
        return namespace

    def faulty(self) -> tuple[Namespace, FaultyVolume]:
        """Return the namespace whose volume can be made to fail, made when it is first asked for."""
        with self._lock:
            if self._faulty is None:
                namespace = self.cluster.make_namespace("faulty")
                assert self.cluster.node is not None
                mounted = make_volume(self.cluster.node, namespace.name, CLAIM)
                volume = FaultyVolume(mounted, self.cluster.node.folder / "faulty")
                volume.start()
                reader = fill_documents("reader", name=READER, image=self.cluster.trainer_image, user=USER, claim=CLAIM)
                namespace.apply(*reader)
                namespace.wait_pod(READER, "Running", START_DEADLINE_S)
                subprocess.run(["cp", "-a", f"{self.namespace.folder}/{DATA_JOB}", str(volume.backing)], check=True)
                self._faulty = namespace, volume
            return self._faulty

    def close(self) -> None:
        """End the process behind the faulty volume; all else goes with the cluster."""
        if self._faulty is not None:
            self._faulty[1].stop()


def chaos_job(name: str, *, slower: int = SLOWER, **spec: object) -> dict[str, object]:
    """Return the job that faults happen to: two pods with one rank each, 180 steps, a checkpoint at every tenth."""
    job = training_job(name, **spec)
    job["spec"]["stages"] = job["spec"]["stages"][: len(STEPS)]  # without the exports
    for stage in job["spec"]["stages"]:
        stage["pretrain"]["globalBatchSize"] *= slower
    return job


def prepare_bench(cluster: JobCluster, kept_dataset: Path) -> Bench:
    """Return a bench on a cluster that has the operator.

    kept_dataset: of an earlier bench, or where that of this one is kept.
    """
    namespace = cluster.make_namespace("chaos")
    namespace.make_claim()
    assert namespace.folder is not None, "make chaos needs a cluster of its own; unset KUBECONFIG"
    if kept_dataset.exists():
        subprocess.run(["cp", "-a", str(kept_dataset), str(namespace.folder / DATA_JOB)], check=True)
    else:
        namespace.apply(data_job())
        RealJob(namespace, DATA_JOB).wait_phase("Succeeded", timeout_s=START_DEADLINE_S)
        kept_dataset.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", str(namespace.folder / DATA_JOB), str(kept_dataset)], check=True)
    return Bench.of_run(*run_undisturbed(namespace))


def run_undisturbed(namespace: Namespace) -> tuple[RealJob, float]:
    """Run the job to its end, and measure how long its processes took from their start to the first step."""
    namespace.apply(chaos_job(UNDISTURBED))
    job = RealJob(namespace, UNDISTURBED)
    with JobWatch(folder_of(job)) as watch:
        wait_until(
            lambda: watch.lines, "the first step of the undisturbed run", timeout_s=START_DEADLINE_S, every_s=0.1
        )
        first_s = time.time() - (time.monotonic() - watch.lines[0].seen_s)
        (launcher,) = job.pods("launcher")
        started = launcher["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        job.wait_phase("Succeeded", timeout_s=START_DEADLINE_S)
    return job, first_s - datetime.fromisoformat(started).timestamp()


def copy_dataset(source: Namespace, target: Namespace) -> None:
    """Copy the dataset from one volume to another, owners included."""
    subprocess.run(["cp", "-a", f"{source.folder}/{DATA_JOB}", str(target.folder)], check=True)


def folder_of(job: RealJob) -> Path:
    """Return a job's output folder on this machine."""
    assert job.namespace.folder is not None
    return job.namespace.folder / job.name


def outcome_of(job: RealJob, folder: Path) -> dict[str, str]:
    """Return what has to be the same whatever happened: checksums of the last checkpoint, evaluations in the status."""
    checkpoints = sorted((folder / "checkpoints").glob(f"{LAST_STAGE}-*"))
    files = sorted(checkpoints[-1].glob("*.safetensors")) if checkpoints else []
    sums = {f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    results = {f"evaluation of {stage}": json.dumps(found, sort_keys=True) for stage, found in job.results().items()}
    return {**sums, **results}
