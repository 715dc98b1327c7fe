"""What jobs, and profiles for the jobs to come, ask of a cluster: read from documents that nobody has checked. Pure.

A profile and a job are merged as the operator does it (``api.parsing.profiles``), as far as the fields here go; tests
hold both against each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from bert_operator.doctor.objects import Json, amount, dig, entries, mapping, name_of, namespace_of
from bert_operator.doctor.snapshot import Snapshot

_SECTIONS = ("cpu", "launcher", "network", "resources", "scheduling", "securityContext", "worker")
_WHOLE = frozenset({"affinity", "nodeSelector", "topology"})
_OVER = ("Succeeded", "Failed", "Invalid")
_WAITING = (None, "Pending")


@dataclass(frozen=True)
class Demand:
    """Resources that the pods of one job need, or those that a profile is for."""

    owner: str
    """``job namespace/name``, or ``profile name``: as messages call it."""
    namespace: str
    """Of the job; empty for a profile, which is for any."""
    is_waiting: bool
    """Whether it has not started yet, so that room for all of its pods is needed."""
    workers: int
    """Pods that train; 1 for a profile, which does not say."""
    worker: Mapping[str, Fraction]
    """Requests of one worker by resource: cpu, memory in bytes, devices by their names."""
    node_selector: Mapping[str, str]
    """Labels that nodes of workers must have."""
    claims: frozenset[str]
    """Names of PersistentVolumeClaims that every pod mounts."""
    image: str
    """Empty: the one that the operator was installed with."""
    queue: str
    """Kueue's LocalQueue; empty: none."""
    precision: str
    """Of training; empty: fp32."""
    is_on_processors: bool
    """Whether it trains without accelerators."""
    privileges: tuple[tuple[str, str], ...]
    """What Pod Security standards have a word on: (path, strictest standard that allows it)."""

    def pods(self) -> int:
        """Return the maximum number of concurrent pods; several workers have a launcher."""
        return self.workers + 1 if self.workers > 1 else 1


def find_demands(snapshot: Snapshot) -> Iterator[Demand]:
    """Yield the demand of every active job and every profile."""
    profiles = snapshot.profiles()
    settings = snapshot.settings.document if snapshot.settings else {}
    for name, profile in profiles.items():
        yield _demand(f"profile {name}", "", profile, is_waiting=False)
    for job in snapshot.own_jobs():
        phase = dig(job, "status", "phase")
        if phase in _OVER:
            continue
        own = mapping(job, "spec")
        profile = profiles.get(str(own.get("profile") or settings.get("defaultProfile") or ""), {})
        owner = f"job {namespace_of(job)}/{name_of(job)}"
        yield _demand(owner, namespace_of(job), merge(own, profile), is_waiting=phase in _WAITING)


def find_placed(snapshot: Snapshot) -> Iterator[tuple[Demand, str]]:
    """Yield the jobs with their namespace, and the default profile with those where there are none yet."""
    default = snapshot.settings.document.get("defaultProfile") if snapshot.settings else None
    with_jobs = {namespace_of(job) for job in snapshot.own_jobs()}
    for demand in find_demands(snapshot):
        if demand.namespace:
            yield demand, demand.namespace
        elif demand.owner == f"profile {default}":
            # Jobs say themselves what they ask for, the profile included.
            yield from ((demand, name) for name in snapshot.watched_namespaces() if name not in with_jobs)


def merge(own: Json, profile: Json) -> Json:
    """Return a job's spec with what its profile adds."""
    merged = {**profile, **{key: value for key, value in own.items() if value is not None}}
    for section in _SECTIONS:
        if isinstance(own.get(section), dict) and isinstance(profile.get(section), dict):
            merged[section] = _merge_section(profile[section], own[section])
    for section in ("dataset", "output"):
        if dig(own, section, "volume") is None and dig(profile, section, "volume") is not None:
            merged[section] = {**mapping(own, section), "volume": profile[section]["volume"]}
    return merged


def _merge_section(profile: Json, own: Json) -> Json:
    merged = {**profile, **{key: value for key, value in own.items() if value is not None}}
    for key in profile.keys() & own.keys() - _WHOLE:
        if isinstance(profile[key], dict) and isinstance(own[key], dict):
            merged[key] = _merge_section(profile[key], own[key])
    return merged


def _demand(owner: str, namespace: str, spec: Json, *, is_waiting: bool) -> Demand:
    sources = list(_volumes(spec))
    selector = dig(spec, "worker", "nodeSelector")
    return Demand(
        owner=owner,
        namespace=namespace,
        is_waiting=is_waiting,
        workers=_count(spec.get("workers")),
        worker=worker_requests(spec),
        node_selector=selector if isinstance(selector, dict) else mapping(spec, "scheduling", "nodeSelector"),
        claims=frozenset(str(dig(source, "persistentVolumeClaim", "claimName")) for _, source in sources
                         if dig(source, "persistentVolumeClaim", "claimName")),
        image=str(spec.get("image") or ""),
        queue=str(spec.get("queueName") or ""),
        precision=str(spec.get("precision") or ""),
        is_on_processors=not _resources(spec).get("accelerator"),
        privileges=tuple(_privileges(spec, sources)),
    )  # fmt: skip


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _volumes(spec: Json) -> Iterator[tuple[str, Json]]:
    for section in ("dataset", "output", "workspace"):
        if source := mapping(spec, section, "volume"):
            yield f"{section}.volume", source
    for entry in entries(spec, "volumes"):
        yield f"volumes.{entry.get('name')}", mapping(entry, "source")


def _resources(spec: Json) -> Json:
    return mapping(spec, "worker", "resources") or mapping(spec, "resources")


def worker_requests(spec: Json) -> dict[str, Fraction]:
    """Return a training worker's requests by resource: CPUs, memory in bytes, devices by name."""
    resources = _resources(spec)
    slots = _count(spec.get("slotsPerWorker"))
    found: dict[str, Fraction] = {}
    cores = dig(spec, "cpu", "coresPerRank")
    if resources.get("cpu") is not None:
        found["cpu"] = amount(resources["cpu"])
    elif isinstance(cores, int):
        found["cpu"] = Fraction(cores * slots * _count(dig(spec, "cpu", "threadsPerCore")))
    if resources.get("memory") is not None:
        found["memory"] = amount(resources["memory"])
    accelerator = resources.get("accelerator")
    if isinstance(accelerator, dict) and accelerator.get("resourceClaim") is None:
        name = str(accelerator.get("resourceName") or "nvidia.com/gpu")
        found[name] = Fraction(_count(accelerator.get("perWorker") or slots))
    if rdma := mapping(resources, "rdma"):
        found[str(rdma.get("resourceName"))] = Fraction(_count(rdma.get("perWorker")))
    return found


def _privileges(spec: Json, sources: list[tuple[str, Json]]) -> Iterator[tuple[str, str]]:
    """Yield what is asked for, with the strictest Pod Security standard that allows it.

    Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/
    """
    for path, source in sources:
        if source.get("hostPath") is not None:
            yield f"{path}.hostPath", "privileged"
        elif source.get("nfs") is not None:
            yield f"{path}.nfs", "baseline"
    if dig(spec, "network", "hostNetwork") is True:
        yield "network.hostNetwork", "privileged"
    if dig(spec, "network", "lockMemory") is True or mapping(spec, "resources", "rdma"):
        yield "network.lockMemory", "privileged"
    if dig(spec, "securityContext", "runAsUser") == 0:
        yield "securityContext.runAsUser: 0", "baseline"
