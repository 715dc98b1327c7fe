"""Summaries of cluster objects: small values that the index holds instead of whole objects. Pure.

A thousand jobs with five pods each have to fit into some ten megabytes, so a summary holds what decisions need and
nothing else. Everything is parsed defensively: objects come from other controllers and other releases.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from bert_operator.api.schema.status import MAX_IMAGE, MAX_MESSAGE
from bert_operator.cluster.demand import Demand, read_demand
from bert_operator.cluster.job_series import NOTHING, JobSeries, read_series
from bert_operator.json_text import read_json, write_json
from bert_operator.names import PREPARE_RUN, TRAINING_RUN, is_managed_elsewhere
from bert_operator.render import names
from bert_operator.render.containers import (
    Ended,
    Waiting,
    find_foreign_end,
    find_trainer,
    find_waiting,
    list_unended_beside,
)
from bert_operator.render.images import find_digest
from bert_operator.timestamps import time_of

Document = Mapping[str, Any]
ChildKind = Literal["Job", "MPIJob"]

MAX_KEPT_BYTES = 16 * 1024
"""Of a job's document. The few larger ones are read from the API server at every reconcile."""
_MAX_NOTE = 500
_MAX_NAME = 253
"""Of objects that exist. What others write into references, conditions and finalizers may be of any length."""
_MAX_NAMED = 16
"""Finalizers or conditions of one object that are kept; Kubernetes' own controllers write no more than five."""
_OWN_FINALIZERS = ("foregroundDeletion", "orphan")
"""Of the garbage collector, which takes them away by itself."""
_DISRUPTIONS = ("Evicted", "Preempting", "Terminated", "Shutdown")
"""Reasons of pods that kubelet ends for the sake of others, or with its node."""
_OF_CONTAINERS = ("ContainersNotReady", "ReadinessGatesNotReady")
"""Reasons of kubelet's for a pod that is not ready."""
_ATTEMPT_DIGITS = 6
"""Far more than all retry budgets together allow; a longer label was not written by an operator."""


class ChildRecord(NamedTuple):
    """The newest child according to a job's status, which only the operator writes; labels may be edited by anyone."""

    job: str
    """The job's name, and its uid."""
    job_uid: str
    kind: ChildKind
    name: str
    uid: str
    run: str
    attempt: int


class JobSummary(NamedTuple):
    """A BertPretrainJob."""

    uid: str
    version: int
    """Resource version; a larger one is newer."""
    generation: int
    is_deleting: bool
    phase: str
    stages: tuple[str, ...]
    """Their names; no profile adds any."""
    child: ChildRecord | None
    """The newest child, once it was seen."""
    keeps_children: bool
    """Whether it is deleted with ``--cascade=orphan``: its children stay."""
    content: bytes | None
    """``kept_part`` of the document as compact JSON; None if it is too large to be kept."""
    series: JobSeries
    """What of it Prometheus gets."""
    is_managed_elsewhere: bool
    """Whether it is another controller's: nothing is done for it, and it counts nowhere."""

    def document(self) -> dict[str, Any]:
        """Return the job's document from its stored form."""
        assert self.content is not None, "a document that was too large to be kept is read again first"
        document: dict[str, Any] = read_json(self.content)
        return document


class ChildSummary(NamedTuple):
    """A Job or MPIJob created by the operator."""

    kind: ChildKind
    name: str
    uid: str
    version: int
    owner_uid: str
    """Of the BertPretrainJob that controls it; empty if none does."""
    run: str
    attempt: int
    created_at_s: float
    is_deleting: bool
    is_suspended: bool
    """Held back by a queue such as Kueue."""
    conditions: tuple[tuple[str, str], ...]
    """Type and reason of those that are True."""
    has_status: bool
    """Whether its controller has written any status."""
    is_counted_running: bool
    """Whether its controller has counted pods that run: the single one, or the launcher and all workers. It knows them
    by labels of its own, and so sees those whose labels of ours were changed."""
    completed_at_s: float | None
    waiting_since_s: float | None
    """When it was created or resumed; None if it was resumed and its controller has not seen that yet."""
    is_orphan: bool = False
    """Whether others have taken its owner away: the garbage collector does not delete it with its job."""
    is_watched: bool = True
    """Whether it has the label that watches select by."""
    finalizers: tuple[str, ...] = ()
    """Those of others, which hold it back when it is deleted."""
    demand: Demand = Demand()
    """What it takes while it runs."""
    image: str = ""
    """The trainer's, as its pod template names it."""
    queue: str = ""
    """The LocalQueue that its label names; empty: none."""
    grace_s: int | None = None
    """Of its pods; None where the template says nothing."""


class PodSummary(NamedTuple):
    """A pod of a child."""

    name: str
    uid: str
    version: int
    child: str
    """Name of the Job or MPIJob."""
    attempt: int
    role: str
    phase: str
    is_deleting: bool
    node: str
    unready_since_s: float | None
    """Since when it has run without being ready; None if it is ready or not running."""
    waiting: Waiting | None
    """The container that cannot start, and why."""
    unschedulable: str
    """The scheduler's message; empty if the pod has a node."""
    disruption: str
    """Reason of an eviction, a preemption or a drain; empty otherwise."""
    exit_code: int | None
    """The trainer's, as all that follows; containers of others do not count."""
    ended_by: str
    """Its reason: Completed, Error, OOMKilled ..."""
    message: str
    """Its termination message."""
    finished_at_s: float | None
    owner_uid: str
    """Of the Job or MPIJob that owns it; for a launcher's pod, of the Job that mpi-operator creates in between."""
    created_at_s: float
    sick_devices: str = ""
    """Devices that kubelet calls unhealthy (allocatedResourcesStatus); empty if none, or where it says nothing."""
    started_at_s: float | None = None
    """When its container began to run, by its node's clock; None unless it runs."""
    described_at_s: float | None = None
    """When its status was written last, by the API server's clock; None where that is not told, or while it runs."""
    image: str = ""
    """The trainer's by digest, once a node has pulled it; empty where a digest is of no use (``render.images``)."""
    told: str = ""
    """Why the whole pod has failed, in kubelet's words: it was refused, evicted, or ended with its node."""
    foreign_end: Ended | None = None
    """The container of others that failed first."""
    unseen_by: str = ""
    """The scheduler that has not looked at it yet, by its name; empty once one has."""
    beside: tuple[str, ...] = ()
    """Containers of others that have not ended although the trainer has, and keep the pod."""

    @property
    def has_ended(self) -> bool:
        """Whether its trainer container has ended or will never start."""
        return self.exit_code is not None or self.phase in ("Failed", "Succeeded")


def read_job(body: Document, *, max_bytes: float = MAX_KEPT_BYTES) -> JobSummary:
    """Return the summary of a BertPretrainJob. max_bytes: of a document that is kept."""
    metadata, kept = body.get("metadata", {}), kept_part(body)
    content = write_json(kept)
    stages = tuple(_stage_names(kept["spec"] or {}))
    # What stands in the status of such a job is told of another cluster, whose operator has it in its own metrics.
    is_elsewhere = is_managed_elsewhere(kept["spec"])
    return JobSummary(
        uid=metadata.get("uid", ""),
        version=read_version(body),
        generation=metadata.get("generation", 0),
        is_deleting="deletionTimestamp" in metadata,
        phase=sys.intern(kept["status"].get("phase") or "Pending"),
        stages=stages,
        child=None if is_elsewhere else _read_record(metadata, kept["status"]),
        keeps_children=keeps_children(body),
        content=content if len(content) <= max_bytes else None,
        series=NOTHING if is_elsewhere else read_series(kept["status"], stages),
        is_managed_elsewhere=is_elsewhere,
    )


def kept_part(body: Document) -> dict[str, Any]:
    """Return a BertPretrainJob without managed fields, annotations and whatever decisions do not use."""
    metadata = body.get("metadata", {})
    return {
        "apiVersion": body.get("apiVersion"),
        "kind": body.get("kind"),
        "metadata": {key: metadata[key] for key in ("name", "namespace", "uid", "generation") if key in metadata},
        "spec": body.get("spec", {}),
        "status": body.get("status") or {},
    }


def keeps_children(job: Document) -> bool:
    """Return whether a job was deleted with ``--cascade=orphan``."""
    return "orphan" in (job.get("metadata", {}).get("finalizers") or ())


def _read_record(metadata: Document, status: Document) -> ChildRecord | None:
    child, run = status.get("child") or {}, status.get("run")
    # The run of an older child is not in the status any more.
    if not child or not run or child.get("attempt") != status.get("attempt") or child.get("kind") == "Process":
        return None
    return ChildRecord(
        metadata.get("name", ""),
        metadata.get("uid", ""),
        child["kind"],
        child["name"],
        child["uid"],
        run,
        child["attempt"],
    )


def _stage_names(spec: Document) -> Iterator[str]:
    for stage in spec.get("stages") or ():
        name = stage.get("name") if isinstance(stage, dict) else None
        if isinstance(name, str):
            yield sys.intern(name)  # most jobs call them alike


def read_child(body: Document, record: ChildRecord | None = None) -> tuple[str, ChildSummary] | None:
    """Return the job's name in the labels of a Job or MPIJob, and its summary; None for objects that are not ours.

    record: of this very child, which wins over its labels and owners.
    """
    metadata, status, spec = body.get("metadata", {}), body.get("status") or {}, body.get("spec") or {}
    labels, owner_uid = metadata.get("labels") or {}, _owner_uid(metadata)
    is_watched, is_orphan = bool(labels.get(names.JOB_LABEL)), False
    if record is not None:
        labels, is_orphan, owner_uid = labels_of(record), owner_uid != record.job_uid, record.job_uid
    attempt = labels.get(names.ATTEMPT_LABEL, "")
    job, kind = labels.get(names.JOB_LABEL), body.get("kind")
    run = labels.get(names.RUN_LABEL, "")
    # Anyone may write labels: what no operator would have written is no child of ours.
    if not job or not _is_attempt(attempt) or run not in (PREPARE_RUN, TRAINING_RUN) or kind not in ("Job", "MPIJob"):
        return None
    # Interned: a few dozen strings repeat in the summaries of thousands of objects.
    conditions = tuple(
        (sys.intern(item.get("type", "")[:_MAX_NAME]), sys.intern((item.get("reason") or "")[:_MAX_NAME]))
        for item in (status.get("conditions") or ())[:_MAX_NAMED]
        if item.get("status") == "True"
    )
    template = _template(spec)
    suspend = spec.get("suspend") if kind == "Job" else (spec.get("runPolicy") or {}).get("suspend")
    created_at_s = time_of(metadata.get("creationTimestamp")) or 0.0
    # Both controllers reset startTime when they resume.
    resumed_at_s = time_of(status.get("startTime")) or 0.0
    return job, ChildSummary(
        kind=kind,
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        version=read_version(body),
        owner_uid=owner_uid,
        run=sys.intern(run),
        attempt=int(attempt),
        created_at_s=created_at_s,
        is_deleting="deletionTimestamp" in metadata,
        is_suspended=suspend is True,
        conditions=conditions,
        has_status=bool(status),
        is_counted_running=_is_counted_running(status, kind, dict(conditions)),
        completed_at_s=time_of(status.get("completionTime")) or _failed_at(status, kind),
        waiting_since_s=None if "Suspended" in dict(conditions) else max(created_at_s, resumed_at_s),
        is_orphan=is_orphan,
        is_watched=is_watched,
        finalizers=tuple(
            sys.intern(name[:_MAX_NAME])
            for name in (metadata.get("finalizers") or ())[:_MAX_NAMED]
            if name not in _OWN_FINALIZERS
        ),
        demand=read_demand(body),
        image=_template_image(template),
        queue=sys.intern(str((metadata.get("labels") or {}).get(names.QUEUE_LABEL) or "")[:_MAX_NAME]),
        grace_s=grace_s if isinstance(grace_s := template.get("terminationGracePeriodSeconds"), int) else None,
    )


def _is_counted_running(status: Document, kind: Any, conditions: Mapping[str, str]) -> bool:
    if kind == "Job":
        # Written together with Suspended, so neither is of another time.
        return _is_count(status.get("ready")) and "Suspended" not in conditions
    launcher = (status.get("replicaStatuses") or {}).get("Launcher") or {}
    return "Running" in conditions and _is_count(launcher.get("active"))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _template(spec: Document) -> Document:
    """Return the pod of a Job, or of an MPIJob's launcher, as it is made."""
    launcher = (spec.get("mpiReplicaSpecs") or {}).get("Launcher") or {}
    return (spec.get("template") or launcher.get("template") or {}).get("spec") or {}


def _template_image(pod: Document) -> str:
    image = find_trainer(pod.get("containers")).get("image")
    return sys.intern(image) if isinstance(image, str) and len(image) <= MAX_IMAGE else ""


def labels_of(record: ChildRecord) -> dict[str, str]:
    """Return the labels by which a child and its pods are known."""
    return {names.JOB_LABEL: record.job, names.RUN_LABEL: record.run, names.ATTEMPT_LABEL: str(record.attempt)}


def child_of(pod: Document) -> str:
    """Return the name of the Job or MPIJob that owns a pod; empty if none does."""
    owner = _owner(pod.get("metadata", {}))
    name = str(owner.get("name", ""))
    return name.removesuffix("-launcher") if owner.get("kind") == "Job" else name


def _is_attempt(label: str) -> bool:
    return label.isascii() and label.isdecimal() and len(label) <= _ATTEMPT_DIGITS


def read_pod(body: Document, record: ChildRecord | None = None) -> tuple[str, PodSummary] | None:
    """Return the job's name in the labels of a pod, and its summary; None for pods that are not ours.

    record: of its child, which wins over its labels.
    """
    metadata, status = body.get("metadata", {}), body.get("status") or {}
    labels = (metadata.get("labels") or {}) | (labels_of(record) if record is not None else {})
    job, attempt, run = (labels.get(key) for key in (names.JOB_LABEL, names.ATTEMPT_LABEL, names.RUN_LABEL))
    if not job or not attempt or not run:
        return None
    role = labels.get(names.ROLE_LABEL, "")
    conditions = {item.get("type"): item for item in status.get("conditions") or ()}
    container = find_trainer(status.get("containerStatuses"))
    state = container.get("state") or {}
    ended, waiting, foreign = state.get("terminated") or {}, find_waiting(body), find_foreign_end(body)
    is_over = bool(ended) or status.get("phase") in ("Failed", "Succeeded")
    scheduled = conditions.get("PodScheduled", {})
    disruption = conditions.get("DisruptionTarget", {})
    is_mpi = role != names.SINGLE
    number = int(attempt) if _is_attempt(attempt) else 0  # which is no attempt of any job
    return job, PodSummary(
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        version=read_version(body),
        # By its owner: another release may have made the child, and named it otherwise.
        child=_owner(metadata).get("name", "")[:_MAX_NAME].removesuffix("-launcher" if role == names.LAUNCHER else "")
        or names.child_name(job, run, number, is_mpi=is_mpi),
        attempt=number,
        role=sys.intern(role),
        phase=sys.intern(_phase(status, has_ended=bool(ended))),
        is_deleting="deletionTimestamp" in metadata,
        node=sys.intern((body.get("spec") or {}).get("nodeName") or ""),
        unready_since_s=_unready_since(status, conditions.get("Ready", {}), container),
        waiting=waiting and waiting._replace(message=waiting.message[:_MAX_NOTE]),
        unschedulable=(scheduled.get("message") or scheduled.get("reason") or "")[:_MAX_NOTE]
        if scheduled.get("status") == "False"
        else "",
        unseen_by=sys.intern(_scheduler(body)) if not scheduled and status.get("phase") == "Pending" else "",
        disruption=_disruption(status, disruption),
        exit_code=ended.get("exitCode"),
        ended_by=sys.intern(ended.get("reason") or ""),
        # A whole termination record, in which escapes make a message longer.
        message=(ended.get("message") or "")[: 4 * MAX_MESSAGE],
        finished_at_s=time_of(ended.get("finishedAt")),
        owner_uid=sys.intern(_owner_uid(metadata)),
        created_at_s=time_of(metadata.get("creationTimestamp")) or 0.0,
        sick_devices=_sick_devices(container),
        started_at_s=time_of((state.get("running") or {}).get("startedAt")),
        described_at_s=_described_at(metadata) if is_over else None,
        image=_image(body),
        told=_told(status) if is_over else "",
        foreign_end=foreign and foreign._replace(message=foreign.message[-_MAX_NOTE:]),
        beside=tuple(list_unended_beside(body)) if ended else (),
    )


def _phase(status: Document, *, has_ended: bool) -> str:
    """Return a pod's phase. has_ended: the trainer has."""
    phase: str = status.get("phase", "")
    # So kubelet calls a pod one of whose containers waits for its image, whatever the others have done.
    return "Running" if phase == "Pending" and has_ended else phase


def _image(pod: Document) -> str:
    """Return the trainer's image by digest."""
    status = find_trainer((pod.get("status") or {}).get("containerStatuses"))
    spec = find_trainer((pod.get("spec") or {}).get("containers"))
    texts = (spec.get("image") or "", status.get("imageID") or "", spec.get("imagePullPolicy") or "")
    found = find_digest(*texts) if all(isinstance(text, str) and len(text) <= MAX_IMAGE for text in texts) else None
    return sys.intern(found) if found is not None and len(found) <= MAX_IMAGE else ""


def _scheduler(pod: Document) -> str:
    """Return the scheduler that a pod without a node waits for."""
    spec = pod.get("spec") or {}
    return "" if spec.get("nodeName") else str(spec.get("schedulerName") or "")[:_MAX_NAME]


def _told(status: Document) -> str:
    """Return why kubelet let the whole pod fail."""
    return ": ".join(filter(None, (status.get("reason"), status.get("message"))))[:_MAX_NOTE]


def _sick_devices(container: Document) -> str:
    """Return the devices of a container that are unhealthy (Kubernetes' ResourceHealthStatus, KEP-4680)."""
    found = [
        f"{status.get('name')} {device.get('resourceID')} is unhealthy"
        + (f" ({device['message']})" if device.get("message") else "")
        for status in container.get("allocatedResourcesStatus") or ()
        for device in status.get("resources") or ()
        if device.get("health") == "Unhealthy"
    ]
    # Unknown is no verdict: a device plugin that restarts makes all of its devices so.
    return ", ".join(found)[:_MAX_NOTE]


def read_version(body: Document) -> int:
    """Return the resource version as a number.

    Kubernetes declares them comparable from release 1.35 on; before that it is a property of etcd.
    """
    text = body.get("metadata", {}).get("resourceVersion", "")
    return int(text) if text.isdecimal() else 0


def _owner_uid(metadata: Document) -> str:
    """Return the uid of the controlling owner; empty if there is none."""
    return str(_owner(metadata).get("uid", ""))[:_MAX_NAME]


def _owner(metadata: Document) -> Document:
    return next((ref for ref in metadata.get("ownerReferences") or () if ref.get("controller")), {})


def _failed_at(status: Document, kind: str) -> float | None:
    """Return when a Job failed: unlike a completion, that is only in a condition."""
    if kind != "Job":
        return None
    failed = [item for item in status.get("conditions") or () if item.get("type") == "Failed"]
    return time_of(failed[0].get("lastTransitionTime")) if failed else None


def _described_at(metadata: Document) -> float | None:
    """Return when kubelet, or whoever fails pods, wrote the status last: the API server notes that of every writer."""
    entries = (entry for entry in metadata.get("managedFields") or () if entry.get("subresource") == "status")
    return max((at_s for entry in entries if (at_s := time_of(entry.get("time"))) is not None), default=None)


def _unready_since(status: Document, condition: Document, container: Document) -> float | None:
    """Return since when a pod is not ready. container: the trainer's state."""
    changed_at_s = time_of(condition.get("lastTransitionTime"))
    if status.get("phase") != "Running" or condition.get("status") != "False" or changed_at_s is None:
        return None
    # A container of others is not ready, or a gate of theirs is closed. Of a node that is gone another reason is told.
    if container.get("ready") is True and condition.get("reason") in _OF_CONTAINERS:
        return None
    # The condition is False from the pod's creation on, but while the image is pulled the container does not run.
    running = (container.get("state") or {}).get("running") or {}
    return max(changed_at_s, time_of(running.get("startedAt")) or 0.0)


def _disruption(status: Document, condition: Document) -> str:
    if condition.get("status") == "True":
        return sys.intern(condition.get("reason") or "Disrupted")
    # Before kubelets set the condition, in 1.26, the reason was all that told it.
    return sys.intern(reason) if (reason := status.get("reason")) in _DISRUPTIONS else ""
