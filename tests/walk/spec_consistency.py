"""What must hold of jobs and their children once the operator has caught up, whatever was done to them. Pure.

It looks at the API server's documents alone and shares no code with the operator: how far a job is told to be must be
what its children and pods show. What may legitimately be otherwise is named at each rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

GROUP = "bert-operator.dev"
_OURS = f"{GROUP}/operator"
_FOR_PEOPLE = (
    *("FrozenConfigurationMissing", "FrozenConfigurationUntrusted", "FrozenConfigurationUnreadable"),
    *("FieldDropped", "Forbidden", "NameTaken", "PodCreationFailed", "Rejected"),
)
"""What blocks a job until somebody changes it, or what bears its child's name."""
TERMINAL = ("Succeeded", "Failed")
FINAL_PHASES = TERMINAL
"""Of pods, which call them alike."""
PHASES = ("Invalid", "Pending", "Queued", "Running", "Stopping", "Stopped", *TERMINAL)
_ENDINGS = {"Job": ("Complete", "Failed"), "MPIJob": ("Succeeded", "Failed")}
# A started job whose frozen configuration is gone is not read any further: its phase is the last one.
_UNREADABLE = (
    "FrozenConfigurationMissing",
    "FrozenConfigurationUntrusted",
    "FrozenConfigurationUnreadable",
    "Rejected",
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Lists of one namespace, read one after the other."""

    jobs: tuple[Json, ...]
    children: tuple[Json, ...]
    """Jobs and MPIJobs with their kinds, those that mpi-operator made included."""
    config_maps: tuple[Json, ...]
    policies: tuple[Json, ...]
    """NetworkPolicies."""
    pods: tuple[Json, ...]

    def versions(self) -> dict[str, str]:
        """Return the resource version of every object, by uid."""
        everything = (*self.jobs, *self.children, *self.config_maps, *self.policies, *self.pods)
        return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in everything}

    def written_since(self, before: Snapshot) -> list[str]:
        """Return what differs, and how: name, path, value before and now."""
        objects = [
            {
                item["metadata"]["uid"]: item
                for item in (*it.jobs, *it.children, *it.config_maps, *it.policies, *it.pods)
            }
            for it in (before, self)
        ]
        return [
            f"{item['metadata']['name']}{text}"
            for uid, item in objects[1].items()
            for text in _differences(objects[0].get(uid), item)
        ]

    def own(self, job: Json, memory: Memory) -> list[Json]:
        """Return a job's children: those that it controls, and the newest, whose owner others may have taken away.

        A status names a child once it runs. Until then one without an owner is known by whom it was taken from. Its
        age does not tell: a job may be deleted with ``--cascade=orphan`` and applied again within a second.
        """
        uid, known = job["metadata"]["uid"], status_of(job).get("child", {}).get("uid")
        name = f"{job['metadata']['name']}-a{status_of(job).get('attempt', 0)}"

        def is_newest(child: Json) -> bool:
            is_called_so = child["metadata"]["name"] in (name, f"{name}-training", f"{name}-prepare")
            return is_called_so and not owner_uid(child) and memory.taken_from.get(child["metadata"]["uid"]) == uid

        return [
            child
            for child in self.children
            if owner_uid(child) == uid or child["metadata"]["uid"] == known or is_newest(child)
        ]


@dataclass(slots=True)
class Memory:
    """What was seen of jobs before, by uid: some of it never goes back."""

    seen: dict[str, Json] = field(default_factory=dict)
    """Status."""
    kept: set[str] = field(default_factory=set)
    """Uids of objects that may outlive their job: it was deleted so, or others have taken their owner away."""
    taken_from: dict[str, str] = field(default_factory=dict)
    """Uids of children whose owner others have taken away, each with that of the job that it was."""


def _differences(before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now} - {"managedFields", "resourceVersion"}):
            yield from (f".{key}{text}" for text in _differences(before.get(key), now.get(key)))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from (f"[{number}]{text}" for text in _differences(old, new))
    elif before != now:
        yield f": {before!r:.300} became {now!r:.300}"


def find_problems(found: Snapshot, memory: Memory) -> list[str]:
    """Return what is not as it must be, a sentence each that begins with the name of the job."""
    problems = [text for job in found.jobs if not is_deleting(job) for text in _of_job(job, found, memory)]
    return [*problems, *_orphans(found, memory)]


def remember(found: Snapshot, memory: Memory) -> None:
    """Note what is now, for later looks."""
    memory.seen |= {job["metadata"]["uid"]: status_of(job) for job in found.jobs}


def not_ended(job: Json) -> str:
    """Return why a job without any hindrance has not ended; empty where that may be."""
    status = status_of(job)
    phase, reason = status.get("phase"), status.get("reason")
    is_waiting = reason == "BackingOff" or phase == "Invalid" or blocked_by(status) in _FOR_PEOPLE
    # One of another controller has no status here, and is run elsewhere.
    if phase in TERMINAL or is_waiting or "deletionTimestamp" in job["metadata"] or not _is_ours(job):
        return ""
    return f"{job['metadata']['name']}: does not end: {phase} ({reason}) {status.get('message')}"


def _is_ours(job: Json) -> bool:
    return bool(job["spec"].get("managedBy", _OURS) == _OURS)


def _of_job(job: Json, found: Snapshot, memory: Memory) -> Iterator[str]:
    name, status = job["metadata"]["name"], status_of(job)
    phase = status.get("phase")
    if not _is_ours(job):
        if status:
            yield f"{name}: it is for {job['spec']['managedBy']}, and has a status: {status}"
        return
    if phase not in PHASES:
        yield f"{name}: no phase, but {phase}"
        return
    yield from (f"{name}: {text}" for text in _back(memory.seen.get(job["metadata"]["uid"], {}), status))
    active = [child for child in found.own(job, memory) if not has_ended(child)]
    staying = [child for child in active if not is_deleting(child)]
    if phase in TERMINAL:
        yield from (f"{name}: has {phase}, and {child['metadata']['name']} goes on" for child in staying)
        return
    if status.get("observedGeneration") != job["metadata"]["generation"]:
        seen, now = status.get("observedGeneration"), job["metadata"]["generation"]
        yield f"{name}: generation {now} was not observed, only {seen}"
    if len(staying) > 1:
        yield f"{name}: {len(staying)} children at once: {[child['metadata']['name'] for child in staying]}"
    if phase != "Invalid" and blocked_by(status) not in _UNREADABLE:
        yield from (f"{name}: {text}" for text in _of_phase(job, status, active, staying, found, memory))


def _back(before: Json, now: Json) -> Iterator[str]:
    """Yield what went back that never may."""
    if before.get("phase") in TERMINAL:
        for key in ("phase", "attempt", "completionTime", "failures"):
            if before.get(key) != now.get(key):
                yield f"it had ended, and {key} was {before.get(key)}, is {now.get(key)}"
    if now.get("attempt", 0) < before.get("attempt", 0):
        yield f"attempt was {before['attempt']}, is {now.get('attempt')}"
    if before.get("image", now.get("image")) != now.get("image"):
        yield f"the image was {before['image']}, is {now.get('image')}"
    if not set(before.get("completedRuns") or ()) <= set(now.get("completedRuns") or ()):
        yield f"completed runs were {before['completedRuns']}, are {now.get('completedRuns')}"
    kept = {item["attempt"] for item in now.get("failures") or ()}
    if not {item["attempt"] for item in before.get("failures") or ()} <= kept:
        yield "a failure was forgotten"


def _of_phase(
    job: Json, status: Json, active: list[Json], staying: list[Json], found: Snapshot, memory: Memory
) -> Iterator[str]:
    """Yield where the phase is not what the children show."""
    phase, reason = status["phase"], status.get("reason")
    told = f"{phase} ({reason})"
    wants_stop = job["spec"].get("runPolicy", {}).get("suspend", False)
    if wants_stop and phase not in ("Stopping", "Stopped"):
        yield f"a stop is requested, and it is {told}"
    match phase:
        case "Stopped" if active or not wants_stop:
            yield f"{told}, and {'a child is active' if active else 'no stop is requested'}"
        case "Stopping" if not any(is_deleting(child) for child in active):
            yield f"{told}, and no child is being deleted"
        case "Running" if not active:
            yield f"{told} without a child"
        case "Queued" if not any(is_suspended(child) for child in active):
            yield f"{told}, and no child is suspended"
        case "Pending" if staying and all(_runs(child, found) for child in staying):
            yield f"{told}, and the pods of {staying[0]['metadata']['name']} run"
        case "Pending" if not active and not _is_excused(status, found.own(job, memory)):
            yield f"{told}: nothing will ever happen: no child, no back-off, nothing that blocks it"


def _is_excused(status: Json, own: list[Json]) -> bool:
    """Return whether a job may be pending without an active child: a time, a leftover or a blocker is waited for."""
    return (
        status.get("reason") == "BackingOff"
        or blocked_by(status) != ""
        or (status.get("reason") == "RemovingPrevious" and any(is_deleting(child) for child in own))
    )


def _runs(child: Json, found: Snapshot) -> bool:
    """Return whether all pods of a child run."""
    if is_suspended(child) or is_deleting(child):
        return False
    uids = {child["metadata"]["uid"]}
    uids |= {item["metadata"]["uid"] for item in found.children if owner_uid(item) in uids}
    pods = [pod for pod in found.pods if owner_uid(pod) in uids]
    wanted = 1
    if child["kind"] == "MPIJob":
        wanted += child["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
    running = [pod for pod in pods if pod["status"].get("phase") == "Running" and not is_deleting(pod)]
    return len(running) >= wanted


def _orphans(found: Snapshot, memory: Memory) -> Iterator[str]:
    """Yield what outlives its job though nobody wanted that."""
    uids = {item["metadata"]["uid"] for item in (*found.jobs, *found.children)}
    for item in (*found.children, *found.config_maps, *found.policies):
        labels, metadata = item["metadata"].get("labels") or {}, item["metadata"]
        owner = owner_uid(item)
        is_left = owner != "" and owner not in uids or owner == "" and f"{GROUP}/job" in labels
        if is_left and not is_deleting(item) and metadata["uid"] not in memory.kept:
            yield f"{labels.get(f'{GROUP}/job')}: {item['kind']} {metadata['name']} is left of a job that is gone"


def status_of(job: Json) -> Json:
    """Return the status of an object; empty where it has none."""
    return job.get("status") or {}


def blocked_by(status: Mapping[str, Any]) -> str:
    """Return the reason of the condition Blocked; empty where nothing blocks."""
    found = [item["reason"] for item in status.get("conditions") or () if item["type"] == "Blocked"]
    is_true = any(item["type"] == "Blocked" and item["status"] == "True" for item in status.get("conditions") or ())
    return str(found[0]) if is_true else ""


def has_ended(child: Json) -> bool:
    """Return whether a Job or MPIJob says that it has succeeded or failed."""
    conditions = status_of(child).get("conditions") or ()
    return any(item["type"] in _ENDINGS[child["kind"]] and item["status"] == "True" for item in conditions)


def is_suspended(child: Json) -> bool:
    """Return whether a queue holds a child back."""
    spec = child.get("spec") or {}
    return (spec if child["kind"] == "Job" else spec.get("runPolicy") or {}).get("suspend") is True


def is_deleting(item: Json) -> bool:
    """Return whether an object was deleted and waits for somebody."""
    return "deletionTimestamp" in item["metadata"]


def owner_uid(item: Json) -> str:
    """Return the uid of an object's controller; empty where it has none."""
    owners = item["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")
