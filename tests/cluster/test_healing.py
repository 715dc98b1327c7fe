"""Whatever is killed, the job ends with the very bits of the run that nothing happened to.

Inputs: two pods with one rank each, two phases, dropout 0.1, a checkpoint at every tenth step; a moment drawn from a
seed; two such jobs at a time. One shares gradients through torch.distributed, the others through Horovod. Observed:
weights and optimizer's state on the volume, the ledger of samples, the status.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from real_jobs import (
    STEPS,
    Clock,
    RealJob,
    assert_same_run,
    followed,
    pod_name,
    random_step,
    side_by_side,
    training_job,
)

pytestmark = pytest.mark.timeout(400)
Say = Callable[[str], None]


def start(whole: RealJob, name: str, **spec: object) -> RealJob:
    job = training_job(name, **spec)
    # What is compared comes before the exports.
    job["spec"]["stages"] = job["spec"]["stages"][:2]
    whole.namespace.apply(job)
    return RealJob(whole.namespace, name)


def finish(job: RealJob, whole: RealJob, clock: Clock) -> tuple[dict[str, object], str]:
    """Wait for the end, compare with the uninterrupted run; return the only failure on record, and how long it took."""
    resumed_s = job_resumed(job, clock)
    status = job.wait_phase("Succeeded")
    result = job.result()
    assert_same_run(result, whole.result())
    assert_same_results(job, whole)
    again = result.trained - sum(STEPS.values())
    assert again <= 10 + 1, "a checkpoint is written every ten steps"
    assert status["attempt"] == 2
    (failure,) = status["failures"]
    return failure, f"next attempt's first step after {resumed_s:.1f} s, {again} steps trained again"


def assert_same_results(job: RealJob, whole: RealJob) -> None:
    """The status has the uninterrupted run's evaluation, whichever attempt made it, and no other."""
    assert job.results() == whole.results()
    assert [(stage, found["step"]) for stage, found in job.results().items()] == [("phase1", STEPS["phase1"])]


def job_resumed(job: RealJob, clock: Clock) -> float:
    before = job.steps_trained()
    job.wait(lambda status: status.get("attempt") == 2, "the second attempt")
    job.wait_steps(before + 1)
    return clock.s


def kill_a_rank(whole: RealJob, name: str = "rank-killed", **spec: object) -> str:
    job = start(whole, name, **spec)
    job.wait_steps(random_step("rank", STEPS["phase1"]))
    with followed(job) as log:
        clock = Clock()
        worker = job.kill_a_rank()
        failure, told = finish(job, whole, clock)
        text = log.end()
    # Whoever is first: mpirun, which sees the signal, or the other rank, which sees a broken connection.
    assert (failure["kind"], failure["pod"]) == ("Infrastructure", worker), f"{failure}\n{text}"
    assert (failure["reason"], failure.get("signal")) in (("SIGKILL", 9), ("WorkerLost", None)), text
    assert "rank 1" in str(failure["message"]), failure
    return told


def stop_a_rank(whole: RealJob) -> str:
    job = start(whole, "rank-stopped", runPolicy={"hangMinSeconds": 15, "hangMaxSeconds": 120})
    job.wait_steps(random_step("stopped", STEPS["phase1"]))
    clock = Clock()
    worker = job.stop_a_rank()
    failure, told = finish(job, whole, clock)
    assert (failure["kind"], failure["reason"], failure["pod"]) == ("Infrastructure", "Hung", worker), failure
    assert "rank 1" in str(failure["message"]), failure
    assert "its process is stopped" in str(failure["message"]), failure
    return told


def kill_the_launcher(whole: RealJob) -> str:
    job = start(whole, "launcher-killed")
    job.wait_steps(random_step("launcher", STEPS["phase1"]))
    clock = Clock()
    launcher = job.pods("launcher")[-1]
    job.namespace.cluster.kill_pod(launcher)
    failure, told = finish(job, whole, clock)
    assert (failure["kind"], failure.get("signal")) == ("Infrastructure", 9), failure
    assert failure["pod"] == pod_name(launcher)
    return told


def kill_a_worker(whole: RealJob) -> str:
    job = start(whole, "worker-killed")
    job.wait_steps(random_step("worker", STEPS["phase1"]) + STEPS["phase1"] // 2)
    clock = Clock()
    worker = job.pods("worker")[0]
    job.namespace.cluster.kill_pod(worker)
    failure, told = finish(job, whole, clock)
    assert (failure["kind"], failure["pod"]) == ("Infrastructure", pod_name(worker))
    return told


def suspend_and_resume(whole: RealJob) -> str:
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
    return f"stopped after {stopped_s:.1f} s, first step {resumed_s:.1f} s after the resumption"


def kill_a_rank_of_torch(whole: RealJob) -> str:
    # Two numbers have one sum, so that the bits are those of the run that Horovod's ranks made.
    return kill_a_rank(whole, "torch-rank-killed", collectives="torch")


STORIES = {
    "a killed rank": kill_a_rank,
    "a killed rank of torch.distributed": kill_a_rank_of_torch,
    "a stopped rank": stop_a_rank,
    "a killed launcher": kill_the_launcher,
    "a killed worker": kill_a_worker,
    "a suspension": suspend_and_resume,
}


@pytest.fixture(scope="module")
def end_of(whole: RealJob) -> Iterator[Callable[[str], str]]:
    """Waits for the end of a story."""
    with side_by_side({name: functools.partial(story, whole) for name, story in STORIES.items()}) as end:
        yield end


@pytest.mark.parametrize("story", STORIES)
def test_the_same_bits_come_out_after(end_of: Callable[[str], str], say: Say, story: str) -> None:
    say(f"{story}: {end_of(story)}")
