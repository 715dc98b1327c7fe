"""mpi-operator, without which no job of several workers starts: there, of a release that is known, with its rights."""

from __future__ import annotations

from collections.abc import Iterator

from bert_operator.doctor.finding import Finding, error, warning
from bert_operator.doctor.objects import images, namespace_of, place_of, release_of, tag_of, template_of
from bert_operator.doctor.rights import Right, find_missing
from bert_operator.doctor.snapshot import Snapshot
from bert_operator.json_paths import Json, dig, entries

OLDEST = (0, 8, 0)
"""Kueue's documentation asks for this release, and jobs that a queue suspends need it."""

_VERSION = "v2beta1"
_INSTALL = "kubectl apply --server-side -k deploy/kustomize/mpi-operator (docs/guides/install.md, mpi-operator)"
_MATTERS = "jobs with more than one worker are MPIJobs, which nothing else carries out; jobs with one worker run"


def check_presence(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that a controller for MPIJobs is running."""
    found = snapshot.mpi_operators()
    if not found:
        if snapshot.one("mpijob definition") is None:
            yield error("mpi-operator is not installed: no MPIJob definition, no Deployment", _MATTERS, _INSTALL)
        else:
            problem = "no Deployment runs mpi-operator, though the MPIJob definition is there"
            yield error(problem, _MATTERS, _INSTALL)
        return
    for deployment in found:
        if not dig(deployment, "status", "availableReplicas"):
            place = place_of(deployment)
            problem = f"Deployment {place}: got no available pod; allowed: at least one"
            yield error(problem, _MATTERS, f"kubectl -n {namespace_of(deployment)} describe pods, and its log")
    if len(found) > 1:
        places = ", ".join(place_of(item) for item in found)
        why = "two controllers undo each other's work on the same MPIJobs, unless each has a namespace of its own"
        yield warning(f"{len(found)} Deployments run mpi-operator: {places}", why, "delete all but one")


def check_version(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that mpi-operator's release and CRD are those that children are written for."""
    definition = snapshot.one("mpijob definition")
    if definition is not None:
        served = [str(item.get("name")) for item in entries(definition, "spec", "versions") if item.get("served")]
        if _VERSION not in served:
            problem = f"CustomResourceDefinition mpijobs.kubeflow.org: got {', '.join(served)}; allowed: {_VERSION}"
            why = "Kubeflow's training-operator v1 brings a kind of the same name, and the two fight over it"
            remedy = f"start training-operator with --enable-scheme for all kinds but mpijob, then {_INSTALL}"
            yield error(problem, why, remedy)
    for deployment in snapshot.mpi_operators():
        for image in images(deployment):
            release = release_of(tag_of(image))
            if release is not None and release < OLDEST:
                problem = f"Deployment {place_of(deployment)}: got {image}; allowed: 0.8.0 or newer, 0.8.2 is tested"
                why = "older releases do not put a job back that a queue has suspended"
                yield warning(problem, why, _INSTALL)


def check_rights(snapshot: Snapshot) -> Iterator[Finding]:
    """Check for the permission to clear a launcher's start time, which mpi-operator's own release does not grant."""
    needed = [Right("batch", "jobs/status", "update")]
    for deployment in snapshot.mpi_operators():
        account = _account(deployment)
        if find_missing(snapshot, account, namespace_of(deployment), needed, ""):
            problem = (
                f"ServiceAccount {namespace_of(deployment)}/{account}: may not update jobs.batch/status, which "
                "mpi-operator up to 0.8.2 is released without"
            )
            why = "a job of several workers that is suspended after its start, by a queue or by hand, never goes on"
            yield error(problem, why, "kubectl apply --server-side -f deploy/kustomize/mpi-operator/job-status.yaml")


def _account(deployment: Json) -> str:
    return str(template_of(deployment).get("serviceAccountName") or "default")
