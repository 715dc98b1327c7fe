"""The controllers and the nodes of a cluster that is only in memory: they act when they are called, and once.

``sync_job`` follows the Job controller of Kubernetes 1.31 and later for one completion and no retries;
``sync_mpi_job`` follows mpi-operator v0.8.2 (v2/pkg/controller/mpi_job_controller.go), its odd paths included;
the rest is what a scheduler and a kubelet, or an accident, make of a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bert_operator.timestamps import render_time
from fake_cluster import FINAL_PHASES, Document, FakeCluster, is_deleting, owned, owner_uid

TRACKING = "batch.kubernetes.io/job-tracking"


def true_conditions(document: Document) -> set[str]:
    """Return the types of the conditions that hold."""
    return {item["type"] for item in (document.get("status") or {}).get("conditions") or () if item["status"] == "True"}


def has_ended(document: Document) -> bool:
    """Tell whether a Job or an MPIJob has ended, as its controller says."""
    return bool(true_conditions(document) & {"Complete", "Failed", "Succeeded"})


def is_alive(pod: Document) -> bool:
    """Tell whether something may be running in a pod."""
    return pod["status"]["phase"] == "Running"


# Conditions.


def _say(cluster: FakeCluster, conditions: list[Document], kind: str, holds: bool, reason: str) -> list[Document]:
    """Return conditions with one more said; the time of the last change is kept where nothing changed."""
    before = next((item for item in conditions if item["type"] == kind), None)
    if before and before["status"] == str(holds) and before["reason"] == reason:
        return conditions
    said = {"type": kind, "status": str(holds), "reason": reason, "lastTransitionTime": render_time(cluster.now_s)}
    return [*(item for item in conditions if item["type"] != kind), said]


# The Job controller.


def sync_job(cluster: FakeCluster, job: Document) -> None:
    """Look at one Job once."""
    pods = [pod for pod in cluster.owned_by(job) if pod["kind"] == "Pod"]
    status = dict(job.get("status") or {})
    conditions: list[Document] = list(status.get("conditions") or ())
    if not has_ended(job):
        conditions = _count(cluster, job, pods, status, conditions)
        cluster.update(job, status={**status, "conditions": conditions})
    for pod in pods:
        if (found := cluster.fresh(pod)) is not None:
            _release(cluster, found)


def _count(
    cluster: FakeCluster, job: Document, pods: list[Document], status: Document, conditions: list[Document]
) -> list[Document]:
    policy = job["spec"].get("podReplacementPolicy", "TerminatingOrFailed")
    counted = [pod for pod in pods if TRACKING in pod["metadata"]["finalizers"]]
    failed = [pod for pod in counted if pod["status"]["phase"] == "Failed"]
    if policy != "Failed":
        failed += [pod for pod in counted if is_deleting(pod) and pod["status"]["phase"] not in FINAL_PHASES]
    now = render_time(cluster.now_s)
    if any(pod["status"]["phase"] == "Succeeded" for pod in counted):
        status["completionTime"] = now
        return _say(cluster, conditions, "Complete", True, "CompletionsReached")
    if failed or "FailureTarget" in true_conditions(job):
        if "FailureTarget" not in true_conditions(job):
            return _say(cluster, conditions, "FailureTarget", True, "BackoffLimitExceeded")
        if all(pod["status"]["phase"] in FINAL_PHASES for pod in pods):
            return _say(cluster, conditions, "Failed", True, "BackoffLimitExceeded")
        return conditions
    if is_deleting(job):
        return conditions
    if job["spec"].get("suspend"):
        status.pop("startTime", None)
        for pod in counted:
            # Pods of a suspended Job are let go before they are deleted, so that they never count as failed.
            _release(cluster, pod, at_once=True)
            if not is_deleting(pod):
                cluster.mark_deleted(pod)
        return _say(cluster, conditions, "Suspended", True, "JobSuspended")
    status.setdefault("startTime", now)
    if not pods:
        name = f"{job['metadata']['name']}-{job['metadata']['uid']}"
        _add_pod(cluster, job, name, job["spec"]["template"], finalizers=[TRACKING])
    if "Suspended" in true_conditions(job):
        return _say(cluster, conditions, "Suspended", False, "JobResumed")
    return conditions


def _release(cluster: FakeCluster, pod: Document, *, at_once: bool = False) -> None:
    """Take note of a pod's end, whereupon it may vanish."""
    is_over = pod["status"]["phase"] in FINAL_PHASES
    if is_over or at_once:
        pod = cluster.update(pod, metadata={**pod["metadata"], "finalizers": []})
    if is_over and is_deleting(pod):
        cluster.remove(pod)


def _add_pod(
    cluster: FakeCluster, owner: Document, name: str, template: Mapping[str, Any], finalizers: Iterable[str] = ()
) -> None:
    metadata = {"name": name, "labels": template["metadata"]["labels"], "ownerReferences": owned(owner)}
    pod = {"kind": "Pod", "spec": {}, "status": {"phase": "Pending"}}
    cluster.add({**pod, "metadata": {**metadata, "finalizers": list(finalizers)}})


# mpi-operator.


def sync_mpi_job(cluster: FakeCluster, mpi_job: Document, *, rejects: bool = False) -> None:
    """Look at one MPIJob once. rejects: it breaks a rule of this mpi-operator."""
    if is_deleting(mpi_job):
        return
    if rejects:
        cluster.warn(mpi_job, "ValidationError", "spec.mpiReplicaSpecs: Invalid value")
        return
    status = dict(mpi_job.get("status") or {})
    if status.get("completionTime"):
        _clean_up_workers(cluster, mpi_job)
        return
    suspended = _is_suspended(mpi_job)
    name = mpi_job["metadata"]["name"]
    launcher = cluster.find("Job", f"{name}-launcher")
    if launcher is not None and owner_uid(launcher) != mpi_job["metadata"]["uid"]:
        cluster.warn(mpi_job, "ErrResourceExists", f'Resource "{name}-launcher" already exists')
        return
    workers: list[Document] = []
    if launcher is None or not has_ended(launcher):
        if not suspended:
            if (foreign := _foreign_worker(cluster, mpi_job)) is not None:
                cluster.warn(mpi_job, "ErrResourceExists", f'Resource "{foreign}" already exists')
                return
            workers = _make_workers(cluster, mpi_job)
        if launcher is None:
            launcher = _make_launcher(cluster, mpi_job, suspended=suspended)
    if bool(launcher["spec"].get("suspend")) != suspended and not is_deleting(launcher):
        launcher = cluster.update(launcher, spec={**launcher["spec"], "suspend": suspended})
    if suspended:
        _clean_up_workers(cluster, mpi_job)
    conditions = _describe(cluster, mpi_job, launcher, workers, status)
    cluster.update(mpi_job, status={**status, "conditions": conditions})


def _describe(
    cluster: FakeCluster, mpi_job: Document, launcher: Document, workers: list[Document], status: Document
) -> list[Document]:
    """Return the conditions, and put what else it says into the status."""
    conditions: list[Document] = list(status.get("conditions") or ())
    suspended, was_suspended = _is_suspended(mpi_job), "Suspended" in true_conditions(mpi_job)
    now = render_time(cluster.now_s)
    if not conditions:
        conditions = _say(cluster, conditions, "Created", True, "MPIJobCreated")
    if not suspended and (was_suspended or "startTime" not in status):
        status["startTime"] = now
    if suspended:
        conditions = _say(cluster, conditions, "Suspended", True, "MPIJobSuspended")
    elif was_suspended:
        conditions = _say(cluster, conditions, "Suspended", False, "MPIJobResumed")
    pods = cluster.owned_by(launcher)
    if "Complete" in true_conditions(launcher):
        status["completionTime"] = launcher["status"]["completionTime"]
        conditions = _end(cluster, conditions, "Succeeded", "MPIJobSucceeded")
    elif "Failed" in true_conditions(launcher):
        status["completionTime"] = now
        last = next((pod for pod in pods if pod["status"]["phase"] == "Failed"), None)
        reason = "BackoffLimitExceeded" + (f"/{last['status'].get('reason', '')}" if last else "")
        conditions = _end(cluster, conditions, "Failed", reason)
    if any(pod["status"]["phase"] == "Failed" and pod["status"].get("reason") == "Evicted" for pod in workers):
        # Without a completion time: it goes on as if nothing had happened, and may take this back.
        conditions = _end(cluster, conditions, "Failed", "MPIJobEvicted")
        cluster.warn(mpi_job, "MPIJobEvicted", "workers are evicted")
    if suspended:
        return _say(cluster, conditions, "Running", False, "MPIJobSuspended")
    if any(is_alive(pod) for pod in pods) and all(is_alive(pod) for pod in workers):
        return _say(cluster, conditions, "Running", True, "MPIJobRunning")
    return conditions


def _end(cluster: FakeCluster, conditions: list[Document], kind: str, reason: str) -> list[Document]:
    """Say the end; what contradicts it turns False."""
    others = {"Running", "Failed"} - {kind}
    for item in [item for item in conditions if item["type"] in others]:
        conditions = _say(cluster, conditions, item["type"], False, item["reason"])
    if kind == "Succeeded" and not any(item["type"] == "Running" for item in conditions):
        conditions = _say(cluster, conditions, "Running", False, "MPIJobRunning")
    return _say(cluster, conditions, kind, True, reason)


def _is_suspended(mpi_job: Document) -> bool:
    return bool((mpi_job["spec"].get("runPolicy") or {}).get("suspend"))


def _worker_names(mpi_job: Document) -> list[str]:
    replicas = mpi_job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
    return [f"{mpi_job['metadata']['name']}-worker-{number}" for number in range(replicas)]


def _foreign_worker(cluster: FakeCluster, mpi_job: Document) -> str | None:
    """Return the name of a worker that has to be made and that somebody else's pod has."""
    uid = mpi_job["metadata"]["uid"]
    found = (cluster.find("Pod", name) for name in _worker_names(mpi_job))
    return next((pod["metadata"]["name"] for pod in found if pod is not None and owner_uid(pod) != uid), None)


def _make_workers(cluster: FakeCluster, mpi_job: Document) -> list[Document]:
    """Make the workers that are missing; one that failed is there, and is never made anew."""
    template = mpi_job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    for name in _worker_names(mpi_job):
        if cluster.find("Pod", name) is None:
            _add_pod(cluster, mpi_job, name, template)
    return [pod for pod in cluster.owned_by(mpi_job) if pod["kind"] == "Pod"]


def _make_launcher(cluster: FakeCluster, mpi_job: Document, *, suspended: bool) -> Document:
    template = mpi_job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]
    metadata = {"name": f"{mpi_job['metadata']['name']}-launcher", "ownerReferences": owned(mpi_job)}
    return cluster.add(
        {"kind": "Job", "metadata": metadata, "spec": {"backoffLimit": 0, "suspend": suspended, "template": template}}
    )


def _clean_up_workers(cluster: FakeCluster, mpi_job: Document) -> None:
    """Do what cleanPodPolicy Running says: pods that have ended stay."""
    for pod in cluster.owned_by(mpi_job):
        if pod["kind"] == "Pod" and pod["status"]["phase"] in ("Pending", "Running") and not is_deleting(pod):
            cluster.mark_deleted(pod)


# Nodes, and what befalls pods.


def start_pod(cluster: FakeCluster, pod: Document) -> None:
    """A node runs it."""
    ready = [{"type": "Ready", "status": "True"}]
    cluster.update(pod, spec={"nodeName": "node-1"}, status={"phase": "Running", "conditions": ready})


def block_pod(cluster: FakeCluster, pod: Document, reason: str) -> None:
    """A node cannot start it."""
    waiting = {"name": "trainer", "state": {"waiting": {"reason": reason, "message": "not found"}}}
    cluster.update(pod, spec={"nodeName": "node-1"}, status={"phase": "Pending", "containerStatuses": [waiting]})


def end_pod(
    cluster: FakeCluster, pod: Document, exit_code: int | None, *, ended_by: str = "", reason: str = ""
) -> None:
    """Its container ends; None: the node is gone, and nobody will ever know how.

    ended_by: of the container, such as OOMKilled. reason: of the pod, such as Evicted.
    """
    status: Document = {**pod["status"], "phase": "Succeeded" if exit_code == 0 else "Failed"}
    if reason:
        status["reason"] = reason
    if exit_code is not None:
        how = {"exitCode": exit_code, "reason": ended_by or ("Error" if exit_code else "Completed")}
        state = {"terminated": {**how, "finishedAt": render_time(cluster.now_s)}}
        status["containerStatuses"] = [{"name": "trainer", "state": state}]
    pod = cluster.update(pod, spec={"nodeName": "node-1"}, status=status)
    if is_deleting(pod) and TRACKING not in pod["metadata"]["finalizers"]:
        cluster.remove(pod)


def disrupt_pod(cluster: FakeCluster, pod: Document, reason: str) -> None:
    """A drain, a preemption or a taint asks it to leave."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    conditions = [item for item in pod["status"].get("conditions") or () if item["type"] != "DisruptionTarget"]
    cluster.mark_deleted(cluster.update(pod, status={**pod["status"], "conditions": [*conditions, target]}))


def act(cluster: FakeCluster, *, rejects: bool = False, mpi_operator: bool = True) -> None:
    """Let every controller look at everything once."""
    if mpi_operator:
        for mpi_job in cluster.all("MPIJob"):
            sync_mpi_job(cluster, mpi_job, rejects=rejects)
    for job in cluster.all("Job"):
        sync_job(cluster, job)
    cluster.collect_garbage()
    for pod in cluster.all("Pod"):
        if is_deleting(pod):
            _let_go(cluster, pod)


def _let_go(cluster: FakeCluster, pod: Document) -> None:
    """Do what is left to do for a deleted pod: end it where it never had a node, and remove it if nobody counts it."""
    if not pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending":
        pod = cluster.update(pod, status={**pod["status"], "phase": "Failed"})
    owner_is_gone = all(item["metadata"]["uid"] != owner_uid(pod) for item in cluster.objects.values())
    is_counted = owner_is_gone or TRACKING not in pod["metadata"]["finalizers"]
    if pod["status"]["phase"] in FINAL_PHASES and is_counted:
        cluster.remove(pod)
