"""How fast the operator is, beside a bare client that makes the same writes: ``make bench-operator``.

Every round has a fresh control plane (etcd, kube-apiserver) on this machine, and a thousand jobs (also 100 and 3,000)
applied at once, in twenty namespaces: in a single one Events would wait for their turn, and be written after all has
been measured. First the bare client, then the operator, then the bare client again: the ratio is taken against the
mean of the two. With ``--before FOLDER``, the folder ``operator`` of another checkout, that one's operator is measured
first, on a control plane of its own and under the definitions of this checkout. Beside each of them mpi_controller.py
writes the first status of every MPIJob, as mpi-operator does, which itself does not run: the pods that it would make at
once are created by the benchmark when the children are there, so that memory is that of an operator that knows them.
At last all pods run, and kubelet.py answers whoever asks for their logs with a new progress record each time: then the
operator's processor time is that of jobs that train and report (``steady_cpu_s_per_min``).

The line of a size comes as soon as it is measured; what is being done meanwhile goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/local_cluster"))

from bert_operator.api.crd import render_crd  # noqa: E402
from bert_operator.cluster.settings import Settings  # noqa: E402
from bert_operator.names import CONTAINER  # noqa: E402
from bert_operator.render import names  # noqa: E402
from bert_operator.timestamps import render_time  # noqa: E402
from cluster_api import Api, in_parallel, wait_until  # noqa: E402 - after the path
from component import Component  # noqa: E402
from control_plane import ControlPlane, namespace_of  # noqa: E402
from operator_process import OperatorProcess  # noqa: E402

HERE = Path(__file__).parent
NAMESPACES = [f"bench-{number}" for number in range(20)]
WORKERS = 4
PODS_PER_JOB = WORKERS + 1
ROUNDS = (100, 1000, 3000)
DEADLINE_S = 600.0
ASK_EVERY_S = 0.25
"""The operator for its metrics. It renders the page in its only thread: asked all the time, it would do little else."""
QUIET_FOR_S, QUIET_SHARE = 2.0, 0.02
"""It has nothing left to do if it uses no more than this share of a processor for so long."""
TOLD_EVERY_S = 10.0
STEADY_S = 120.0
"""In which the operator compares all that it knows twice, and reads 1,200 logs."""
NODE = "bench"
WRITTEN = ("bertpretrainjobs", "configmaps", "mpijobs", "jobs", "events")
STARTED_S = time.monotonic()

Json = dict[str, Any]


@dataclass
class Round:
    """Figures of one number of jobs."""

    jobs: int
    operator_jobs_per_s: float
    writes_per_job: float
    silences: int
    """MPIJobs that were reported to have no status for half a minute, with two writes each."""
    operator_cpu_ms_per_job: float
    rss_mb: float
    restart_s: float
    restart_cpu_s: float
    restart_rss_mb: float
    steady_cpu_s_per_min: float
    """Of all jobs together, while they train and report."""
    steady_rss_mb: float
    bare_jobs_per_s: list[float] = field(default_factory=list)

    @property
    def limit(self) -> float:
        """Return what the bare client made, on average of its runs around the operator's."""
        return statistics.mean(self.bare_jobs_per_s)


HEADER = (
    f"{'jobs':>6} {'jobs/s':>8} {'limit':>8} {'of limit':>8} {'writes/job':>10} {'cpu ms/job':>10} "
    f"{'pods':>6} {'rss MB':>7} {'restart s':>9} {'its cpu s':>9} {'rss after':>9} {'cpu s/min':>9} {'rss then':>8}"
)


def render_line(one: Round) -> str:
    """Return the line of one number of jobs, below the header."""
    return (
        f"{one.jobs:6} {one.operator_jobs_per_s:8.1f} {one.limit:8.1f} "
        f"{one.operator_jobs_per_s / one.limit:8.2f} {one.writes_per_job:10.2f} "
        f"{one.operator_cpu_ms_per_job:10.1f} {one.jobs * PODS_PER_JOB:6} {one.rss_mb:7.1f} "
        f"{one.restart_s:9.2f} {one.restart_cpu_s:9.2f} {one.restart_rss_mb:9.1f} "
        f"{one.steady_cpu_s_per_min:9.2f} {one.steady_rss_mb:8.1f}   bare runs: "
        f"{', '.join(f'{rate:.0f}' for rate in one.bare_jobs_per_s)}; reports of silence: {one.silences}"
    )


def render_change(before: Round, now: Round) -> str:
    """Return what the second comes to beside the first."""
    ratios = {
        "jobs/s": now.operator_jobs_per_s / before.operator_jobs_per_s,
        "writes": now.writes_per_job / before.writes_per_job,
        "cpu": now.operator_cpu_ms_per_job / before.operator_cpu_ms_per_job,
        "rss": now.rss_mb / before.rss_mb,
        "restart": now.restart_s / before.restart_s,
        "restart cpu": now.restart_cpu_s / before.restart_cpu_s,
        "steady cpu": now.steady_cpu_s_per_min / before.steady_cpu_s_per_min,
    }
    return f"{now.jobs:6} of before: {', '.join(f'{name} {ratio:.2f}' for name, ratio in ratios.items())}"


def say(what: str) -> None:
    """Tell what is being done, with the time since the start; figures alone go to standard output."""
    print(f"bench-operator: {time.monotonic() - STARTED_S:5.0f} s  {what}", file=sys.stderr, flush=True)


def main() -> int:
    """Run all rounds; the last line holds the figures of 1,000 jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="*", default=list(ROUNDS))
    parser.add_argument("--before", type=Path, help="the folder operator of another checkout, measured likewise")
    options = parser.parse_args()
    sizes = options.jobs
    planes = "three" if options.before is None else "four"
    say(f"{len(sizes)} sizes: {', '.join(f'{jobs:,} jobs' for jobs in sizes)}; each with {planes} fresh control planes")
    print(HEADER, flush=True)
    rounds = []
    for jobs in sizes:
        say(f"{jobs:,} jobs: the bare client")
        bare = [run_bare(jobs)]
        folders = [None] if options.before is None else [options.before, None]
        measured = [run_round(jobs, folder) for folder in folders]
        say(f"{jobs:,} jobs: the bare client once more")
        bare.append(run_bare(jobs))
        for one in measured:
            one.bare_jobs_per_s = bare
            print(render_line(one), flush=True)
        if options.before is not None:
            print(render_change(*measured), flush=True)
        rounds.append(measured[-1])
    main_round = next((one for one in rounds if one.jobs == 1000), rounds[-1])
    print(
        f"bench-operator: jobs={main_round.jobs} jobs_per_s={main_round.operator_jobs_per_s:.1f} "
        f"apiserver_limit_jobs_per_s={main_round.limit:.1f} "
        f"rss_mb={max(main_round.rss_mb, main_round.restart_rss_mb):.0f} "
        f"restart_s={main_round.restart_s:.1f} writes_per_job={main_round.writes_per_job:.2f} "
        f"steady_cpu_s_per_min={main_round.steady_cpu_s_per_min:.2f}"
    )
    return 0


def run_round(jobs: int, folder: Path | None) -> Round:
    """Measure one number of jobs. folder: of the package where it is not this checkout's."""
    whose = "the operator" if folder is None else "the operator of before"
    say(f"{jobs:,} jobs: {whose} creates their children")
    with fresh_cluster() as (control_plane, config), Operator(config, folder) as operator:
        api = control_plane.api
        before = count_writes(api)
        cpu_before = operator.cpu_s()
        started_s = time.monotonic()
        apply_jobs(api, jobs)
        rate = jobs / (wait_for_children(api, jobs) - started_s)
        # The last statuses and Events follow their children.
        cpu_ms = 1000 * (operator.wait_quiet(jobs) - cpu_before) / jobs
        writes = (count_writes(api) - before - jobs) / jobs
        silences = int(operator.figure('watch_events_total{kind="Event"}'))
        say(f"{jobs:,} jobs: {jobs * PODS_PER_JOB:,} pods are created")
        create_pods(api, jobs)
        operator.wait_idle(jobs, pods=jobs * PODS_PER_JOB)
        rss_mb = operator.resident_bytes / 1e6
        say(f"{jobs:,} jobs: {whose} starts again")
        operator.kill()
        restart_s = operator.start_and_wait(jobs)
        restart_cpu_s, restart_rss_mb = operator.cpu_s(), operator.resident_bytes / 1e6
        say(f"{jobs:,} jobs: their pods run, and tell of progress")
        with kubelet(control_plane):
            run_pods(api, jobs)
            operator.wait_running(jobs)
            steady_cpu_s_per_min = operator.measure_steady()
        return Round(
            jobs=jobs,
            operator_jobs_per_s=rate,
            writes_per_job=writes,
            silences=silences,
            operator_cpu_ms_per_job=cpu_ms,
            rss_mb=rss_mb,
            restart_s=restart_s,
            restart_cpu_s=restart_cpu_s,
            restart_rss_mb=restart_rss_mb,
            steady_cpu_s_per_min=steady_cpu_s_per_min,
            steady_rss_mb=operator.resident_bytes / 1e6,
        )


@contextmanager
def fresh_cluster() -> Iterator[tuple[ControlPlane, Path]]:
    """Start a control plane with both CRDs and the namespaces, and what writes the first status of MPIJobs."""
    with ControlPlane(start=("etcd", "kube-apiserver")) as control_plane:
        api = control_plane.api
        api.apply_crd(render_crd())
        control_plane.install_mpi_operator()
        for namespace in NAMESPACES:
            api.create(namespace_of(namespace)).expect()
        config = control_plane.kubeconfig(control_plane.admin_token)
        command, log = [sys.executable, str(HERE / "mpi_controller.py")], config.with_name("mpi-controller.log")
        with Component(
            "mpi-controller",
            command,
            log,
            lambda: log.read_text().startswith("ready"),
            environment={"KUBECONFIG": str(config)},
        ):
            yield control_plane, config


class Operator(OperatorProcess):
    """The operator as a process of its own, with the settings that it has by default."""

    def __init__(self, config: Path, folder: Path | None) -> None:
        super().__init__(config.parent, config, wheel=folder, sweepSeconds=Settings().sweep_seconds)

    def start_and_wait(self, jobs: int) -> float:
        """Start it again and return the seconds until it knows everything and has looked at every job."""
        started_s = time.monotonic()
        self.launch()
        self.wait_idle(jobs, pods=jobs * PODS_PER_JOB)
        return time.monotonic() - started_s

    def wait_quiet(self, jobs: int) -> float:
        """Return the processor time that it had used when it had looked at every job and had nothing left to do.

        It is left alone until it uses none: its page of metrics costs it as much as dozens of jobs.
        """
        used_s, ends_at_s = -math.inf, time.monotonic() + DEADLINE_S
        while (now_s := self.cpu_s()) - used_s > QUIET_SHARE * QUIET_FOR_S:
            if time.monotonic() > ends_at_s:
                raise TimeoutError(f"the operator is still busy after {DEADLINE_S:.0f} s; see {self.log_file}")
            used_s = now_s
            time.sleep(QUIET_FOR_S)
        self.wait_idle(jobs)
        return now_s

    def wait_idle(self, jobs: int, pods: int = 0) -> None:
        """Return once it has looked at every job, knows so many pods, and has nothing left to do."""
        names = ('reconciles_total{result="done"}', 'known_objects{kind="pods"}', "queue_depth", "queue_oldest_seconds")

        def is_idle() -> bool:
            looked, known, depth, oldest_s = self.figures(*names)
            return looked >= jobs and known == pods and depth == oldest_s == 0

        wait_until(is_idle, "an operator with nothing left to do", timeout_s=DEADLINE_S, every_s=ASK_EVERY_S)

    def wait_running(self, jobs: int) -> None:
        """Return once it has told of all jobs that they run, and has nothing left to do."""

        def is_idle() -> bool:
            running, depth = self.figures('jobs{phase="Running"}', "queue_depth")
            return running == jobs and depth == 0

        wait_until(is_idle, "jobs that run", timeout_s=DEADLINE_S, every_s=ASK_EVERY_S)
        self.wait_resyncs(1)

    def measure_steady(self) -> float:
        """Return the seconds of processor time that it uses in a minute while it is left alone."""
        began_s, used_s = time.monotonic(), self.cpu_s()
        time.sleep(STEADY_S)
        return 60 * (self.cpu_s() - used_s) / (time.monotonic() - began_s)

    def cpu_s(self) -> float:
        """Return the seconds of processor time that it has used."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system


def run_bare(jobs: int) -> float:
    """Return the jobs per second of a client that makes the operator's writes and nothing else."""
    with fresh_cluster() as (control_plane, config):
        command = [sys.executable, str(HERE / "bare_client.py"), str(jobs)]
        environment = {**os.environ, "KUBECONFIG": str(config)}
        client = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        try:
            assert client.stdout is not None
            assert client.stdin is not None
            assert client.stdout.readline() == "ready\n"
            started_s = time.monotonic()
            client.stdin.write("go\n")
            client.stdin.flush()
            apply_jobs(control_plane.api, jobs)
            ended_s = wait_for_children(control_plane.api, jobs)
            assert client.wait(DEADLINE_S) == 0
        finally:
            client.kill()
            client.wait()
        return jobs / (ended_s - started_s)


def namespace_of_job(number: int) -> str:
    """Return where a job is."""
    return NAMESPACES[number % len(NAMESPACES)]


def job_document(number: int) -> Json:
    """Return one of many jobs with four workers."""
    claim = {"persistentVolumeClaim": {"claimName": "results"}}
    return {
        "apiVersion": "bert-operator.dev/v1alpha1",
        "kind": "BertPretrainJob",
        "metadata": {"name": f"job-{number}", "namespace": namespace_of_job(number)},
        "spec": {
            "workers": WORKERS,
            "slotsPerWorker": 8,
            "model": {"preset": "large"},
            "dataset": {"path": "wiki"},
            "output": {"path": f"runs/{number}", "volume": claim},
            "resources": {"accelerator": {}},
            "securityContext": {"runAsUser": 54321, "fsGroup": 54321},
            "stages": [
                {
                    "name": "phase1",
                    "pretrain": {
                        "sequenceLength": 128,
                        "globalBatchSize": 65536,
                        "learningRate": 0.006,
                        "warmup": {"proportion": 0.2843},
                        "length": {"steps": 7038},
                    },
                },
                {
                    "name": "phase2",
                    "pretrain": {
                        "sequenceLength": 512,
                        "globalBatchSize": 32768,
                        "learningRate": 0.004,
                        "warmup": {"proportion": 0.128},
                        "length": {"steps": 1563},
                    },
                },
                {"name": "export", "export": {}},
            ],
        },
    }


def apply_jobs(api: Api, jobs: int) -> None:
    """Create all jobs as fast as the API server takes them."""
    in_parallel(lambda number: api.create(job_document(number)).expect(), range(jobs), threads=4)


def wait_for_children(api: Api, jobs: int) -> float:
    """Return when the last child was there, by asking for the number of MPIJobs only."""
    path = "/apis/kubeflow.org/v2beta1/mpijobs"

    told_s = time.monotonic()

    def all_there() -> bool:
        nonlocal told_s
        page = api.request("GET", path, query={"limit": "1"}).expect()
        there = len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))
        if time.monotonic() - told_s > TOLD_EVERY_S:
            say(f"{jobs:,} jobs: {there:,} children are there")
            told_s = time.monotonic()
        return there >= jobs

    wait_until(all_there, f"{jobs} children", timeout_s=DEADLINE_S)
    return time.monotonic()


def count_writes(api: Api) -> int:
    """Return how many writes the API server has answered so far, those of its own loops left out."""
    page = api.text("/metrics")
    total = 0
    for line in page.splitlines():
        if line.startswith("apiserver_request_total{") and re.search(r'verb="(POST|PATCH|PUT|DELETE)"', line):
            resource = re.search(r'resource="([^"]*)"', line)
            # The status of an MPIJob is not the operator's.
            is_controllers = 'resource="mpijobs"' in line and 'subresource="status"' in line
            if resource and resource[1] in WRITTEN and not is_controllers:
                total += int(float(line.rsplit(" ", 1)[1]))
    return total


def uids_of(api: Api, resource: str) -> dict[tuple[str, str], str]:
    """Return the uids of all objects of a resource, by namespace and name."""
    found = (item["metadata"] for item in api.list(resource))
    return {(metadata["namespace"], metadata["name"]): metadata["uid"] for metadata in found}


def pod_name(number: int, index: int) -> str:
    """Return the name of a job's pod; the last one is the launcher's."""
    role = names.LAUNCHER if index == WORKERS else names.WORKER
    return f"{names.child_name(f'job-{number}', 'training', 1, is_mpi=True)}-{role}-{index}"


def create_pods(api: Api, jobs: int) -> None:
    """Create the pods that mpi-operator would make, in the size that they have."""
    children = uids_of(api, "kubeflow.org/v2beta1/mpijobs")

    def create(pair: tuple[int, int]) -> None:
        number, index = pair
        role = names.LAUNCHER if index == WORKERS else names.WORKER
        job, namespace = f"job-{number}", namespace_of_job(number)
        child = names.child_name(job, "training", 1, is_mpi=True)
        owner = {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "name": child,
            "uid": children[namespace, child],
            "controller": True,
        }
        variables = [{"name": f"VARIABLE_{count}", "value": "x" * 40} for count in range(30)]
        api.create({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod_name(number, index),
                "namespace": namespace,
                "labels": {**names.labels(job, "training", 1), names.ROLE_LABEL: role},
                "ownerReferences": [owner],
            },
            "spec": {
                "nodeName": NODE,
                "containers": [{"name": CONTAINER, "image": Settings().trainer_image, "env": variables}],
            },
        }).expect()  # fmt: skip

    for namespace in NAMESPACES:
        account = {"metadata": {"name": "default", "namespace": namespace}}
        api.create({"apiVersion": "v1", "kind": "ServiceAccount", **account})
    in_parallel(create, [(number, index) for number in range(jobs) for index in range(PODS_PER_JOB)], threads=8)


@contextmanager
def kubelet(control_plane: ControlPlane) -> Iterator[None]:
    """Have a node whose kubelet answers for logs, and for nothing else."""
    api = control_plane.api
    jobs = uids_of(api, "bert-operator.dev/v1alpha1/bertpretrainjobs")
    uids = {
        f"{namespace}/{pod_name(int(name.removeprefix('job-')), WORKERS)}": uid
        for (namespace, name), uid in jobs.items()
    }
    certificates = control_plane.ca_file.parent
    pair = certificates / "kubelet.pem"
    pair.touch(mode=0o600)
    pair.write_text(control_plane.ca_file.with_suffix(".key").read_text() + control_plane.ca_file.read_text())
    server = subprocess.Popen(
        [sys.executable, str(HERE / "kubelet.py"), str(pair)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(uids))
        server.stdin.close()
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}).expect()
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": int(server.stdout.readline())}},
        }
        api.patch("v1/nodes", NODE, {"status": status}, subresource="status").expect()
        yield
    finally:
        server.kill()
        server.wait()


def run_pods(api: Api, jobs: int) -> None:
    """Write that all pods run, as their kubelet would."""
    now = render_time(time.time())
    conditions = [
        {"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    container = {
        "name": CONTAINER,
        "ready": True,
        "restartCount": 0,
        "image": "trainer",
        "imageID": "",
        "state": {"running": {"startedAt": now}},
    }
    status = {"phase": "Running", "conditions": conditions, "containerStatuses": [container], "startTime": now}

    def run(pair: tuple[int, int]) -> None:
        place = pod_name(*pair), {"status": status}, namespace_of_job(pair[0])
        api.patch("v1/pods", *place, subresource="status").expect()

    in_parallel(run, [(number, index) for number in range(jobs) for index in range(PODS_PER_JOB)], threads=8)


if __name__ == "__main__":
    sys.exit(main())
