"""``make chaos-quiet``: healthy jobs where everything is slow, to count the false alarms; the bar is none.

The volume is slow (``faulty_volume``), the operator's API server answers every request late (``flaky_proxy``), and
busy processes take the ranks' time. Every job must succeed in its first attempt, with no failure on record, and its
status must never have told of a rank, a node or a log that something is wrong with.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / name) for name in ("tools/local_cluster", "tests/support", "tests/chaos")]

from bench import Bench, chaos_job, prepare_bench  # noqa: E402 - after the path
from campaign import status_of  # noqa: E402
from cluster_api import wait_until  # noqa: E402
from flaky_proxy import Fault as ProxyFault  # noqa: E402
from flaky_proxy import FlakyProxy  # noqa: E402
from job_cluster import SYSTEM, JobCluster  # noqa: E402
from operator_process import ACCOUNT, OperatorProcess  # noqa: E402
from own_cluster import own_cluster  # noqa: E402
from real_jobs import RealJob  # noqa: E402
from run import say  # noqa: E402

API_DELAY_S = 2.0
BUSY_PROCESSES = 2
END_DEADLINE_S = 1200.0
"""A healthy job is not judged by how long it takes where everything is slow, with several of them side by side."""
STEPS = {"phase1": 40, "phase2": 20}
_REASONS = {"NoProgress", "PodNotReady", "StorageFailed"}
_CONDITIONS = {"Straggling", "NodeUnhealthy", "ProgressUnknown", "GraceTooShort"}


def main(words: Sequence[str]) -> int:
    """Run healthy jobs; 0 where none was restarted and all succeeded."""
    parser = argparse.ArgumentParser(prog="chaos-quiet", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, help="how many jobs (default: 100)")
    parser.add_argument("--at-a-time", type=int, default=2, help="how many of them side by side (default: 2)")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no job after so many seconds")
    parser.add_argument("--output", type=Path, default=Path("runs/chaos"), help="folder of the dataset and the results")
    arguments = parser.parse_args(words)
    file = arguments.output / "quiet.json"
    found: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    with own_cluster("chaos-quiet") as (cluster, folder):
        for run in _runs(cluster, folder, arguments, done={run["name"] for run in found}):
            found.append(run)
            file.write_text(json.dumps(found, indent=1) + "\n")
            say(f"{run['name']}: {run['phase']}, {run['seconds']:.0f} s, {run['restarts']} restarts {run['alarms']}")
            if not is_quiet(run):
                _keep_logs(folder, arguments.output / run["name"])
    print(last_line(found), flush=True)
    return 0 if found and all(is_quiet(run) for run in found) else 1


def is_quiet(run: dict[str, Any]) -> bool:
    """Tell whether a healthy job was left alone."""
    return run["phase"] == "Succeeded" and not run["restarts"] and not run["alarms"]


def last_line(found: Sequence[dict[str, Any]]) -> str:
    """Return the line that the runs end with."""
    restarts = sum(run["restarts"] for run in found)
    return f"chaos-quiet: runs={len(found)} quiet={sum(is_quiet(run) for run in found)} restarts={restarts}"


def _runs(
    cluster: JobCluster, folder: Path, arguments: argparse.Namespace, *, done: set[str]
) -> Iterator[dict[str, Any]]:
    started_s = time.monotonic()
    with ExitStack() as stack:
        cluster.install_operator(folder / "overlay")
        bench = prepare_bench(cluster, arguments.output / "dataset")
        stack.callback(bench.close)
        stack.enter_context(_slow_operator(cluster, folder))
        stack.enter_context(_busy_processors())
        pool, asked_to_end = ThreadPoolExecutor(max_workers=arguments.at_a_time), threading.Event()
        stack.callback(pool.shutdown, cancel_futures=True)
        stack.callback(asked_to_end.set)

        def run(name: str) -> dict[str, Any] | None:
            return None if time.monotonic() - started_s > arguments.limit_s else _run(bench, name, asked_to_end)

        names = [name for name in (f"quiet-{number}" for number in range(arguments.runs)) if name not in done]
        for ended in as_completed([pool.submit(run, name) for name in names]):
            if (found := ended.result()) is not None:
                yield found


def _keep_logs(folder: Path, kept: Path) -> None:
    """Copy the logs of the node's services and of the operator so far: they go with the cluster."""
    for log in folder.glob("*/*.log"):
        kept.mkdir(parents=True, exist_ok=True)
        shutil.copy(log, kept / f"{log.parent.name}-{log.name}")
    say(f"logs of that time: {kept}")


@contextmanager
def _slow_operator(cluster: JobCluster, folder: Path) -> Iterator[None]:
    """Replace the operator's pod by a process of this machine, which meets the API server through a slow proxy."""
    node = cluster.node
    assert node is not None
    cluster.kubectl("-n", SYSTEM, "scale", "deployment/bert-operator", "--replicas=0")
    token = node.service_account_token(ACCOUNT, ACCOUNT)
    with FlakyProxy(node.url, node.ca_file) as proxy:
        proxy.add(ProxyFault(lambda request: not request.is_watch, "delay", delay_s=API_DELAY_S))
        kubeconfig = node.kubeconfig(token, server=proxy.url)
        with OperatorProcess(folder / "operator", kubeconfig, trainerImage=cluster.trainer_image, sweepSeconds=30):
            yield


@contextmanager
def _busy_processors() -> Iterator[None]:
    # All pods together have the share of what they request, a few tenths of a processor. Beside two processes of nice 0
    # they would get a quarter of the machine, and a hundred runs would take three hours.
    command = ["nice", "-n", "10", sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command) for _ in range(BUSY_PROCESSES)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _run(bench: Bench, name: str, asked_to_end: threading.Event) -> dict[str, Any]:
    namespace, volume = bench.faulty()
    volume.set_trouble(name, "slow")
    document: Any = chaos_job(name, slower=1)
    document["spec"]["resources"]["memory"] = "1400Mi"  # six jobs side by side in 24 GiB
    for stage in document["spec"]["stages"]:
        stage["pretrain"]["length"] = {"steps": STEPS[stage["name"]]}
    started_s = time.monotonic()
    namespace.apply(document)
    job, alarms = RealJob(namespace, name), set[str]()

    def ended() -> bool:
        if asked_to_end.is_set():
            raise CancelledError(name)
        status = status_of(job)
        conditions = status.get("conditions", ())
        alarms.update({condition["reason"] for condition in conditions} & _REASONS)
        alarms.update({condition["type"] for condition in conditions if condition["status"] == "True"} & _CONDITIONS)
        return status.get("phase") in ("Succeeded", "Failed")

    try:
        wait_until(ended, name, timeout_s=END_DEADLINE_S, every_s=0.5)
    except TimeoutError:
        alarms.add("did not end")
    status = status_of(job)
    namespace.kubectl("delete", "bpj", name, "--ignore-not-found", "--wait=false")
    return {
        "name": name,
        "phase": status.get("phase", ""),
        "restarts": status.get("attempt", 1) - 1,
        "alarms": sorted(alarms),
        "failures": status.get("failures", []),
        "seconds": time.monotonic() - started_s,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
