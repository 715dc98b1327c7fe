"""Changes jobs: suspend, resume, retry, delete, submit. What is refused here would do nothing, or something else."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from bert_operator.errors import InputError
from bert_operator.plugin.errors import ApiRefused
from bert_operator.plugin.job import Job
from bert_operator.plugin.kubectl import JOBS, Kubectl
from bert_operator.plugin.reading import read_job

MANAGER = "kubectl-bert"
"""Whose fields these are, for server-side apply."""
DryRun = Literal["client", "server"]
"""Nothing is changed. client: nor is that asked for; server: the API server is asked, and keeps nothing."""
_OF_THE_SERVER = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def set_suspend(kubectl: Kubectl, name: str, *, suspend: bool, dry_run: DryRun | None = None) -> tuple[Job, bool]:
    """Suspend or resume a job; return it, and whether that changed anything.

    Args:
        kubectl: The way to the cluster.
        name: Of the job.
        suspend: Whether it is to be stopped.
        dry_run: How nothing is changed; None: it is.

    Raises:
        InputError: It has ended.
        NoSuchObject: There is no such job.
        ApiRefused: It may not be changed.
    """
    job = read_job(kubectl, name)
    if job.has_ended:
        raise InputError(
            f"{job.namespace}/{name} has ended as {job.phase}, so it cannot be {'suspended' if suspend else 'resumed'}",
            hint=f"kubectl bert retry {name}{kubectl.where} starts a failed job again"
            if job.phase == "Failed"
            else None,
        )
    if job.is_suspended == suspend:
        return job, False
    if dry_run == "client":
        return job, True
    patch = json.dumps({"spec": {"runPolicy": {"suspend": suspend}}})
    changed = kubectl.within(job.namespace).read(
        "patch", JOBS, name, "--type=merge", f"--patch={patch}", f"--field-manager={MANAGER}", *_words(dry_run)
    )
    return Job(changed), True


def manifest_of(job: Job) -> dict[str, Any]:
    """Return the manifest of a job: what can be applied again, without what the API server and controllers add."""
    document = copy.deepcopy(dict(job.document))
    document.pop("status", None)
    metadata = {key: value for key, value in (document.get("metadata") or {}).items() if key not in _OF_THE_SERVER}
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != _LAST_APPLIED}
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": document.get("apiVersion"),
        "kind": document.get("kind"),
        "metadata": metadata,
        "spec": document.get("spec") or {},
    }


def retry(kubectl: Kubectl, name: str, *, say: Callable[[str], None], dry_run: DryRun | None = None) -> Job:
    """Start a failed job again, from its newest checkpoint: as a new object, since a job that has ended stays ended.

    Its manifest is tried on the API server before anything is deleted, and lies in a file until the new job is there.

    Args:
        kubectl: The way to the cluster.
        name: Of the job.
        say: Told of that file before anything is deleted, and again where the new job could not be created, Ctrl-C
            included.
        dry_run: How nothing is changed; None: it is.

    Raises:
        InputError: It has not failed.
        NoSuchObject: There is no such job.
        ApiRefused: The API server refuses it.
    """
    job = read_job(kubectl, name)
    if job.phase != "Failed":
        hints = {
            "Stopped": f"kubectl bert resume {name}{kubectl.where} continues it",
            "Succeeded": f"kubectl bert export {name}{kubectl.where} prints a manifest for another job",
        }
        raise InputError(
            f"{job.namespace}/{name} is {job.phase}; only a job that has failed is started again",
            hint=hints.get(job.phase, "failed attempts of a job that goes on are retried by the operator"),
        )
    manifest = manifest_of(job)
    manifest["spec"] = {**manifest["spec"], "output": {**manifest["spec"].get("output", {}), "ifExists": "Resume"}}
    if dry_run == "client":
        return Job(manifest)
    text = json.dumps(manifest)
    kubectl = kubectl.within(job.namespace)
    _try_creating(kubectl, text)
    if dry_run == "server":
        return Job(manifest)
    with tempfile.NamedTemporaryFile("w", prefix=f"{name}-", suffix=".json", delete=False) as file:
        file.write(text)
    # Whatever ends this process from here on, somebody knows where the job is.
    say(f"the manifest is kept in {file.name} until the new job is there")
    try:
        # In the foreground: pods of the old job write into the same folder.
        kubectl.call("delete", JOBS, name, "--cascade=foreground", "--wait=true")
        created = kubectl.read("create", "-f", "-", f"--field-manager={MANAGER}", given=text)
    except BaseException:
        say(f"{job.namespace}/{name} was not created again. Once it is gone: kubectl create -f {file.name}")
        raise
    Path(file.name).unlink()
    return Job(created)


def _try_creating(kubectl: Kubectl, text: str) -> None:
    """Have the API server judge a manifest whose name is taken. Raises ApiRefused."""
    try:
        kubectl.call("create", "--dry-run=server", "-f", "-", given=text)
    except ApiRefused as error:
        # Everything else is checked before.
        if error.status != 409:
            raise


def delete(kubectl: Kubectl, name: str, *, wait: bool, dry_run: DryRun | None = None) -> Job:
    """Delete a job with its pods; return it as it was.

    Args:
        kubectl: The way to the cluster.
        name: Of the job.
        wait: Until its pods, which may take a while to save, are gone.
        dry_run: How nothing is changed; None: it is.

    Raises:
        NoSuchObject: There is no such job.
        ApiRefused: It may not be deleted.
    """
    job = read_job(kubectl, name)
    if dry_run == "client":
        return job
    cascade = ("--cascade=foreground", "--wait=true") if wait and dry_run is None else ("--wait=false",)
    kubectl.within(job.namespace).call("delete", JOBS, name, *cascade, *_words(dry_run))
    return job


def _words(dry_run: DryRun | None) -> tuple[str, ...]:
    return () if dry_run is None else (f"--dry-run={dry_run}",)
