"""Which of two running jobs gives way: the one that has just saved, although Kueue would take the younger one."""

from __future__ import annotations

from functools import partial

from bench import Bench, folder_of
from bert_operator.state.priority_boost import BOOST_ANNOTATION
from cluster_api import wait_until
from job_cluster import Json
from job_watch import JobWatch
from kueue import CLUSTER_QUEUES
from real_jobs import RealJob
from stories import ENDS_S, GOES_S, URGENT, is_evicted, queued_job, urgent_job, workload_of

STEPS = {"phase1": 4000, "phase2": 10}
"""More than are trained here."""


def tell_victim(bench: Bench, *, queue: str, pods: int, boost: int) -> str:
    """Run a job that saves at every tenth step, and after it one that never does; let an urgent one need room.

    Args:
        bench: Cluster, namespace and dataset.
        queue: The ClusterQueue, which gets room for both and no more.
        pods: Of one job.
        boost: That the second one is to have by then.

    Returns:
        What was wrong; empty where the first one gave way, and the other one had no pause.
    """
    node, namespace = bench.cluster.node, bench.namespace
    assert node is not None
    resize(bench, queue, 2 * pods)
    saver = start(bench, "saves", {"everySteps": 10, "keep": 2})
    waster = start(bench, "never-saves", {"everySteps": 4000, "keep": 2})
    try:
        with JobWatch(folder_of(waster)) as watch:
            wait_until(
                lambda: boost_of(waster) >= boost, partial(_boosts, saver, waster), timeout_s=ENDS_S, every_s=0.1
            )
            with urgent_job(namespace, bench.cluster.trainer_image, pods=pods):
                gone = partial(_first_evicted, saver, waster)
                wait_until(gone, f"one of two jobs to give way to {URGENT}", timeout_s=GOES_S, every_s=0.05)
                victim = gone()
                if victim != saver.name:
                    return f"{victim} gave way, with {boost_of(saver)} and {boost_of(waster)} in Kueue's books"
                wait_until(
                    lambda: boost_of(saver) == 0, "the victim to wait without a boost", timeout_s=GOES_S, every_s=0.1
                )
            trained = watch.reached
            wait_until(lambda: watch.reached > trained, "the other job to go on", timeout_s=ENDS_S, every_s=0.1)
        return "" if waster.status()["attempt"] == 1 and not is_evicted(waster) else "both jobs gave way"
    finally:
        for job in (saver, waster):
            namespace.kubectl("delete", "bpj", job.name, "--wait=false")
        resize(bench, queue, pods)


def start(bench: Bench, name: str, checkpoint: Json) -> RealJob:
    """Start a job, and return once it trains."""
    document = queued_job(name, workers=2, checkpoint=checkpoint)
    for stage in document["spec"]["stages"]:
        stage["pretrain"]["length"] = {"steps": STEPS[stage["name"]]}
    bench.namespace.apply(document)
    job = RealJob(bench.namespace, name)
    with JobWatch(folder_of(job)) as watch:
        wait_until(lambda: watch.reached, lambda: f"a step of {name}: {job.status()}", timeout_s=ENDS_S, every_s=0.1)
    return job


def boost_of(job: RealJob) -> int:
    """Return what Kueue adds to the priority of a job's Workload."""
    metadata = workload_of(job).get("metadata") or {}
    return int((metadata.get("annotations") or {}).get(BOOST_ANNOTATION, "0"))


def resize(bench: Bench, queue: str, pods: int) -> None:
    """Give a ClusterQueue room for so many pods."""
    assert bench.cluster.node is not None
    api = bench.cluster.node.api
    document = api.get(CLUSTER_QUEUES, queue).expect()
    for resource in document["spec"]["resourceGroups"][0]["flavors"][0]["resources"]:
        if resource["name"] == "pods":
            resource["nominalQuota"] = str(pods)
    api.replace(document).expect()


def _first_evicted(saver: RealJob, waster: RealJob) -> str:
    return next((job.name for job in (saver, waster) if is_evicted(job)), "")


def _boosts(saver: RealJob, waster: RealJob) -> str:
    return f"a boost of {waster.name}: {boost_of(saver)} and {boost_of(waster)}; {waster.status()}"
