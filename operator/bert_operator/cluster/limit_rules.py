"""What jobs ask of a cluster, held against what the settings' limits let them. Pure.

It reads documents and not jobs: what a profile adds to a job is not the job's own wish, and a spec may have been frozen
by another release.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from bert_job.problems import Problem, render_value
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob, RunPolicy
from bert_operator.api.schema.cluster import DEFAULT_ACCELERATOR
from bert_operator.cluster.limits import Bounds
from bert_operator.names import PREPARE_RUN
from bert_operator.render.images import is_below, is_of_same_repository
from bert_operator.state.runs import list_runs, run_placement

Document = dict[str, Any]

ALLOWS_NONE = "none of a job's own"
_EVERY_TAINT = "every taint"
_RESOURCES = ("resources", "worker.resources", "launcher.resources")
_WITH_ALL_BELOW = ("images", "nfs_exports")


class Asked(NamedTuple):
    """A value in a spec that limits may restrict."""

    bound: str
    """Name of the field of ``Bounds``."""
    path: str
    value: Any


def find_asked(spec: Document, profile: Document | None = None) -> Iterator[Asked]:
    """Yield all values of a spec that limits may restrict, with their paths. Any field may be missing.

    profile: completes the name of a device of which the spec says only how many.
    """
    yield from _volumes(spec)
    yield from find_devices(spec, profile)
    yield from _names(spec)
    for path in ("scheduling", "launcher", "worker"):
        section = _section(spec, path)
        for number, toleration in enumerate(section.get("tolerations") or ()):
            where = f"spec.{path}.tolerations[{number}]"
            yield Asked("tolerations", where, toleration.get("key") or None)
        for label in section.get("nodeSelector") or ():
            yield Asked("node_labels", f"spec.{path}.nodeSelector", label)
    yield from _affinity(_section(spec, "scheduling", "affinity"))
    for path in _RESOURCES:
        for number, claim in enumerate(_section(spec, *path.split(".")).get("resourceClaims") or ()):
            where = f"spec.{path}.resourceClaims[{number}]"
            yield Asked("gpus_per_namespace", where, claim.get("name"))
            for field in ("resourceClaimName", "resourceClaimTemplateName"):
                if claim.get(field):
                    yield Asked("resource_claims", f"{where}.{field}", claim[field])
    default = RunPolicy.model_fields["stop_grace_seconds"].default
    seconds = _section(spec, "runPolicy").get("stopGraceSeconds")
    yield Asked("stop_grace_seconds", "spec.runPolicy.stopGraceSeconds", default if seconds is None else seconds)


_NAMES = (
    ("service_accounts", ("serviceAccountName",)),
    ("priority_classes", ("scheduling", "priorityClassName")),
    ("priority_classes", ("scheduling", "schedulingPolicy", "priorityClass")),
    ("scheduling_queues", ("scheduling", "schedulingPolicy", "queue")),
    ("scheduler_names", ("scheduling", "schedulerName")),
    ("runtime_classes", ("scheduling", "runtimeClassName")),
    ("workload_priority_classes", ("workloadPriorityClass",)),
)
"""Fields that hold a name, each with its field of ``Bounds``."""


def _names(spec: Document) -> Iterator[Asked]:
    for bound, (*sections, field) in _NAMES:
        if name := _section(spec, *sections).get(field):
            yield Asked(bound, ".".join(("spec", *sections, field)), name)
    for bound, field in (("pod_labels", "labels"), ("pod_annotations", "annotations")):
        for key in _section(spec, "podMetadata", field):
            yield Asked(bound, f"spec.podMetadata.{field}", key)


def limit_problems(spec: Document, profile: Document, bounds: Bounds, *, default_image: str) -> Iterator[Problem]:
    """Yield violations of the limits by a job's own fields. default_image: of jobs that name none."""
    if all(getattr(bounds, name) is None for name in Bounds.model_fields):
        return
    granted = {(asked.bound, asked.value) for asked in find_devices(profile)} | {("images", default_image)}
    for asked in find_asked(spec, profile):
        if (asked.bound, asked.value) not in granted and not _is_allowed(asked, bounds):
            yield _problem(asked, bounds, _told(asked))


def frozen_limit_problems(frozen: Document, profile: Document, bounds: Bounds, default_image: str) -> Iterator[Problem]:
    """Yield parts of a frozen configuration that neither profile nor limits allow any more.

    Args:
        frozen: The spec, which does not show what came from a profile.
        profile: The job's, as it is now.
        bounds: Of its namespace, as they are now.
        default_image: Of jobs that name none. It may have moved to another tag.
    """
    granted = list(find_asked(profile))
    by_name = {(asked.bound, asked.value) for asked in granted if asked.bound != "stop_grace_seconds"}
    images = [default_image, *(str(asked.value) for asked in granted if asked.bound == "images")]
    for asked in find_asked(frozen):
        is_granted = (asked.bound, asked.value) in by_name or (
            asked.bound == "images" and any(is_of_same_repository(str(asked.value), image) for image in images)
        )
        if not is_granted and not _is_allowed(asked, bounds):
            yield _problem(asked, bounds, f"{_told(asked)}, from when the job was started")


def size_problems(job: BertPretrainJob, bounds: Bounds) -> Iterator[Problem]:
    """Yield why a job could never start: one of its runs exceeds the namespace's quota."""
    for run in list_runs(job):
        placement = run_placement(job.spec, run.name)
        accelerator = (job.spec.worker.resources or job.spec.resources).accelerator
        gpus = 0
        if accelerator is not None and accelerator.resource_claim is None and run.name != PREPARE_RUN:
            gpus = placement.workers * (accelerator.per_worker or placement.slots)
        for name, number, most in (
            ("ranks", placement.ranks, bounds.ranks_per_namespace),
            ("gpus", gpus, bounds.gpus_per_namespace),
        ):
            if most is not None and number > most:
                setting = f"limits.{name}PerNamespace"
                yield Problem(
                    path="spec.workers",
                    got=f"{number} {'GPUs' if name == 'gpus' else name} in the run {run.name}",
                    allowed=f"at most {most}, which all jobs of the namespace share ({setting})",
                    next_step=f"ask for fewer workers, or have an administrator raise {setting} in the operator's "
                    "settings",
                )


def _told(asked: Asked) -> str:
    is_keyless = asked.bound == "tolerations" and asked.value is None
    return render_value(_EVERY_TAINT if is_keyless else asked.value)


def _is_allowed(asked: Asked, bounds: Bounds) -> bool:
    allowed = getattr(bounds, asked.bound)
    if allowed is None:
        return True
    match asked.bound:
        case "images":
            return any(is_below(asked.value, prefix) for prefix in allowed)
        case "nfs_exports":
            return any(_is_export_below(asked.value, entry) for entry in allowed)
        case "stop_grace_seconds":
            return bool(asked.value <= allowed)
        case "gpus_per_namespace":
            return False
    return asked.value in allowed


def _problem(asked: Asked, bounds: Bounds, got: str) -> Problem:
    setting = f"limits.{type(bounds).model_fields[asked.bound].alias}"
    allowed = getattr(bounds, asked.bound)
    change = f"have an administrator change {setting} in the operator's settings"
    match asked.bound:
        case "stop_grace_seconds":
            return Problem(path=asked.path, got=got, allowed=f"at most {allowed}", next_step=f"lower it, or {change}")
        case "gpus_per_namespace":
            words = f"resources.accelerator, which can be counted ({setting} is set), or a claim of a profile"
        case _:
            words = ", ".join(allowed) or ALLOWS_NONE
            words += ", and all below these" if asked.bound in _WITH_ALL_BELOW and allowed else ""
    return Problem(path=asked.path, got=got, allowed=words, next_step=f"remove it or name an allowed one, or {change}")


def _is_export_below(export: str, allowed: str) -> bool:
    """Return whether server:/path is a server's, or below a folder of it. Servers have no slash in their names."""
    if ":/" not in allowed:
        return export.startswith(f"{allowed}:/")
    # Kubernetes passes ".." on. With NFSv4 the node's kernel walks the path from the server's root and goes up there.
    folder = allowed if allowed.endswith("/") else f"{allowed}/"
    return f"{export}/".startswith(folder) and "/../" not in f"{export}/"


def _volumes(spec: Document) -> Iterator[Asked]:
    if spec.get("image"):
        yield Asked("images", "spec.image", spec["image"])
    volumes = [(f"{name}.volume", _section(spec, name).get("volume")) for name in ("dataset", "output", "workspace")]
    volumes += [
        (f"volumes[{number}].source", entry.get("source")) for number, entry in enumerate(spec.get("volumes") or ())
    ]
    for path, volume in volumes:
        reference = _section(volume or {}, "image").get("reference")
        if reference:
            yield Asked("images", f"spec.{path}.image.reference", reference)
        nfs = _section(volume or {}, "nfs")
        if nfs:
            yield Asked("nfs_exports", f"spec.{path}.nfs", f"{nfs.get('server')}:{nfs.get('path')}")


def find_devices(spec: Document, profile: Document | None = None) -> Iterator[Asked]:
    """Yield the devices that a spec asks for, as ``find_asked`` does."""
    for path in _RESOURCES:
        own, given = _section(spec, *path.split(".")), _section(profile or {}, *path.split("."))
        for kind, default in (("accelerator", DEFAULT_ACCELERATOR), ("rdma", None)):
            if own.get(kind) is None:
                continue
            # As profiles are merged: field by field, and null is no value.
            written = {key: value for key, value in _section(own, kind).items() if value is not None}
            device = {**_section(given, kind), **written}
            name = device.get("resourceName") or default
            if name is not None and device.get("resourceClaim") is None:
                yield Asked("extended_resources", f"spec.{path}.{kind}.resourceName", name)


def _affinity(affinity: Document) -> Iterator[Asked]:
    for path, term in _terms(affinity, "nodeAffinity", "preference"):
        for kind in ("matchExpressions", "matchFields"):
            for expression in term.get(kind) or ():
                yield Asked("node_labels", f"{path}.{kind}", expression.get("key"))
    for section in ("podAffinity", "podAntiAffinity"):
        for path, term in _terms(affinity, section, "podAffinityTerm"):
            for namespace in term.get("namespaces") or ():
                yield Asked("affinity_namespaces", f"{path}.namespaces", namespace)


def _terms(affinity: Document, section: str, weighted: str) -> Iterator[tuple[str, Document]]:
    """Yield path and content of each term of a kind of affinity, those that must hold and those that should.

    weighted: the field of a preference that holds its term.
    """
    rules, path = _section(affinity, section), f"spec.scheduling.affinity.{section}"
    must, should = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))
    terms = rules.get(must) or ()
    if isinstance(terms, dict):  # of nodes
        must, terms = f"{must}.nodeSelectorTerms", terms.get("nodeSelectorTerms") or ()
    yield from ((f"{path}.{must}[{number}]", term) for number, term in enumerate(terms))
    for number, entry in enumerate(rules.get(should) or ()):
        yield f"{path}.{should}[{number}].{weighted}", _section(entry, weighted)


def _section(document: Any, *path: str) -> Document:
    """Return a section of a document, empty where it is missing or null."""
    for name in path:
        document = (document.get(name) if isinstance(document, dict) else None) or {}
    return document if isinstance(document, dict) else {}
