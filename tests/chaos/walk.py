"""A random walk: faults that a job survives and changes of it, one after another, from one seed; an oracle each time.

``make chaos-walk`` (CHAOS_SECONDS=3600, CHAOS_ARGS="--seed 7 --output FOLDER"). Two jobs run side by side; what happens
next, to which of them and when is drawn. After every event, within a minute: the status says what is, one child at most
is active, and no run commits after another has taken over. At the end of every job: it has succeeded, its ledger has
the undisturbed run's samples, and where it always had as many ranks as that one its weights have the same bits. What
does not hold is a finding; it is written at once, with the events that led to it, and the walk goes on with a new job.

The same seed draws the same events as long as the jobs are as far as they were: a machine that is slower draws others.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / name) for name in ("tools/local_cluster", "tests/support", "tests/chaos")]

from bench import Bench, chaos_job, folder_of, outcome_of, prepare_bench  # noqa: E402 - after the path
from catalog import FAULTS  # noqa: E402
from cluster_api import wait_until  # noqa: E402
from consistency import PATIENCE_S, wait_consistent  # noqa: E402
from fault import Fault, NotInEffect, Scene  # noqa: E402
from job_cluster import JobCluster, Json, KubectlFailed  # noqa: E402
from job_watch import JobWatch, surviving  # noqa: E402
from own_cluster import own_cluster  # noqa: E402
from real_jobs import RealJob  # noqa: E402
from verdict import commits_by_turns, compare_ledgers, compare_outcomes  # noqa: E402

ENDED = ("Succeeded", "Failed")
MOVES_S = 240.0
"""Longest wait until a job takes a step again: a hang is found after 30 s, a retry waits up to 80 s."""
GONE_S = 150.0
LONG_S = 60.0
"""Faults that hold for as long are drawn a quarter as often as others."""
POLICY = {"hangMinSeconds": 30, "hangMaxSeconds": 120, "infrastructureRetries": 20}
CHANGES_SHARE = 0.3
"""Of all events: the user's."""
WALKERS = 2


@dataclass
class Walker:
    """One job on its way, from its creation to its end."""

    job: RealJob
    watch: JobWatch
    workers: int = 2
    is_comparable: bool = True
    """Whether its weights must be the undisturbed run's: it always had as many ranks."""
    events: list[str] = field(default_factory=list)

    @property
    def phase(self) -> str:
        """Of its status; empty while the API server is away, or the job is."""
        try:
            return str(self.job.status().get("phase") or "")
        except (OSError, AssertionError):
            return ""

    def wait_step(self) -> bool:
        """Wait until it takes a step, and tell whether it still runs. Raises TimeoutError."""
        before = len(self.watch.lines)
        wait_until(
            lambda: len(self.watch.lines) > before or self.phase in ENDED,
            lambda: f"a step of {self.job.name}, whose status is {self.job.status()}",
            timeout_s=MOVES_S,
            every_s=0.3,
        )
        return self.phase not in ENDED


class Walk:
    """A walk on one cluster."""

    def __init__(self, bench: Bench, seed: int, report: Path) -> None:
        """Report: the file that findings are written to, one line of JSON each."""
        self._bench, self._seed, self._report = bench, seed, report
        self._random = random.Random(seed)  # noqa: S311 - a test's choice, no secret
        self._walkers: list[Walker] = []
        self._numbers = iter(range(1, 10_000))
        self.events = self.jobs = self.findings = 0

    def run(self, seconds: float) -> None:
        """Walk for so long; then let what runs come to its end."""
        until_s = time.monotonic() + seconds
        with contextlib.ExitStack() as watches:
            while time.monotonic() < until_s:
                self._fill(watches)
                walker = self._random.choice(self._walkers)
                self._step(walker)
            for walker in [*self._walkers]:
                self._finish(walker)

    def _fill(self, watches: contextlib.ExitStack) -> None:
        for walker in [*self._walkers]:
            if walker.phase in ENDED:
                self._finish(walker)
        while len(self._walkers) < WALKERS:
            job = RealJob(self._bench.namespace, f"walk-{next(self._numbers)}")
            walker = Walker(job, watches.enter_context(JobWatch(folder_of(job))))
            self.apply(walker)
            self._walkers.append(walker)
            self.jobs += 1

    def apply(self, walker: Walker) -> None:
        """Create a walker's job, or create it anew."""
        walker.job.namespace.apply(chaos_job(walker.job.name, workers=walker.workers, runPolicy=POLICY))

    def _step(self, walker: Walker) -> None:
        """Let one thing happen to one job, and ask the oracle."""
        with self._finding(walker):
            if not walker.wait_step():
                return
            self.events += 1
            if self._random.random() < CHANGES_SHARE:
                change = self._random.choice(CHANGES)
                self._note(walker, change.__name__)
                change(self, walker)
                self._ask(self._scene(walker))
            else:
                self._befall(walker, self.draw_fault(walker))

    def _note(self, walker: Walker, what: str) -> None:
        walker.events.append(f"{len(walker.watch.lines)}: {what}")
        print(f"{self.events}: {walker.job.name} {walker.events[-1]}", flush=True)

    def draw_fault(self, walker: Walker) -> Fault:
        """Return what happens next to a job."""
        # A single pod has no MPIJob, no workers and no launcher.
        fitting = [fault for fault in fitting_faults() if walker.workers > 1 or fault.group == "control plane"]
        weights = [0.25 if fault.hold_s >= LONG_S else 1.0 for fault in fitting]
        return self._random.choices(fitting, weights)[0]

    def _befall(self, walker: Walker, fault: Fault) -> None:
        scene = self._scene(walker)
        self._note(walker, fault.name)
        with scene.after:
            try:
                fault.inject(scene)
            except NotInEffect as reason:
                walker.events[-1] += f" (not in effect: {reason})"
                return
            if fault.heal is not None:
                pass_time(fault.hold_s)
                fault.heal(scene)
            self._ask(scene)

    def _scene(self, walker: Walker) -> Scene:
        drawn = random.Random(self._random.getrandbits(64))  # noqa: S311 - as above
        return Scene(self._bench.cluster, self._bench.namespace, walker.job, drawn, self._bench.undisturbed)

    def _ask(self, scene: Scene) -> None:
        """Check what must hold at any time, of all jobs: a fault may concern more than the one that it was for.

        Raises AssertionError.
        """
        for walker in self._walkers:
            here = Scene(scene.cluster, scene.namespace, walker.job, scene.random, scene.undisturbed)
            settled_s = wait_consistent(here)
            assert settled_s < PATIENCE_S, f"{walker.job.name}: {'; '.join(here.notes)}"
            turns = commits_by_turns(walker.watch.commits)
            assert not turns, f"{walker.job.name}: {turns}"

    def _finish(self, walker: Walker) -> None:
        """Wait for a job's end, check what it has left, and take it away."""
        with self._finding(walker):
            wait_until(
                lambda: walker.phase in ENDED,
                lambda: f"the end: {walker.job.status()}",
                timeout_s=2 * MOVES_S,
                every_s=1,
            )
            status = walker.job.status()
            assert status["phase"] == "Succeeded", f"{status['phase']}: {status.get('message')}"
            # What was written in the last moment.
            walker.watch.__exit__()
            lost, doubled = compare_ledgers(surviving(walker.watch.lines), self._bench.expected_ledger, whole=True)
            assert (lost, doubled) == (0, 0), f"{lost} samples lost and {doubled} doubled"
            if walker.is_comparable:
                found = outcome_of(walker.job, folder_of(walker.job))
                differs = compare_outcomes(found, self._bench.expected_outcome)
                assert not differs, differs
        self._discard(walker)

    @contextlib.contextmanager
    def _finding(self, walker: Walker) -> Iterator[None]:
        """Write down what does not hold in here, and go on with another job."""
        try:
            yield
        except (AssertionError, LookupError, TimeoutError, OSError) as problem:
            self.findings += 1
            found = {"seed": self._seed, "job": walker.job.name, "events": walker.events, "problem": str(problem)}
            with self._report.open("a") as report:
                report.write(json.dumps(found) + "\n")
            print(f"FINDING {json.dumps(found, indent=1)}", flush=True)
            self._discard(walker)

    def _discard(self, walker: Walker) -> None:
        if walker not in self._walkers:
            return
        self._walkers.remove(walker)
        with contextlib.suppress(AssertionError, OSError):
            delete_job(walker.job)
        shutil.rmtree(folder_of(walker.job), ignore_errors=True)


def suspend_and_resume(walk: Walk, walker: Walker) -> None:
    """Stop the job with a checkpoint, and let it go on."""
    set_suspend(walker.job, True)
    wait_until(
        lambda: walker.phase in ("Stopped", *ENDED),
        lambda: f"{walker.job.name} to stop: {walker.job.status()}",
        timeout_s=GONE_S,
        every_s=0.3,
    )
    set_suspend(walker.job, False)


def suspend_and_think_better_of_it(walk: Walk, walker: Walker) -> None:
    """Take a suspension back before it has taken effect."""
    set_suspend(walker.job, True)
    set_suspend(walker.job, False)


def delete_and_recreate(walk: Walk, walker: Walker) -> None:
    """Apply the job anew with the same output: it resumes."""
    delete_job(walker.job)
    walk.apply(walker)


def delete_and_recreate_at_once(walk: Walk, walker: Walker) -> None:
    """Apply it anew while the pods of its predecessor are still leaving."""
    walker.job.namespace.kubectl("delete", "bpj", walker.job.name, "--wait=false")
    wait_until(
        lambda: walker.job.namespace.find("bpj", walker.job.name) is None,
        "the job to go",
        timeout_s=GONE_S,
        every_s=0.1,
    )
    walk.apply(walker)


def change_workers(walk: Walk, walker: Walker) -> None:
    """Apply it anew with one worker instead of two, or the other way round."""
    delete_job(walker.job)
    walker.workers, walker.is_comparable = 3 - walker.workers, False
    walk.apply(walker)


Change = Callable[[Walk, Walker], None]
CHANGES: Sequence[Change] = (
    suspend_and_resume,
    suspend_and_think_better_of_it,
    delete_and_recreate,
    delete_and_recreate_at_once,
    change_workers,
)


def fitting_faults() -> list[Fault]:
    """Return the faults that a job of the walk can have, survives, and can have others after."""
    return [
        fault
        for fault in FAULTS
        if fault.ends == "Succeeded"
        and set(fault.spec) <= {"runPolicy"}
        and not (fault.faulty_volume or fault.own_namespace or fault.a_job_per_moment)
    ]


def set_suspend(job: RealJob, suspend: bool) -> None:
    """Edit the job, as its user does."""
    patch: Json = {"spec": {"runPolicy": {"suspend": suspend}}}
    job.namespace.kubectl("patch", "bpj", job.name, "--type=merge", "-p", json.dumps(patch))


def delete_job(job: RealJob) -> None:
    """Delete a job, and return once its pods are gone."""
    with contextlib.suppress(KubectlFailed):
        job.namespace.kubectl("delete", "bpj", job.name, "--ignore-not-found", "--timeout=60s")

    def is_gone() -> bool:
        pods = [pod["metadata"]["name"] for pod in job.namespace.list("pods")]
        return not any(name.startswith(f"{job.name}-a") for name in pods)

    wait_until(is_gone, f"the pods of {job.name} to go", timeout_s=GONE_S, every_s=0.3)


def pass_time(seconds: float) -> None:
    """Hold a fault for the time that is its definition."""
    time.sleep(seconds)


def main(words: Sequence[str] | None = None) -> int:
    """Walk, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("runs/chaos-walk"))
    options = parser.parse_args(words)
    options.output.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    with own_cluster("chaos-walk") as (cluster, folder):
        walk = walk_on(cluster, folder, options)
    print(
        f"chaos-walk: seed={options.seed} minutes={(time.monotonic() - began_s) / 60:.0f} jobs={walk.jobs} "
        f"events={walk.events} findings={walk.findings}"
    )
    return 1 if walk.findings else 0


def walk_on(cluster: JobCluster, folder: Path, options: argparse.Namespace) -> Walk:
    """Prepare a cluster, and walk on it."""
    cluster.install_operator(folder / "overlay")
    bench = prepare_bench(cluster, options.output / "dataset")
    try:
        walk = Walk(bench, options.seed, options.output / "findings.jsonl")
        walk.run(options.seconds)
    finally:
        bench.close()
    return walk


if __name__ == "__main__":
    sys.exit(main())
