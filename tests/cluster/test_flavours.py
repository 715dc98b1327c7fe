"""Every MPI that the trainer's image can hold trains over both pods; a wrong one is named before the first step.

Inputs: the short job of two pods, images with another MPI. Observed: the hosts that ranks name, the status.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator

import pytest

from job_cluster import JobCluster, Json, Namespace
from real_jobs import RealJob, side_by_side, training_job

pytestmark = pytest.mark.timeout(500)

FLAVOURS = {"open-mpi": "OpenMPI", "open-mpi-4": "OpenMPI", "mpich": "MPICH", "intel-mpi": "Intel"}


def short_job(name: str, image: str, implementation: str) -> Json:
    job = training_job(name, image=image, mpi={"implementation": implementation}, runPolicy={"applicationRetries": 0})
    job["spec"]["stages"] = job["spec"]["stages"][:1]
    job["spec"]["stages"][0]["pretrain"]["length"] = {"steps": 6}
    return job


def train(data: Namespace, mpi: str, image: str) -> tuple[str, dict[str, str]]:
    """Return the launcher's log of a job with an MPI, and which hosts its ranks name in it."""
    name = f"with-{mpi}"
    data.apply(short_job(name, image, FLAVOURS[mpi]))
    job = RealJob(data, name)
    job.wait_phase("Succeeded", timeout_s=240)
    log = data.kubectl("logs", job.pod("launcher"))
    return log, dict(re.findall(r"rank (\d) on (\S+-worker-\d)", log))


@pytest.fixture(scope="module")
def end_of(cluster: JobCluster, data: Namespace) -> Iterator[Callable[[str], tuple[str, dict[str, str]]]]:
    """Waits for the end of the job with an MPI."""
    images = {mpi: image for mpi in FLAVOURS if (image := cluster.trainer_with(mpi))}
    with side_by_side({mpi: functools.partial(train, data, mpi, image) for mpi, image in images.items()}) as end:
        yield end


@pytest.mark.parametrize("mpi", FLAVOURS)
def test_it_trains_over_both_pods(
    cluster: JobCluster, end_of: Callable[[str], tuple[str, dict[str, str]]], mpi: str
) -> None:
    if not cluster.trainer_with(mpi):
        pytest.skip(f"no image with {mpi}")
    log, hosts = end_of(mpi)
    assert hosts == {"0": f"with-{mpi}-a1-worker-0", "1": f"with-{mpi}-a1-worker-1"}, log


def test_an_image_with_another_mpi_is_refused_before_the_first_step(cluster: JobCluster, data: Namespace) -> None:
    data.apply(short_job("wrong-mpi", cluster.trainer_image, "MPICH"))
    job = RealJob(data, "wrong-mpi")
    status = job.wait_end()
    assert status["phase"] == "Failed"
    (failure,) = status["failures"]
    assert (failure["kind"], failure["reason"], failure["exitCode"]) == ("InvalidInput", "WrongMPI", 2)
    assert job.steps_trained() == 0
