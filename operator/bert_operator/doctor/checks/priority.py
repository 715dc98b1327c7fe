"""Whether pods of jobs, or of those who submit them, could push the operator off its node.

A pod that finds no room evicts pods of lower priority, never of the same. What names no class has the cluster's default
one, or 0. Source: https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from bert_operator.doctor.finding import Finding, error, note, warning
from bert_operator.doctor.objects import name_of, namespace_of, place_of, some, template_of
from bert_operator.doctor.snapshot import Snapshot
from bert_operator.json_paths import Json, dig, entries, mapping

HIGHEST_OF_USERS = 1_000_000_000
"""The highest value that a PriorityClass of somebody's may have; above are Kubernetes' own alone."""

_ENDED = ("Succeeded", "Failed")
_PAGE = "docs/guides/install.md, Bounds for teams"
_WHY = "a pod that fills its node evicts it: until it runs elsewhere no job starts, and none that runs is followed"


def check_priority(snapshot: Snapshot) -> Iterator[Finding]:
    """Compare the operator's priority with that of priority classes that jobs and their users may use."""
    classes = {name_of(item): item for item in snapshot.items("priority classes")}
    values = {name: int(item.get("value") or 0) for name, item in classes.items()}
    by_jobs = _allowed_classes(snapshot, values)
    lowest: list[int] = []
    for deployment in (*snapshot.operators(), *snapshot.mpi_operators()):
        name = template_of(deployment).get("priorityClassName")
        where = f"Deployment {place_of(deployment)}"
        if name and name not in values:
            problem = f"{where}, priorityClassName: got {name}; allowed: {', '.join(sorted(values)) or 'none is there'}"
            yield error(problem, "none of its pods can be created", "apply the overlay or the chart again")
            continue
        own = values[str(name)] if name else _default_of(classes)
        lowest.append(own)
        above = [each for each in by_jobs if values[each] > own and _preempts(classes[each])]
        if above:
            named = some(f"{each} ({values[each]})" for each in above)
            problem = f"{where} has the priority {own}, and jobs may have a higher one: {named}"
            yield error(problem, _WHY, _remedy(snapshot, own))
        elif own < HIGHEST_OF_USERS:
            problem = (
                f"{where} has the priority {own}; shipped: {HIGHEST_OF_USERS}, the highest that is not Kubernetes' own"
            )
            yield warning(problem, _WHY.replace("a pod", "a pod of a higher one"), _remedy(snapshot, own))
    yield from _refused_jobs(snapshot)
    if lowest:
        above = sorted(name for name in values if values[name] > min(lowest) and _preempts(classes[name]))
        yield from _open_namespaces(snapshot, above)


def _default_of(classes: Mapping[str, Json]) -> int:
    return max((int(item.get("value") or 0) for item in classes.values() if item.get("globalDefault")), default=0)


def _preempts(priority_class: Json) -> bool:
    return priority_class.get("preemptionPolicy") != "Never"


def _remedy(snapshot: Snapshot, own: int) -> str:
    given = "take the class out of limits.priorityClasses, or out of the profile"
    if own >= HIGHEST_OF_USERS:
        return given
    return "apply the overlay, the chart or deploy/kustomize/mpi-operator of this release, which bring a PriorityClass"


def _bounds(snapshot: Snapshot, namespace: str) -> Collection[str] | None:
    """Return the classes that jobs of a namespace may name; None for any. Empty where the settings do not say."""
    limits = mapping(snapshot.settings.document, "limits") if snapshot.settings else {}
    own = mapping(limits, "namespaces", namespace)
    said = [each["priorityClasses"] for each in (own, limits) if each.get("priorityClasses") is not None]
    return None if said[:1] == ["any"] else [str(name) for name in (said[0] if said else ())]


def _allowed_classes(snapshot: Snapshot, known: Collection[str]) -> list[str]:
    """Return the classes that pods of jobs can have: by the limits, by a profile, or as the cluster's default."""
    limits = mapping(snapshot.settings.document, "limits") if snapshot.settings else {}
    found: set[str] = set()
    for namespace in ("", *mapping(limits, "namespaces")):
        allowed = _bounds(snapshot, namespace)
        found |= set(known if allowed is None else allowed)
    found |= {str(dig(profile, "scheduling", "priorityClassName")) for profile in snapshot.profiles().values()}
    found |= {name_of(item) for item in snapshot.items("priority classes") if item.get("globalDefault")}
    return sorted(found & set(known))


def _refused_jobs(snapshot: Snapshot) -> Iterator[Finding]:
    for job in snapshot.own_jobs():
        name = dig(job, "spec", "scheduling", "priorityClassName")
        allowed = _bounds(snapshot, namespace_of(job))
        if not name or allowed is None or name in allowed or dig(job, "status", "phase") in _ENDED:
            continue
        listed = ", ".join(allowed) or "none, since limits.priorityClasses is not set"
        problem = f"job {place_of(job)}, spec.scheduling.priorityClassName: got {name}; allowed: {listed}"
        why = "it is Invalid, or Blocked with Rejected before its next attempt where it has started"
        yield error(problem, why, f"add the class to limits.priorityClasses in the operator's settings ({_PAGE})")


def _open_namespaces(snapshot: Snapshot, above: list[str]) -> Iterator[Finding]:
    """Yield the namespaces in which somebody may create pods of these classes: no quota counts them."""
    found = [place for place in snapshot.job_namespaces() if not set(above) <= _counted(snapshot, place, above)]
    if found and above:
        yield note(
            f"Namespace {some(found)}: no ResourceQuota counts pods of the PriorityClass {some(above)}",
            "limits bound jobs; whoever may create pods there (role edit) may evict the operator by one of these",
            f"apply the quota system-priorities ({_PAGE})",
        )


def _counted(snapshot: Snapshot, namespace: str, classes: Collection[str]) -> set[str]:
    counted: set[str] = set()
    for quota in snapshot.items("quotas"):
        if namespace_of(quota) != namespace:
            continue
        for term in entries(quota, "spec", "scopeSelector", "matchExpressions"):
            if term.get("scopeName") == "PriorityClass":
                is_any = term.get("operator") == "Exists"
                counted |= set(classes if is_any else term.get("values") or () if term.get("operator") == "In" else ())
    return counted
