"""The files of a support bundle: what ``sharing`` lets through of a job, its children, pods, Events and logs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_job.progress import ProgressRecord
from bert_operator import __version__
from bert_operator.doctor.objects import release_of
from bert_operator.json_paths import mapping
from bert_operator.plugin.job import Job, Json, last_seen_s, read_timed_records
from bert_operator.plugin.sharing import Numbered, Numbers, Shape, Shareable, Words, describe, pick, round_figure
from bert_operator.render.names import ATTEMPT_LABEL, LAUNCHER, ROLE_LABEL, RUN_LABEL, SINGLE, WORKER
from bert_operator.timestamps import render_time

_KINDS = Words.of("BertPretrainJob ConfigMap Job MPIJob NetworkPolicy Pod Workload")
_TIMES: Shape = {"creationTimestamp": "time", "deletionTimestamp": "time", "generation": "number"}
_OF_KUBERNETES = Words.of(
    """
    BackOff BackoffLimitExceeded Completed ContainerCreating ContainerStatusUnknown CrashLoopBackOff
    CreateContainerConfigError CreateContainerError Created DeadlineExceeded DeletionByTaintManager ErrImagePull
    Error Evicted ExceededGracePeriod Failed FailedAttachVolume FailedCreate FailedCreatePodSandBox FailedKillPod
    FailedMount FailedScheduling ImagePullBackOff InvalidImageName JobSuspended Killing NodeAffinity NodeLost
    NodeNotReady NodeShutdown NominatedNodeNotReady OOMKilled OutOfcpu OutOfmemory PodInitializing Preempted
    PreemptionByScheduler Pulled Pulling RunContainerError SchedulerError Scheduled SchedulingGated Shutdown
    Started StartError SuccessfulCreate SuccessfulDelete Suspended Resumed Terminated TerminationByKubelet
    UnexpectedAdmissionError Unhealthy Unschedulable ContainersNotReady ContainersNotInitialized PodCompleted
    """
)
"""Reasons of Kubernetes itself; others come from programs that nobody here knows."""
_CONDITIONS = Words.of(
    """
    Ready Initialized ContainersReady PodScheduled PodReadyToStartContainers DisruptionTarget Complete Failed
    FailureTarget SuccessCriteriaMet Suspended Created Running Restarting Succeeded
    """
)
_YES_NO = Words.of("True False Unknown")
_RUNS = Words.of("prepare training")
_CONDITION_LIST: Shape = [
    {"type": _CONDITIONS, "status": _YES_NO, "reason": _OF_KUBERNETES, "lastTransitionTime": "time"}
]
_STATE: Shape = {
    "waiting": {"reason": _OF_KUBERNETES},
    "running": {"startedAt": "time"},
    "terminated": {
        "reason": _OF_KUBERNETES,
        "exitCode": "number",
        "signal": "number",
        "startedAt": "time",
        "finishedAt": "time",
    },
}
_CONTAINERS: Shape = [
    {"ready": "boolean", "started": "boolean", "restartCount": "number", "state": _STATE, "lastState": _STATE}
]
_AMOUNTS: Shape = dict.fromkeys(("cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "amd.com/gpu"), "amount")
_RESOURCES: Shape = [{"resources": {"requests": _AMOUNTS, "limits": _AMOUNTS}}]
_LABELS: Shape = {RUN_LABEL: _RUNS, ROLE_LABEL: Words.of(f"{LAUNCHER} {SINGLE} {WORKER}")}

POD: Shape = {
    "metadata": {**_TIMES, "name": Numbered("pod"), "labels": _LABELS},
    "spec": {
        "nodeName": Numbered("node"),
        "hostNetwork": "boolean",
        "priority": "number",
        "terminationGracePeriodSeconds": "number",
        "containers": _RESOURCES,
    },
    "status": {
        "phase": Words.of("Pending Running Succeeded Failed Unknown"),
        "qosClass": Words.of("BestEffort Burstable Guaranteed"),
        "reason": _OF_KUBERNETES,
        "startTime": "time",
        "conditions": _CONDITION_LIST,
        "containerStatuses": _CONTAINERS,
        "initContainerStatuses": _CONTAINERS,
    },
}
_REPLICAS: Shape = dict.fromkeys(("Launcher", "Worker"), {"replicas": "number"})
_COUNTS: Shape = dict.fromkeys(("active", "succeeded", "failed", "ready", "terminating"), "number")
CHILD: Shape = {
    "kind": _KINDS,
    "metadata": {**_TIMES, "name": Numbered("child"), "labels": _LABELS},
    "spec": {
        "suspend": "boolean",
        "slotsPerWorker": "number",
        "parallelism": "number",
        "backoffLimit": "number",
        "runPolicy": {"suspend": "boolean", "backoffLimit": "number"},
        "mpiReplicaSpecs": _REPLICAS,
    },
    "status": {
        **_COUNTS,
        "startTime": "time",
        "completionTime": "time",
        "conditions": _CONDITION_LIST,
        "replicaStatuses": dict.fromkeys(("Launcher", "Worker"), _COUNTS),
    },
}
_MAX_ATTEMPT_DIGITS = 4
"""Digits: attempts are counted from 1, so that longer ones are somebody's own words."""
_README = """\
Support bundle of a BertPretrainJob, by kubectl bert collect {version}.

It holds numbers, times and words of closed lists. Names are numbered (pod-1, node-2). Of every other text type and
length are left, such as "(text of 12)"; keys that are not listed are left out, with what is below them. Log lines are
the trainer's own records; of anything else that was printed there is nothing.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Data read for a support bundle."""

    job: Job
    objects: Sequence[Json] = ()
    """Children and pods."""
    events: Sequence[Json] = ()
    logs: Mapping[str, Sequence[str]]
    """Lines with timestamps, by the names of pods."""
    versions: Json
    """As ``kubectl version -o json`` prints it; empty: not known."""
    missing: Sequence[str] = ()
    """What could not be read, by words of this program."""


def make_files(gathered: Gathered, known: Shareable, numbers: Numbers) -> dict[str, str]:
    """Return the files of a bundle by name.

    Args:
        gathered: What was read.
        known: What may be handed on of a job.
        numbers: Of names; those that are met are added.
    """
    spec = known.spec
    if isinstance(spec.get("stages"), list):
        # Stages are what everything else refers to: numbered in their order.
        spec = {**spec, "stages": [{**spec["stages"][0], "name": Numbered("stage")}]}
    shape = {"metadata": {**_TIMES, "name": Numbered("job")}, "spec": spec, "status": known.status}
    files = {
        "README.txt": _README.format(version=__version__),
        "job.json": _write(pick(gathered.job.document, shape, numbers)),
        "pods.json": _write([_pod(item, numbers) for item in gathered.objects if item.get("kind") == "Pod"]),
        "children.json": _write([_child(item, numbers) for item in gathered.objects if item.get("kind") != "Pod"]),
        "events.json": _write([_event(event, known, numbers) for event in gathered.events]),
        "versions.json": _write(_versions(gathered.versions)),
    }
    for pod, lines in gathered.logs.items():
        records = read_timed_records(lines, gathered.job)
        text = "".join(_write(_record(time_s, record, known, numbers), indent=None) for time_s, record in records)
        files[f"logs/{numbers.of('pod', pod)}.jsonl"] = text
    files["missing.json"] = _write(list(gathered.missing))
    return files


def _pod(document: Json, numbers: Numbers) -> Any:
    return {**pick(document, POD, numbers), "attempt": _attempt(document)}


def _child(document: Json, numbers: Numbers) -> Any:
    return {**pick(document, CHILD, numbers), "attempt": _attempt(document)}


def _attempt(document: Json) -> int | None:
    """Return the attempt of a label, which is text."""
    text = str(mapping(dict(document), "metadata", "labels").get(ATTEMPT_LABEL))
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_ATTEMPT_DIGITS else None


def _event(event: Json, known: Shareable, numbers: Numbers) -> Json:
    about = event.get("involvedObject") or event.get("regarding") or {}
    kind = about.get("kind") if isinstance(about, dict) else None
    counted = {"BertPretrainJob": "job", "Pod": "pod"}.get(str(kind), "child")
    reasons = Words(_OF_KUBERNETES.words | known.reasons)
    seen_s = last_seen_s(event)
    return {
        "time": None if seen_s is None else render_time(seen_s),
        "type": pick(event.get("type"), Words.of("Normal Warning"), numbers),
        "kind": pick(kind, _KINDS, numbers),
        "object": numbers.of(counted, about.get("name")) if isinstance(about, dict) else None,
        "reason": pick(event.get("reason"), reasons, numbers),
        "count": pick(mapping(dict(event), "series").get("count") or event.get("count"), "number", numbers),
        "message": describe(event.get("message") or event.get("note")),
    }


def _record(time_s: float, record: ProgressRecord, known: Shareable, numbers: Numbers) -> Json:
    figures = {name: round_figure(text) for name, text in record.fields.items() if name in known.figures}
    rest = [text for name, text in record.fields.items() if name not in known.figures and name != "stage"]
    return {
        "time": render_time(time_s),
        "event": pick(record.event, Words(known.events), numbers),
        "attempt": record.attempt if (record.attempt or 0) < 10**_MAX_ATTEMPT_DIGITS else None,
        # A program may print any number of names.
        "stage": numbers.of("stage", record.stage) if numbers.has("stage", record.stage) else describe(record.stage),
        **{name: value for name, value in figures.items() if value is not None},
        "(not listed)": [describe(text) for text in rest],
    }


def _versions(document: Json) -> Json:
    found = {}
    for part in ("clientVersion", "serverVersion"):
        release = release_of(str(mapping(dict(document), part).get("gitVersion")))
        found[part] = None if release is None else ".".join(map(str, release))
    return {"kubectl-bert": __version__, **found}


def _write(document: Any, indent: int | None = 1) -> str:
    return json.dumps(document, indent=indent) + "\n"


def names_in(numbers: Numbers) -> Iterable[str]:
    """Return the legend from numbers to names, for the bundle's author only."""
    return (f"{number} is {name}" for number, name in numbers.listed())
