"""What jobs, and profiles for the jobs to come, ask of a cluster: read from documents that nobody has checked. Pure.

Profiles and jobs are merged, and privileges found, by what the operator itself uses (``spec_documents``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from bert_operator.doctor.objects import amount, name_of, namespace_of
from bert_operator.doctor.snapshot import Snapshot
from bert_operator.json_paths import Json, dig, mapping
from bert_operator.spec_documents import count_ranks, find_privileges, list_volumes, merge_profile, network_devices

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
    devices = network_devices(profiles.values())
    settings = snapshot.settings.document if snapshot.settings else {}
    for name, profile in profiles.items():
        yield _demand(f"profile {name}", "", profile, devices, is_waiting=False)
    for job in snapshot.own_jobs():
        phase = dig(job, "status", "phase")
        if phase in _OVER:
            continue
        own = mapping(job, "spec")
        profile = profiles.get(str(own.get("profile") or settings.get("defaultProfile") or ""), {})
        owner = f"job {namespace_of(job)}/{name_of(job)}"
        yield _demand(
            owner, namespace_of(job), merge_profile(own, profile, profile), devices, is_waiting=phase in _WAITING
        )


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


def _demand(owner: str, namespace: str, spec: Json, devices: Collection[str], *, is_waiting: bool) -> Demand:
    claims = (dig(source, "persistentVolumeClaim", "claimName") for _, source in list_volumes(spec))
    selector = dig(spec, "worker", "nodeSelector")
    return Demand(
        owner=owner,
        namespace=namespace,
        is_waiting=is_waiting,
        workers=_count(spec.get("workers")),
        worker=worker_requests(spec),
        node_selector=selector if isinstance(selector, dict) else mapping(spec, "scheduling", "nodeSelector"),
        claims=frozenset(str(claim) for claim in claims if claim),
        image=str(spec.get("image") or ""),
        queue=str(spec.get("queueName") or ""),
        precision=str(spec.get("precision") or ""),
        is_on_processors=not _resources(spec).get("accelerator"),
        privileges=tuple(_privileges(spec, devices)),
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _resources(spec: Json) -> Json:
    return mapping(spec, "worker", "resources") or mapping(spec, "resources")


def worker_requests(spec: Json) -> dict[str, Fraction]:
    """Return a training worker's requests by resource: CPUs, memory in bytes, devices by name."""
    resources = _resources(spec)
    ranks = count_ranks(spec)
    found: dict[str, Fraction] = {}
    cores = dig(spec, "cpu", "coresPerRank")
    if resources.get("cpu") is not None:
        found["cpu"] = amount(resources["cpu"])
    elif isinstance(cores, int):
        found["cpu"] = Fraction(cores * ranks * _count(dig(spec, "cpu", "threadsPerCore")))
    if resources.get("memory") is not None:
        found["memory"] = amount(resources["memory"])
    accelerator = resources.get("accelerator")
    if isinstance(accelerator, dict) and accelerator.get("resourceClaim") is None:
        name = str(accelerator.get("resourceName") or "nvidia.com/gpu")
        found[name] = Fraction(_count(accelerator.get("perWorker") or ranks))
    if rdma := mapping(resources, "rdma"):
        found[str(rdma.get("resourceName"))] = Fraction(_count(rdma.get("perWorker")))
    return found


def _privileges(spec: Json, devices: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield what is asked for, with the strictest Pod Security standard that allows it.

    Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/
    """
    for path, _ in find_privileges(spec, devices):
        # What the operator grants beside the standards: neither is a field of the pod that these have a word on.
        if not path.endswith((".safeToForcefullyDelete", ".accelerator")):
            yield path.removeprefix("spec."), "privileged"
    for path, source in list_volumes(spec):
        if source.get("nfs") is not None:
            yield f"{path}.nfs", "baseline"
    for names in (("securityContext",), ("launcher", "securityContext"), ("worker", "securityContext")):
        if dig(spec, *names, "runAsUser") == 0:
            yield f"{'.'.join(names)}.runAsUser: 0", "baseline"
