"""SIGTERM to the launcher, whoever sends it, ends in a checkpoint of exactly the step that the ranks agree on.

Inputs: a job of two pods with one rank each, per MPI; moments drawn from a seed. Observed: the launcher's log, which is
followed to its end, the ledger of samples, the checkpoints on the volume, the seconds until the pods are gone.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator

import pytest

from job_cluster import JobCluster, Namespace, poll
from real_jobs import STEPS, Clock, RealJob, followed, random_step, side_by_side, training_job

pytestmark = pytest.mark.timeout(400)
GRACE_S = 60
FLAVOURS = ("open-mpi", "open-mpi-4")
Say = Callable[[str], None]

_CHECKPOINTS = """
import json, pathlib
folders = sorted(pathlib.Path('/volume/{job}/checkpoints').iterdir())
print(json.dumps([path.name for path in folders if (path / 'manifest.json').exists()]))
"""


def agreed_step(log: str) -> int:
    """Return the step of the only record of a stop, which has to follow the checkpoint of that step."""
    (stop,) = re.findall(r"event=stopped stage=phase1 step=(\d+) ", log)
    saved = re.findall(r"event=checkpoint stage=phase1 step=(\d+) ", log)
    assert saved[-1] == stop
    return int(stop)


def evict(namespace: Namespace, pod: str) -> None:
    """Ask for the pod to leave, as kubectl drain does."""
    metadata = {"name": pod, "namespace": namespace.name}
    document = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{namespace.name}/pods/{pod}/eviction"
    namespace.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(document))


def suspend(job: RealJob, *, wanted: bool) -> None:
    change = {"spec": {"runPolicy": {"suspend": wanted}}}
    job.namespace.kubectl("patch", "bpj", job.name, "--type=merge", "-p", json.dumps(change))


def wait_attempt(job: RealJob, attempt: int) -> None:
    job.wait(lambda status: status.get("attempt") == attempt and status.get("phase") == "Running", f"attempt {attempt}")


def stop_three_times(data: Namespace, mpi: str, image: str) -> str:
    name = f"stop-{mpi}"
    stages = training_job(name)["spec"]["stages"][:1]
    stages[0]["pretrain"]["length"] = {"steps": 3 * STEPS["phase1"]}
    data.apply(
        training_job(
            name,
            image=image,
            stages=stages,
            # None by itself: what is there was written because of the stop.
            checkpoint={"periodic": False},
            runPolicy={"stopGraceSeconds": GRACE_S},
        )
    )
    job = RealJob(data, name)
    draw = [random_step(f"{mpi} {number}", STEPS["phase1"]) for number in range(3)]

    job.wait_steps(draw[0])
    with followed(job) as log:
        clock = Clock()
        evict(data, job.pod("launcher"))
        drained = agreed_step(log.end())
    drained_s = clock.s
    wait_attempt(job, 2)
    trained = job.wait_steps(drained + draw[1])

    with followed(job) as log:
        clock = Clock()
        suspend(job, wanted=True)
        text = log.end()
    suspended, suspended_s = agreed_step(text), clock.s
    assert f"event=resumed stage=phase1 step={drained} " in text
    assert suspended >= trained
    job.wait_phase("Stopped")
    assert job.steps_trained() == suspended, "no step is trained twice, and none after the one agreed on"

    suspend(job, wanted=False)
    wait_attempt(job, 3)
    job.wait_steps(suspended + draw[2])
    with followed(job) as log:
        clock = Clock()
        data.kubectl("delete", "bpj", name, "--wait=false")
        text = log.end()
    deleted, deleted_s = agreed_step(text), clock.s
    assert f"event=resumed stage=phase1 step={suspended} " in text
    poll(lambda: not job.pods("worker") and not job.pods("launcher"), "the pods to go")
    assert json.loads(data.python(_CHECKPOINTS.format(job=name)))[-1] == f"phase1-{deleted:08d}"
    assert job.steps_trained() == deleted

    seconds = (drained_s, suspended_s, deleted_s)
    assert max(seconds) < GRACE_S
    steps = (drained, suspended, deleted)
    told = ", ".join(f"step {step} after {s:.1f} s" for step, s in zip(steps, seconds, strict=True))
    return f"saved at {told} (drained, suspended, deleted)"


@pytest.fixture(scope="module")
def end_of(cluster: JobCluster, data: Namespace) -> Iterator[Callable[[str], str]]:
    """Waits for the end of what happens to the job with an MPI."""
    images = {mpi: image for mpi in FLAVOURS if (image := cluster.trainer_with(mpi))}
    stories = {mpi: functools.partial(stop_three_times, data, mpi, image) for mpi, image in images.items()}
    with side_by_side(stories) as end:
        yield end


@pytest.mark.parametrize("mpi", FLAVOURS)
def test_drained_suspended_and_deleted(cluster: JobCluster, end_of: Callable[[str], str], say: Say, mpi: str) -> None:
    if not cluster.trainer_with(mpi):
        pytest.skip(f"no image with {mpi}")
    say(f"{mpi}: {end_of(mpi)}")
