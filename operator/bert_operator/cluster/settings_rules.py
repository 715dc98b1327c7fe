"""Rules that only the operator can judge: they depend on its settings, or on paths that the API cannot read. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bert_operator.api.parsing.profiles import complete, find_privileges, profile_of
from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.rules import mounts
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob, JobSpec
from bert_operator.cluster.settings import Settings
from bert_operator.errors import ABSENT, UNKNOWN_FIELD, InvalidJob, Problem, render_value

Document = dict[str, Any]


def read_cluster_job(document: Document, settings: Settings) -> BertPretrainJob:
    """Return a job with what its profile adds.

    Raises:
        InvalidJob: with everything that keeps it from running in this cluster.
    """
    try:
        job = parse_job(complete(document, settings.profiles, settings.default_profile))
    except InvalidJob as invalid:
        raise InvalidJob([_of_this_release(problem) for problem in invalid.problems]) from None
    problems = [*privilege_problems(document, settings), *cluster_problems(job, settings)]
    if problems:
        raise InvalidJob(problems)
    return job


def _of_this_release(problem: Problem) -> Problem:
    """Return a problem as it is meant in a cluster, where the API server takes no field that its definition lacks."""
    if problem.got != UNKNOWN_FIELD:
        return problem
    return replace(
        problem, next_step="have the newer release of the operator run whose definition has it, or leave it out"
    )


def cluster_problems(job: BertPretrainJob, settings: Settings) -> Iterator[Problem]:
    """Yield what keeps a valid job from running in this cluster."""
    yield from _output_is_on_a_volume(job.spec)
    yield from _ranks_can_be_counted(job.spec)


def privilege_problems(document: Document, settings: Settings) -> Iterator[Problem]:
    """Yield what a job asks for itself, beyond its pods, and may not. A profile may ask for it: see ``profiles``."""
    for path, got in find_privileges(document["spec"], _network_devices(settings)):
        is_allowed, setting, instead = _grant(path, settings)
        if not is_allowed:
            yield Problem(
                path=path,
                got=render_value(got),
                allowed=instead,
                next_step=f"leave it out, or have {setting} set in the operator's settings",
            )


def frozen_problems(document: Document, frozen: Document, settings: Settings) -> Iterator[Problem]:
    """Yield what a started job was frozen with and what neither the settings nor its profile grant by now.

    document: the job's. frozen: the spec that it was frozen with, in which what was its profile's cannot be told from
    its own.
    """
    try:
        profile = profile_of(document["spec"], settings.profiles, settings.default_profile) or {}
    except InvalidJob:
        profile = {}  # gone, and what it granted with it
    devices = _network_devices(settings)
    granted = {(_kind(path), got) for path, got in find_privileges(profile, devices)}
    for path, got in find_privileges(frozen, devices):
        is_allowed, setting, instead = _grant(path, settings)
        if not is_allowed and (_kind(path), got) not in granted:
            yield Problem(
                path=path,
                got=f"{render_value(got)}, from when the job was started",
                allowed=instead,
                next_step=f"have {setting} set in the operator's settings, or its profile there grant it again, or "
                "delete the job and apply it again",
            )


def _grant(path: str, settings: Settings) -> tuple[bool, str, str]:
    """Return whether the settings allow what a path asks for, by which of them, and what to write instead."""
    match _kind(path):
        case "hostPath":
            instead = "persistentVolumeClaim or nfs, not folders of the node"
            return settings.allow_host_path, "allowHostPath", instead
        case "hostNetwork":
            return settings.allow_host_network, "allowHostNetwork", "false, or a profile that has it"
        case "lockMemory":
            return settings.allow_lock_memory, "allowLockMemory", "false, or a profile that has it"
    # Whoever gets the device may lock memory.
    return settings.allow_lock_memory, "allowLockMemory", "none, or a profile that has it"


def _kind(path: str) -> str:
    return path.rpartition(".")[2]


def _network_devices(settings: Settings) -> set[str]:
    """Return the resources that profiles call network devices."""
    found = (path_and_name for profile in settings.profiles.values() for path_and_name in find_privileges(profile))
    return {str(name) for path, name in found if _kind(path) == "rdma"}


def _output_is_on_a_volume(spec: JobSpec) -> Iterator[Problem]:
    """Refuse results that would be lost with the pod."""
    path, base = spec.output.path, mounts.output_base(spec)
    if not path.startswith("/"):
        if posixpath.normpath(path).startswith(".."):
            yield Problem(
                path="spec.output.path",
                got=render_value(path),
                allowed="a folder below output.volume, from which a relative path counts",
                next_step="leave the .. out",
            )
        if base is None:
            yield Problem(
                path="spec.output.volume",
                got=ABSENT,
                allowed="a volume for output.path, which is relative: without one the results are lost with the pod",
                next_step="add output.volume, for example {persistentVolumeClaim: {claimName: results}}",
            )
        return
    path = posixpath.normpath(path)
    writable = {entry.source.mount_path for entry in spec.volumes if not entry.read_only}
    folders = [folder for folder in (base, *writable) if folder is not None]
    if not any(f"{path}/".startswith(f"{folder}/") for folder in folders):
        yield Problem(
            path="spec.output.path",
            got=render_value(path),
            allowed=f"a folder on a writable mount: {', '.join(sorted(folders)) or 'there is none'}",
            next_step="write a path below a mount, or a relative one, which counts from output.volume",
        )


def _ranks_can_be_counted(spec: JobSpec) -> Iterator[Problem]:
    """Refuse a count of what nobody has told: pods are made before anybody sees their nodes."""
    if spec.cpu.ranks_per_node is not None and spec.cpu.places is None:
        field, noun = ("numaNodes", "NUMA nodes") if spec.cpu.pinning == "numa" else ("sockets", "sockets")
        yield Problem(
            path=f"spec.cpu.{field}",
            got=ABSENT,
            allowed=f"the number of {noun} of a node, from which cpu.ranksPerNode: auto counts the ranks",
            next_step=f"add cpu.{field}, as lscpu on a node shows it, or write slotsPerWorker in place of auto",
        )
