"""Whatever is killed, the job ends with the very bits of the run that nothing happened to.

Inputs: two pods with one rank each, two phases, dropout 0.1, a checkpoint at every tenth step; a moment drawn from a
seed. Observed: weights and optimizer's state on the volume, the ledger of samples, the status.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from real_jobs import STEPS, Clock, RealJob, assert_same_run, followed, pod_name, random_step, training_job

pytestmark = pytest.mark.timeout(400)
Say = Callable[[str], None]


def start(whole: RealJob, name: str) -> RealJob:
    whole.namespace.apply(training_job(name))
    return RealJob(whole.namespace, name)


def finish(job: RealJob, whole: RealJob, clock: Clock, say: Say, what: str) -> dict[str, object]:
    """Wait for the end, compare with the uninterrupted run, and return the only failure on record."""
    resumed_s = job_resumed(job, clock)
    status = job.wait_phase("Succeeded")
    result = job.result()
    assert_same_run(result, whole.result())
    assert_same_results(job, whole)
    again = result.trained - sum(STEPS.values())
    say(f"{what}: next attempt's first step after {resumed_s:.1f} s, {again} steps trained again")
    assert again <= 10 + 1, "a checkpoint is written every ten steps"
    assert status["attempt"] == 2
    (failure,) = status["failures"]
    return failure


def assert_same_results(job: RealJob, whole: RealJob) -> None:
    """The status has the uninterrupted run's evaluation, whichever attempt made it, and no other."""
    assert job.results() == whole.results()
    assert [(stage, found["step"]) for stage, found in job.results().items()] == [("phase1", STEPS["phase1"])]


def job_resumed(job: RealJob, clock: Clock) -> float:
    before = job.steps_trained()
    job.wait(lambda status: status.get("attempt") == 2, "the second attempt")
    job.wait_steps(before + 1)
    return clock.s


def test_a_killed_rank(whole: RealJob, say: Say) -> None:
    job = start(whole, "rank-killed")
    job.wait_steps(random_step("rank", STEPS["phase1"]))
    with followed(job) as log:
        clock = Clock()
        worker = job.kill_a_rank()
        failure = finish(job, whole, clock, say, "rank killed")
        text = log.end()
    # Whoever is first: mpirun, which sees the signal, or the other rank, which sees a broken connection.
    assert (failure["kind"], failure["pod"]) == ("Infrastructure", worker), f"{failure}\n{text}"
    assert (failure["reason"], failure.get("signal")) in (("SIGKILL", 9), ("WorkerLost", None)), text
    assert "rank 1" in str(failure["message"]), failure


def test_a_killed_launcher(whole: RealJob, say: Say) -> None:
    job = start(whole, "launcher-killed")
    job.wait_steps(random_step("launcher", STEPS["phase1"]))
    clock = Clock()
    launcher = job.pods("launcher")[-1]
    job.namespace.cluster.kill_pod(launcher)
    failure = finish(job, whole, clock, say, "launcher's pod killed")
    assert (failure["kind"], failure.get("signal")) == ("Infrastructure", 9), failure
    assert failure["pod"] == pod_name(launcher)


def test_a_killed_worker(whole: RealJob, say: Say) -> None:
    job = start(whole, "worker-killed")
    job.wait_steps(random_step("worker", STEPS["phase1"]) + STEPS["phase1"] // 2)
    clock = Clock()
    worker = job.pods("worker")[0]
    job.namespace.cluster.kill_pod(worker)
    failure = finish(job, whole, clock, say, "worker's pod killed")
    assert (failure["kind"], failure["pod"]) == ("Infrastructure", pod_name(worker))


def test_suspended_and_resumed(whole: RealJob, say: Say) -> None:
    job = start(whole, "suspended")
    job.wait_steps(random_step("suspend", STEPS["phase1"]))
    clock = Clock()
    change = '{{"spec": {{"runPolicy": {{"suspend": {}}}}}}}'
    job.namespace.kubectl("patch", "bpj", job.name, "--type=merge", "-p", change.format("true"))
    job.wait_phase("Stopped")
    stopped_s, trained = clock.s, job.steps_trained()
    assert not [pod for pod in job.pods("worker") if pod["status"]["phase"] == "Running"]
    job.namespace.kubectl("patch", "bpj", job.name, "--type=merge", "-p", change.format("false"))
    clock = Clock()
    job.wait_steps(trained + 1)
    resumed_s = clock.s
    status = job.wait_phase("Succeeded")
    result = job.result()
    assert_same_run(result, whole.result())
    assert_same_results(job, whole)
    assert result.trained == sum(STEPS.values()), "a stop on request loses no step"
    assert (status["attempt"], status.get("failures", [])) == (2, [])
    say(f"suspended: stopped after {stopped_s:.1f} s, first step {resumed_s:.1f} s after the resumption")
