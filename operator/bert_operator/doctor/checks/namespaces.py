"""What the namespaces of jobs forbid: Pod Security standards, and quotas that leave no room."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from bert_operator.doctor.demands import Demand, find_demands, find_placed
from bert_operator.doctor.finding import Finding, error
from bert_operator.doctor.objects import amount, name_of, namespace_of, place_of, render_amount, some
from bert_operator.doctor.snapshot import Snapshot
from bert_operator.json_paths import dig, mapping

ENFORCE = "pod-security.kubernetes.io/enforce"
_STRICTNESS = {"privileged": 0, "baseline": 1, "restricted": 2}


def check_pod_security(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that each namespace's Pod Security standard admits the pods of its jobs and the default profile."""
    levels = {name_of(item): dig(item, "metadata", "labels", ENFORCE) for item in snapshot.items("namespaces")}
    asked: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for demand, place in find_placed(snapshot):
        level = str(levels.get(place) or "privileged")
        for path, allowed in demand.privileges:
            if _STRICTNESS.get(level, 0) > _STRICTNESS[allowed]:
                asked[place, level, path, allowed].append(demand.owner)
    for (place, level, path, allowed), owners in asked.items():
        yield error(
            f"Namespace {place} enforces {level}, and {path}, which {allowed} is the strictest standard to allow, is "
            f"asked for by {some(owners)}",
            "their pods are refused: such a job is Blocked with PodSecurityViolated",
            f"remove {path} (a claim in place of nfs and hostPath), or kubectl label namespace {place} "
            f"--overwrite {ENFORCE}={allowed}",
        )


def check_quotas(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the ResourceQuotas of a namespace leave room for waiting jobs."""
    demands = [demand for demand in find_demands(snapshot) if demand.is_waiting]
    for quota in snapshot.items("quotas"):
        hard = mapping(quota, "status", "hard") or mapping(quota, "spec", "hard")
        used = mapping(quota, "status", "used")
        if dig(quota, "spec", "scopes") or dig(quota, "spec", "scopeSelector"):
            continue  # of some pods only, and which ones is the scheduler's knowledge
        for demand in demands:
            if demand.namespace != namespace_of(quota):
                continue
            for resource, wanted in _wanted(demand):
                for key in (f"requests.{resource}", resource):
                    if key not in hard or (resource == "pods") != (key == "pods"):
                        continue
                    limit, taken = amount(hard[key]), amount(used.get(key, "0"))
                    if taken + wanted > limit:
                        yield _no_room(place_of(quota), demand, key, limit=limit, taken=taken, wanted=wanted)


def _wanted(demand: Demand) -> Iterator[tuple[str, Fraction]]:
    """Yield what all pods of a job need at one time; the launcher's share, which is small, left out."""
    yield "pods", Fraction(demand.pods())
    for resource, each in demand.worker.items():
        yield resource, each * demand.workers


def _no_room(quota: str, demand: Demand, key: str, *, limit: Fraction, taken: Fraction, wanted: Fraction) -> Finding:
    resource = key.removeprefix("requests.")
    have, asked, full = (render_amount(resource, value) for value in (limit - taken, wanted, limit))
    never = wanted > limit
    return error(
        f"ResourceQuota {quota}, {key}: {have} of {full} are left, and {demand.owner} needs {asked}",
        f"the job is Blocked with QuotaExceeded{' for good' if never else ' until others have ended'}",
        "lower the job's workers or resources" if never else "wait, raise the quota, or lower the job's resources",
    )
