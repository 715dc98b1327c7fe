"""Lets one fault happen to one job, at one moment or at several, and gathers what is needed for a verdict."""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from bench import Bench, chaos_job, outcome_of
from cluster_api import wait_until
from fault import Fault, NotInEffect, Scene
from job_cluster import Json, Namespace
from job_watch import JobWatch, seconds_to_a_step, surviving
from node_processes import processes_of
from real_jobs import GROUP, STEPS, RealJob
from verdict import Evidence, Moment, as_json, judge

EVERY_S = 0.2
TOTAL_STEPS = sum(STEPS.values())
FIRST_STEP, LAST_STEP = 15, TOTAL_STEPS - 30
CHECKPOINT_EVERY = 10
PAST_IT = CHECKPOINT_EVERY + 2
"""New steps after which a job has got over a fault, and what it lost has been trained again."""
STEP_DEADLINE_S = 240.0
END_DEADLINE_S = 300.0
GONE_DEADLINE_S = 60.0
CHILDREN = ("pods", "mpijobs.kubeflow.org", "jobs", "configmaps", "secrets", "services")


class Plan(NamedTuple):
    """When it happens: the random numbers of a moment, and the step that it is drawn for."""

    number: int
    random: random.Random
    step: int


def plan_moments(fault: Fault, seed: int, count: int) -> list[Plan]:
    """Return the moments of a fault, each in its own part of the run, the same for the same seed."""
    span = (LAST_STEP - FIRST_STEP) // count
    plans = []
    for number in range(count):
        drawn = random.Random(f"{seed}/{fault.name}/{number}")  # noqa: S311 - a test's moment, no secret
        # In the first half of its part: the second half is for getting over it.
        plans.append(Plan(number, drawn, FIRST_STEP + span * number + drawn.randrange(max(1, span // 2))))
    return plans


def run_fault(bench: Bench, fault: Fault, plans: Sequence[Plan]) -> list[dict[str, Any]]:
    """Let a fault happen at its moments; return what is kept of every job.

    A job may go on for so long while an earlier moment is looked at that too few steps are left for the next one: that
    gets a job of its own.
    """
    if fault.is_per_moment:
        return [run_job(bench, fault, [plan]).kept for plan in plans]
    kept, left = [], plans
    while left:
        story = run_job(bench, fault, left)
        kept.append(story.kept)
        left = left[story.done :]
    return kept


class Story(NamedTuple):
    """What became of a job, and of the moments that it was to have."""

    kept: dict[str, Any]
    done: int
    """How many of the moments are done with, 1 at least."""


def has_room(reached: int) -> bool:
    """Tell whether enough steps are left after a moment to see that the job has got over it."""
    return reached + PAST_IT <= TOTAL_STEPS


def run_job(bench: Bench, fault: Fault, plans: Sequence[Plan]) -> Story:
    """Start a job, let the fault happen to it, wait for its end, judge it, delete it, and look what is left."""
    name = f"{fault.slug[:40].strip('-')}-{plans[0].number}"
    namespace, files = _place(bench, fault, name)
    job = RealJob(namespace, name)
    scene = Scene(bench.cluster, namespace, job, plans[0].random, bench.undisturbed)
    try:
        if fault.prepare is not None:
            fault.prepare(scene)
        namespace.apply(chaos_job(name, slower=bench.slower, **fault.spec))
        with scene.after, JobWatch(files) as watch:
            evidence, done = _gather(bench, fault, scene, watch, plans)
    finally:
        if fault.own_namespace:
            with suppress(AssertionError, ValueError):  # the fault may have deleted it
                bench.cluster.delete_namespace(namespace.name)
        shutil.rmtree(files, ignore_errors=True)
    kept = {**as_json(judge(fault, evidence), evidence), "notes": scene.notes, "start_s": bench.start_s}
    return Story(kept, done)


def _place(bench: Bench, fault: Fault, name: str) -> tuple[Namespace, Path]:
    """Return the namespace of a job, and where its files are read from this machine."""
    if fault.faulty_volume:
        namespace, volume = bench.faulty()
        return namespace, volume.backing / name
    namespace = bench.make_namespace(name[:20].strip("-")) if fault.own_namespace else bench.namespace
    assert namespace.folder is not None
    return namespace, namespace.folder / name


def _gather(bench: Bench, fault: Fault, scene: Scene, watch: JobWatch, plans: Sequence[Plan]) -> tuple[Evidence, int]:
    """Return what was found, and how many of the moments are done with."""
    moments, not_in_effect, uids, done = [], "", set[str](), 0
    for plan in plans:
        here = Scene(
            scene.cluster, scene.namespace, scene.job, plan.random, scene.undisturbed, scene.notes, after=scene.after
        )
        try:
            _wait_for(lambda plan=plan: watch.reached >= plan.step or _has_ended(scene.job), STEP_DEADLINE_S)
            if not has_room(watch.reached):
                if done:
                    break
                raise NotInEffect(f"at step {watch.reached} of {TOTAL_STEPS} too few are left to get over it")
            if watch.reached < plan.step or _has_ended(scene.job):
                raise NotInEffect(f"the job never was at step {plan.step}: {status_of(scene.job)}")
            uids |= _pod_uids(scene.job)
            moments.append(_one_moment(fault, here, watch))
        except NotInEffect as reason:
            not_in_effect = str(reason)
        except (AssertionError, OSError) as problem:  # a deadline is an OSError as well
            not_in_effect = f"given up: {problem}"[:500]
        done += 1
    status = _wait_end(scene.job)
    outcome = outcome_of(scene.job, watch.folder)
    if fault.in_effect and not not_in_effect:
        not_in_effect = fault.in_effect(scene)
    uids |= _pod_uids(scene.job)
    left_over = [*partial_files(watch.folder), *_delete(scene, uids)]
    evidence = Evidence(
        moments=tuple(moments),
        phase=status.get("phase", ""),
        reasons=tuple(failure["reason"] for failure in status.get("failures", ())),
        ledger=surviving(watch.lines),
        expected_ledger=bench.expected_ledger,
        outcome=outcome,
        expected_outcome=bench.expected_outcome,
        commits=watch.commits,
        left_over=left_over,
        again_allowed=CHECKPOINT_EVERY * fault.lost_intervals + watch.most_steps_during_a_write(),
        start_s=bench.start_s,
        not_in_effect=not_in_effect,
    )
    return evidence, done


def _one_moment(fault: Fault, scene: Scene, watch: JobWatch) -> Moment:
    reached, attempt = watch.reached, status_of(scene.job).get("attempt", 0)
    fault.inject(scene)
    over_s = time.monotonic()
    if fault.heal is not None:
        _pass_time(fault.hold_s)
        fault.heal(scene)
        over_s = time.monotonic()
    settled_s = fault.settled(scene) if fault.settled else None
    if fault.ends == "Failed":
        return Moment(reached, settled_s=settled_s)
    # From here, not from before: the job may have gone on while the fault was brought about, and while it held.
    goal = min(watch.reached + PAST_IT, TOTAL_STEPS)
    _wait_for(lambda: watch.reached >= goal or _has_ended(scene.job), fault.step_again_s + STEP_DEADLINE_S)
    lines = [*watch.lines]
    seen, again = set(), 0
    for line in lines:
        again += line.key in seen and line.seen_s >= over_s - fault.hold_s
        seen.add(line.key)
    attempts = status_of(scene.job).get("attempt", attempt) - attempt
    recovery_s = seconds_to_a_step(lines, over_s)
    if recovery_s is None and watch.reached >= TOTAL_STEPS:
        raise NotInEffect(f"at step {reached} the job took its last step before the fault was over")
    if recovery_s is None or watch.reached < goal:
        recovery_s = float("inf")
    return Moment(reached, recovery_s, again, attempts, settled_s)


def status_of(job: RealJob) -> Json:
    """Return a job's status; empty while the API server is away, or the job is."""
    try:
        return job.status()
    except (OSError, AssertionError):
        return {}


def _has_ended(job: RealJob) -> bool:
    return status_of(job).get("phase") in ("Succeeded", "Failed")


def _wait_end(job: RealJob) -> Json:
    _wait_for(lambda: _has_ended(job), END_DEADLINE_S)
    return status_of(job)


def _wait_for(holds: Callable[[], object], timeout_s: float) -> None:
    """Wait until something holds; that it does not in time is seen in what follows."""
    with suppress(TimeoutError):
        wait_until(holds, "", timeout_s=timeout_s, every_s=EVERY_S)


def _pass_time(seconds: float) -> None:
    """Hold a fault for the time that is its definition."""
    threading.Event().wait(seconds)


def _pod_uids(job: RealJob) -> set[str]:
    try:
        pods = job.namespace.list("pods", f"{GROUP}/job={job.name}")
    except (OSError, AssertionError):
        return set()
    return {pod["metadata"]["uid"] for pod in pods}


def partial_files(folder: Path) -> list[str]:
    """Return what a run has begun to write in its folder and neither finished nor removed."""
    hidden = [path for path in folder.rglob(".*") if not path.name.startswith(".lock")]
    return sorted(str(path.relative_to(folder)) for path in hidden)


def _delete(scene: Scene, uids: set[str]) -> list[str]:
    """Delete the job; return what remains of it after a minute: objects, and processes of its pods."""
    job = scene.job
    with suppress(AssertionError, subprocess.TimeoutExpired):
        scene.namespace.kubectl("delete", "bpj", job.name, "--ignore-not-found", "--timeout=60s")
    left: list[str] = []

    def gone() -> bool:
        words = ["get", ",".join(CHILDREN), "-l", f"{GROUP}/job={job.name}", "-o", "name", "--ignore-not-found"]
        try:
            found = scene.namespace.kubectl(*words).split()
        except AssertionError as problem:
            found = [str(problem)]
        left[:] = [*found, *(f"process {process}" for uid in uids for process in processes_of(uid))]
        return not left

    _wait_for(gone, GONE_DEADLINE_S)
    return left
