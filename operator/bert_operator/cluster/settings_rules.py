"""Rules that only the operator can check: they depend on its settings, or normalize paths, which CEL cannot. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bert_job.problems import ABSENT, UNKNOWN_FIELD, Problem, render_value
from bert_operator.api.parsing.profiles import complete, profile_of
from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.rules import mounts
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob, JobSpec, Metadata
from bert_operator.cluster.limit_rules import frozen_limit_problems, limit_problems, size_problems
from bert_operator.cluster.settings import Settings
from bert_operator.errors import InvalidJob
from bert_operator.json_paths import mapping
from bert_operator.spec_documents import find_privileges, network_devices

Document = dict[str, Any]


def read_cluster_job(document: Document, settings: Settings) -> BertPretrainJob:
    """Return a job, completed by its profile.

    Raises:
        InvalidJob: With everything that keeps it from running in this cluster.
    """
    seen = settings.seen_from(namespace_of(document))
    try:
        job = parse_job(complete(document, seen.profiles, seen.default_profile))
    except InvalidJob as invalid:
        is_stored = bool(mapping(document, "metadata").get("uid"))
        raise InvalidJob([_of_this_release(it) if is_stored else it for it in invalid.problems]) from None
    # Privileges by the document as the user wrote it: what a profile adds, the profile grants.
    bounds = settings.limits.of(job.metadata.namespace)
    profile = profile_of(document["spec"], seen.profiles, seen.default_profile) or {}
    problems = [
        *privilege_problems(document, settings),
        *limit_problems(document["spec"], profile, bounds, default_image=settings.trainer_image),
        *cluster_problems(job, settings),
        *size_problems(job, bounds),
    ]
    if problems:
        raise InvalidJob(problems)
    return job


def namespace_of(document: Document) -> str:
    """Return the namespace of a job's document; kubectl's default one where a file names none."""
    metadata = document.get("metadata")
    name = metadata.get("namespace") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else str(Metadata.model_fields["namespace"].default)


def _of_this_release(problem: Problem) -> Problem:
    """Reword an unknown field of a stored job: the API server has only fields of its CRD, so that is a newer one."""
    if problem.got != UNKNOWN_FIELD:
        return problem
    return replace(problem, next_step="run the newer release of the operator whose definition has it, or remove it")


def cluster_problems(job: BertPretrainJob, settings: Settings) -> Iterator[Problem]:
    """Yield reasons why a valid job cannot run in this cluster."""
    yield from _output_is_on_a_volume(job.spec)
    yield from _prepared_data_is_on_a_volume(job.spec)
    yield from _ranks_can_be_counted(job.spec)


def privilege_problems(document: Document, settings: Settings) -> Iterator[Problem]:
    """Yield privileges beyond its pods that a job requests and may not have. Profiles may grant them."""
    for path, got in find_privileges(document["spec"], network_devices(settings.profiles.values())):
        is_allowed, setting, instead = _grant(path, settings)
        if not is_allowed:
            yield Problem(
                path=path,
                got=render_value(got),
                allowed=instead,
                next_step=f"remove it, or have an administrator set {setting} in the operator's settings",
            )


def frozen_problems(document: Document, frozen: Document, settings: Settings) -> Iterator[Problem]:
    """Yield parts of a frozen configuration that neither settings nor profile allow any more.

    Args:
        document: The job's.
        frozen: The spec that it was frozen with; it does not show which fields came from a profile.
        settings: The current ones.
    """
    namespace = namespace_of(document)
    seen = settings.seen_from(namespace)
    try:
        profile = profile_of(document["spec"], seen.profiles, seen.default_profile) or {}
    except InvalidJob:
        profile = {}  # deleted or withdrawn, and with it what it granted
    yield from frozen_limit_problems(frozen, profile, settings.limits.of(namespace), settings.trainer_image)
    # Compared by kind and value: a profile and the job may mount the same folder at different paths of the spec.
    devices = network_devices(settings.profiles.values())
    granted = {(_kind(path), got) for path, got in find_privileges(profile, devices)}
    for path, got in find_privileges(frozen, devices):
        is_allowed, setting, instead = _grant(path, settings)
        if not is_allowed and (_kind(path), got) not in granted:
            yield Problem(
                path=path,
                got=f"{render_value(got)}, from when the job was started",
                allowed=instead,
                next_step=f"set {setting} in the operator's settings, or grant it in its profile there again, or "
                "delete the job and apply it again",
            )


def _grant(path: str, settings: Settings) -> tuple[bool, str, str]:
    """Return whether the settings allow the privilege at a path, which setting it is, and what to write instead."""
    match _kind(path):
        case "hostPath":
            instead = "persistentVolumeClaim or nfs, not folders of the node"
            return settings.allow_host_path, "allowHostPath", instead
        case "hostNetwork":
            return settings.allow_host_network, "allowHostNetwork", "false, or a profile that has it"
        case "lockMemory":
            return settings.allow_lock_memory, "allowLockMemory", "false, or a profile that has it"
        case "safeToForcefullyDelete":
            # By no setting: whether nodes that do not answer are dead is known of a kind of nodes, not of all jobs.
            return False, f"{path.removeprefix('spec.')} of a profile", "false, or a profile that has it"
    # rdma: the device comes with the right to lock memory.
    return settings.allow_lock_memory, "allowLockMemory", "none, or a profile that has it"


def _kind(path: str) -> str:
    return path.rpartition(".")[2]


def _output_is_on_a_volume(spec: JobSpec) -> Iterator[Problem]:
    """Refuse an output path whose results would be lost with the pod."""
    path, base = spec.output.path, mounts.output_base(spec)
    if not path.startswith("/"):
        if posixpath.normpath(path).startswith(".."):
            yield Problem(
                path="spec.output.path",
                got=render_value(path),
                allowed="a folder below output.volume, from which a relative path counts",
                next_step="remove the ..",
            )
        if base is None:
            yield Problem(
                path="spec.output.volume",
                got=ABSENT,
                allowed="a volume for output.path, which is relative: without one the results are lost with the pod",
                next_step="add output.volume, for example {persistentVolumeClaim: {claimName: results}}, or judge the "
                "job by the settings of a cluster whose profile has one",
            )
        return
    folders = [folder for folder in (base, *_writable_volumes(spec)) if folder is not None]
    yield from _is_on_a_mount("spec.output.path", path, folders, "output.volume")


def _prepared_data_is_on_a_volume(spec: JobSpec) -> Iterator[Problem]:
    """Refuse to prepare a dataset where the pods' file system is read-only, and would be lost with them."""
    path = spec.dataset.path
    if path is None or not path.startswith("/") or all(stage.prepare is None for stage in spec.stages):
        return
    # While data is prepared, the dataset's volume is writable as well.
    bases = (mounts.dataset_base(spec), mounts.output_base(spec), *_writable_volumes(spec))
    folders = [folder for folder in bases if folder is not None]
    yield from _is_on_a_mount("spec.dataset.path", path, folders, "dataset.volume")


def _writable_volumes(spec: JobSpec) -> Iterator[str | None]:
    # An emptyDir is each pod's own, and goes with it.
    lasting = (entry for entry in spec.volumes if not entry.read_only and entry.source.empty_dir is None)
    yield from (entry.source.mount_path for entry in lasting)


def _is_on_a_mount(field: str, path: str, folders: list[str], volume: str) -> Iterator[Problem]:
    # Normalized first: /results/../data is not below /results.
    path = posixpath.normpath(path)
    if not any(f"{path}/".startswith(f"{folder}/") for folder in folders):
        yield Problem(
            path=field,
            got=render_value(path),
            allowed=f"a folder on a writable mount: {', '.join(sorted(set(folders))) or 'there is none'}",
            next_step=f"write a path below a mount, or a relative one, which counts from {volume}",
        )


def _ranks_can_be_counted(spec: JobSpec) -> Iterator[Problem]:
    """Refuse to count ranks from an unknown topology: pods are rendered before they have a node."""
    if spec.cpu.ranks_per_node is not None and spec.cpu.places is None:
        field, noun = ("numaNodes", "NUMA nodes") if spec.cpu.pinning == "numa" else ("sockets", "sockets")
        yield Problem(
            path=f"spec.cpu.{field}",
            got=ABSENT,
            allowed=f"the number of {noun} of a node, from which cpu.ranksPerNode: auto counts the ranks",
            next_step=f"add cpu.{field}, as lscpu on a node shows it, or write slotsPerWorker in place of auto",
        )
