"""Reads a job and what belongs to it, by kubectl."""

from __future__ import annotations

import json
from collections.abc import Sequence

from bert_operator.errors import InputError
from bert_operator.names import CONTAINER
from bert_operator.plugin.errors import ApiRefused
from bert_operator.plugin.job import Job, Json, Pod, losses, metric_row, read_pods, read_records, read_timed_records
from bert_operator.plugin.kubectl import JOBS, Kubectl
from bert_operator.plugin.queue_place import QueuePlace, read_place
from bert_operator.plugin.views.status_view import StatusData
from bert_operator.plugin.views.time_spent import time_of_attempt, time_of_stage
from bert_operator.render.names import JOB_LABEL, SPEC_KEY, config_map_name

# Of a log: several thousand reports, and no more than a screen's sparkline can show.
_TAIL = 4000


def read_job(kubectl: Kubectl, name: str) -> Job:
    """Return a job. Raises InputError for an invalid name, NoSuchObject, ApiRefused."""
    check_name(name)
    return Job(kubectl.read("get", JOBS, name))


def check_name(name: str) -> None:
    """Raise InputError for a name that kubectl would take for an option, or for no name."""
    if not name or name.startswith("-"):
        raise InputError(
            f"got {name or 'nothing'} for the name of a job; allowed: lower-case letters, digits, and dashes between"
        )


def read_jobs(kubectl: Kubectl, *, selector: str | None = None, everywhere: bool = False) -> list[Job]:
    """Return the jobs of the namespace, or of all. Raises ApiRefused."""
    asked, words = _asking_for_jobs(kubectl, selector=selector, everywhere=everywhere)
    return [Job(item) for item in asked.read(*words).get("items") or ()]


def print_jobs(kubectl: Kubectl, output: str, *, selector: str | None = None, everywhere: bool = False) -> str:
    """Return the jobs as one of kubectl's printers writes them.

    Args:
        kubectl: The way to the cluster.
        output: As ``kubectl get --output`` takes it, such as ``jsonpath={.items[*].metadata.name}``.
        selector: Labels; None: any.
        everywhere: Whether in all namespaces.

    Raises:
        ApiRefused: They cannot be read, or the template is wrong.
    """
    asked, words = _asking_for_jobs(kubectl, selector=selector, everywhere=everywhere)
    return asked.call(*words, f"--output={output}")


def _asking_for_jobs(kubectl: Kubectl, *, selector: str | None, everywhere: bool) -> tuple[Kubectl, list[str]]:
    words = ["get", JOBS, *(("--selector", selector) if selector else ())]
    # Other words on the command line must not narrow what is read in all namespaces.
    return (kubectl.within(None), [*words, "--all-namespaces"]) if everywhere else (kubectl, words)


def read_pods_of(kubectl: Kubectl, job: Job) -> list[Pod]:
    """Return a job's pods, newest attempt last. Raises ApiRefused."""
    answer = kubectl.within(job.namespace).read("get", "pods", "--selector", f"{JOB_LABEL}={job.name}")
    # Those of a namesake that was deleted may still be leaving.
    return [pod for pod in read_pods(answer.get("items") or ()) if pod.created_s >= job.created_s]


def gather_status(kubectl: Kubectl, name: str, now_s: float, where: str = "") -> StatusData:
    """Return all data for the status screen; what cannot be read is left out and named.

    Raises:
        NoSuchObject: There is no such job.
        ApiRefused: It cannot be read.
    """
    job = read_job(kubectl, name)
    missing: list[str] = []
    pods: Sequence[Pod] = ()
    curve: list[tuple[int, float]] = []
    place: QueuePlace | None = None
    try:
        pods = read_pods_of(kubectl, job)
    except ApiRefused as error:
        missing.append(f"pods: {first_line(error)}")
    spent = time_of_stage(job)
    try:
        if job.phase == "Queued" and (queue := _queue_of(kubectl, job)):
            place = read_place(kubectl, job, queue)
    except ApiRefused as error:
        missing.append(f"place in the queue: {first_line(error)}")
    logged = [pod for pod in pods if pod.has_log and pod.has_started]
    if logged:
        try:
            lines = read_log(kubectl, job, logged[-1], tail=_TAIL, timestamps=True)
            timed = read_timed_records(lines, job)
            curve = losses((record for _, record in timed), job.status.get("stage"))
            spent = time_of_attempt(logged[-1], timed, is_whole=len(lines) < _TAIL) or spent
        except ApiRefused as error:
            missing.append(f"loss curve: {first_line(error)}")
    return StatusData(
        job=job, pods=pods, losses=curve, place=place, spent=spent, missing=missing, now_s=now_s, where=where
    )


def _queue_of(kubectl: Kubectl, job: Job) -> object:
    # A job that names none may have one by its profile.
    return job.spec.get("queueName") or (read_frozen_spec(kubectl, job) or {}).get("queueName")


def read_frozen_spec(kubectl: Kubectl, job: Job) -> Json | None:
    """Return a job's spec as the operator has frozen it, with what its profile adds; None where it cannot be read."""
    name = config_map_name(job.name)
    try:
        held = kubectl.within(job.namespace).read("get", "configmaps", name)
        owners = [owner.get("uid") for owner in (held.get("metadata") or {}).get("ownerReferences") or ()]
        # That of a namesake which was deleted is about to go.
        spec = json.loads(held["data"][SPEC_KEY]) if job.uid in owners else None
    except (ApiRefused, KeyError, TypeError, ValueError):
        return None
    return spec if isinstance(spec, dict) else None


def read_log(kubectl: Kubectl, job: Job, pod: Pod, *, tail: int | None = None, timestamps: bool = False) -> list[str]:
    """Return the lines of a pod's log as far as it is there. Raises ApiRefused.

    Args:
        kubectl: The way to the cluster.
        job: Whose pod it is.
        pod: With the log.
        tail: Only so many lines, the last ones; None: all.
        timestamps: With the time of each line before it, RFC 3339.
    """
    words = ["logs", pod.name, "--container", CONTAINER]
    words += [f"--tail={tail}"] if tail is not None else []
    words += ["--timestamps"] if timestamps else []
    return kubectl.within(job.namespace).call(*words).split("\n")


def read_metrics(kubectl: Kubectl, job: Job) -> list[dict[str, str | float]]:
    """Return the progress records in a job's logs as rows of a table, oldest pod first. Raises ApiRefused."""
    rows: list[dict[str, str | float]] = []
    for pod in read_pods_of(kubectl, job):
        if not (pod.has_log and pod.has_started):
            continue
        found = (metric_row(record, pod.attempt) for record in read_records(read_log(kubectl, job, pod), job))
        rows += [row for row in found if row is not None]
    return rows


def first_line(error: Exception) -> str:
    """Return an error's message without its hint."""
    return str(error).partition("\n")[0]
