"""``make test-queue``: the real Kueue preempts real jobs on a cluster of one node; none may show it at its end.

Two queues share a quota for one job at a time. A job of one pod and one of two workers are each preempted at a drawn
step and go on; then again while the operator is killed, its Lease stolen or the API server down in the middle of it. Of
two running jobs the one that has just saved must be the victim. And the second operator takes over, from one that is
killed with its pod and from one that leaves. Needs root and what ``tools/node_packages.sh`` installs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDERS = ("tools/local_cluster", "tests/support", "tests/chaos", "tests/queue")
sys.path[:0] = [str(HERE.parents[1] / name) for name in FOLDERS]

from bench import Bench, chaos_job, folder_of, outcome_of, prepare_bench  # noqa: E402 - after the path
from job_cluster import JobCluster  # noqa: E402
from job_watch import JobWatch, surviving  # noqa: E402
from kueue import Kueue, cluster_queue, flavor, local_queue, workload_priority  # noqa: E402
from leaders import kill_leader, polite_takeover, steal_lease, takeover  # noqa: E402
from node_shares import slowed  # noqa: E402
from own_cluster import own_cluster  # noqa: E402
from real_jobs import RealJob  # noqa: E402
from stories import TRAINING, URGENT, Expected, Preempted, tell_preemption  # noqa: E402
from victims import tell_victim  # noqa: E402

PODS = 3
"""Of a job with two workers: the quota."""
ROOM = {"cpu": "100", "memory": "200Gi"}
"""Whatever pods ask for has to be covered; what limits here is their number."""
API_SERVER_AWAY_S = 15.0
A_CRAWL = 0.05
"""Of a core, for each worker meanwhile: some 40 of the job's 180 steps."""
SETTINGS = {"priorityBoost": {"afterSeconds": [5, 15, 30]}}


def main(words: Sequence[str]) -> int:
    """Run all stories; 0 where every one ended as it had to."""
    parser = argparse.ArgumentParser(prog="test-queue", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="of the steps at which jobs are preempted (default: 1)")
    parser.add_argument("--output", type=Path, default=Path("runs/chaos"), help="folder that keeps the dataset")
    parser.add_argument("--only", help="only the stories whose name has this in it")
    arguments = parser.parse_args(words)
    with own_cluster("test-queue") as (cluster, folder):
        return _Stories(cluster, folder, arguments).run()


class _Stories:
    """What is told on one cluster, one after the other."""

    def __init__(self, cluster: JobCluster, folder: Path, arguments: argparse.Namespace) -> None:
        self._cluster, self._arguments = cluster, arguments
        self._drawn = random.Random(arguments.seed)  # noqa: S311 - a test's moment, no secret
        cluster.install_operator(folder / "overlay", SETTINGS, components=["priority-boost"])
        self._bench = prepare_bench(cluster, arguments.output / "dataset")

    def run(self) -> int:
        """Tell all; 0 where nothing was found."""
        bench, cluster = self._bench, self._cluster
        expected = {2: Expected(bench.expected_ledger, bench.expected_outcome), 1: _undisturbed_alone(bench)}
        away = _away(cluster)
        told, wrong_victim = list[Preempted](), None
        with _queues(cluster, bench.namespace.name):
            for name, workers, disturb in (
                ("two-workers", 2, _nothing),
                ("one-pod", 1, _nothing),
                ("operator-killed", 2, lambda job: kill_leader(cluster)),
                ("lease-stolen", 2, lambda job: steal_lease(cluster)),
                ("api-server-away", 2, away),
            ):
                if self._is_asked_for(name):
                    # What is disturbed meanwhile must not end first.
                    step = self._drawn.randrange(20, 120 if disturb is _nothing else 60)
                    told.append(
                        tell_preemption(
                            bench,
                            expected[workers],
                            name,
                            workers=workers,
                            quota=PODS,
                            after_steps=step,
                            disturb=disturb,
                        )
                    )
                    _say(told[-1])
            if self._is_asked_for("victim"):
                wrong_victim = tell_victim(bench, queue=TRAINING, pods=PODS, boost=2)
                print(f"--- victim: {wrong_victim or 'the one that had just saved'}", flush=True)
        taken = takeover(cluster), polite_takeover(cluster)
        print(_last_line(told, wrong_victim, *taken), flush=True)
        is_wrong = any(story.findings or story.lost_samples or story.doubled_samples for story in told)
        return 1 if is_wrong or wrong_victim else 0

    def _is_asked_for(self, name: str) -> bool:
        return self._arguments.only is None or self._arguments.only in name


def _undisturbed_alone(bench: Bench) -> Expected:
    """Run the job of one pod to its end, with no queue."""
    bench.namespace.apply(chaos_job("undisturbed-alone", workers=1))
    job = RealJob(bench.namespace, "undisturbed-alone")
    with JobWatch(folder_of(job)) as watch:
        job.wait_phase("Succeeded", timeout_s=400)
    return Expected(surviving(watch.lines), outcome_of(job, folder_of(job)))


@contextmanager
def _queues(cluster: JobCluster, namespace: str) -> Iterator[None]:
    """Start Kueue, with two queues that share the quota of one job."""
    assert cluster.node is not None
    with Kueue(cluster.node, feature_gates={"PriorityBoost": True}):
        for document in (
            flavor("default"),
            cluster_queue(TRAINING, {**ROOM, "pods": str(PODS)}, flavor="default"),
            local_queue(TRAINING, namespace, cluster_queue=TRAINING),
            local_queue(URGENT, namespace, cluster_queue=TRAINING),
            workload_priority(URGENT, 1000),
        ):
            cluster.node.api.create(document).expect()
        yield


def _away(cluster: JobCluster) -> Callable[[RealJob], None]:
    node = cluster.node
    assert node is not None

    def stop_for_a_while(job: RealJob) -> None:
        # Kueue has decided, and cannot suspend the job: it must not end meanwhile.
        with slowed(job.pods("worker"), A_CRAWL):
            node.api_server.kill()
            time.sleep(API_SERVER_AWAY_S)  # the fault itself
            node.api_server.start()

    return stop_for_a_while


def _nothing(job: RealJob) -> None:
    """Disturb nothing."""


def _say(story: Preempted) -> None:
    print(
        f"--- {story.story}: preempted at step {story.step}, a step again {story.resume_s:.1f} s after its admission, "
        f"{story.lost_steps} steps again {list(story.findings) or ''}",
        flush=True,
    )


def _last_line(told: Sequence[Preempted], wrong_victim: str | None, takeover_s: float, polite_s: float) -> str:
    """Return the line that the run ends with. wrong_victim: None where nobody has looked."""
    resumed = [story for story in told if not story.findings]
    victim = "-" if wrong_victim is None else not wrong_victim
    slowest_s = max((story.resume_s for story in told), default=0.0)
    return (
        f"queue: preempted={len(told)} resumed={len(resumed)} resume_s={slowest_s:.1f} "
        f"lost_steps={sum(story.lost_steps for story in told)} "
        f"doubled_samples={sum(story.lost_samples + story.doubled_samples for story in told)} "
        f"boost_victim_ok={victim} takeover_s={takeover_s:.1f} polite_takeover_s={polite_s:.1f}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
