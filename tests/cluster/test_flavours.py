"""Every MPI that the trainer's image can hold trains over both pods; a wrong one is named before the first step.

Inputs: the short job of two pods, images with another MPI. Observed: the hosts that ranks name, the status.
"""

from __future__ import annotations

import re

import pytest

from job_cluster import JobCluster, Json, Namespace
from real_jobs import RealJob, training_job

pytestmark = pytest.mark.timeout(500)

FLAVOURS = {"open-mpi": "OpenMPI", "open-mpi-4": "OpenMPI", "mpich": "MPICH", "intel-mpi": "Intel"}


def short_job(name: str, image: str, implementation: str) -> Json:
    job = training_job(name, image=image, mpi={"implementation": implementation}, runPolicy={"applicationRetries": 0})
    for stage in job["spec"]["stages"][:2]:
        stage["pretrain"]["length"] = {"steps": 6}
    return job


def image_of(cluster: JobCluster, mpi: str) -> str:
    image = cluster.trainer_with(mpi)
    if not image:
        pytest.skip(f"no image with {mpi}")
    return image


@pytest.mark.parametrize("mpi", FLAVOURS)
def test_it_trains_over_both_pods(cluster: JobCluster, data: Namespace, mpi: str) -> None:
    name = f"with-{mpi}"
    data.apply(short_job(name, image_of(cluster, mpi), FLAVOURS[mpi]))
    job = RealJob(data, name)
    job.wait_phase("Succeeded", timeout_s=240)
    log = data.kubectl("logs", job.pod("launcher"))
    hosts = dict(re.findall(r"rank (\d) on (\S+-worker-\d)", log))
    assert hosts == {"0": f"{name}-a1-worker-0", "1": f"{name}-a1-worker-1"}, log


def test_an_image_with_another_mpi_is_refused_before_the_first_step(cluster: JobCluster, data: Namespace) -> None:
    data.apply(short_job("wrong-mpi", image_of(cluster, "open-mpi"), "MPICH"))
    job = RealJob(data, "wrong-mpi")
    status = job.wait_end()
    assert status["phase"] == "Failed"
    (failure,) = status["failures"]
    assert (failure["kind"], failure["reason"], failure["exitCode"]) == ("InvalidInput", "WrongMPI", 2)
    assert job.steps_trained() == 0
