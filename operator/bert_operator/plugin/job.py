"""What is read out of a job and its objects, as kubectl prints them: stages, attempts, failures, pods. Pure.

Everything is optional: a job may be older or newer than this program, and a status may be empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bert_job.progress import ProgressRecord, parse_progress_line
from bert_operator.names import PREPARE_RUN, UNSEEN_GENERATION, is_managed_elsewhere
from bert_operator.render.containers import find_foreign_end, find_trainer, find_waiting
from bert_operator.render.names import ATTEMPT_LABEL, LAUNCHER, ROLE_LABEL, SINGLE, WORKER
from bert_operator.timestamps import time_of

Json = Mapping[str, Any]
StageState = Literal["done", "current", "failed", "waiting"]

TERMINAL_PHASES = ("Succeeded", "Failed")
"""Phases that a job never leaves."""
SHOWN_FIRST = ("Blocked", "Straggling", "NodeUnhealthy", "ProgressUnknown", "GraceTooShort")
"""Conditions that somebody has to know of where they are True."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a job."""

    name: str
    """Its name in the spec."""
    kind: str
    """``prepare``, ``pretrain``, ``evaluate``, ``finetune`` or ``export``."""
    state: StageState
    """What has become of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of a job."""

    name: str
    uid: str
    role: str
    """``single``, ``launcher`` or ``worker``."""
    attempt: int
    phase: str
    node: str | None
    has_ended: bool
    """Whether its trainer has, or will never run; containers of others may go on."""
    has_started: bool
    """Whether its trainer has, so that there is a log."""
    trouble: str | None
    """Why a container waits or how it ended badly."""
    created_s: float
    """Seconds since 1970."""
    started_s: float | None = None
    """When its container was started, likewise; None: not yet."""
    ended_s: float | None = None
    """When its container ended, likewise; None: not yet."""

    @property
    def has_log(self) -> bool:
        """Whether the job's records stand in its log: the launcher's, or the only pod's."""
        return self.role in (LAUNCHER, SINGLE)


class Job:
    """A BertPretrainJob as the API server has it."""

    document: Json
    """All of it."""
    metadata: Json
    """Its ``metadata``; empty where it has none."""
    spec: Json
    """What was asked for, as in docs/reference/job.md."""
    status: Json
    """What the operator reports, as in docs/reference/status.md; empty before its first look."""

    def __init__(self, document: Json) -> None:
        """Keep the document."""
        self.document = document
        self.metadata = document.get("metadata") or {}
        self.spec = document.get("spec") or {}
        self.status = document.get("status") or {}

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self.metadata.get("name"))

    @property
    def namespace(self) -> str:
        """Namespace of the job."""
        return str(self.metadata.get("namespace"))

    @property
    def uid(self) -> str:
        """UID of the job."""
        return str(self.metadata.get("uid"))

    @property
    def phase(self) -> str:
        """Phase; ``Unseen``: no operator has handled it yet. ``Elsewhere``: left to the controller of managedBy."""
        if self.status.get("observedGeneration") == UNSEEN_GENERATION or "phase" not in self.status:
            return "Elsewhere" if self.is_managed_elsewhere else "Unseen"
        return str(self.status["phase"])

    @property
    def is_managed_elsewhere(self) -> bool:
        """Whether a controller other than this cluster's operator manages it."""
        return is_managed_elsewhere(self.spec)

    @property
    def why(self) -> str:
        """Reason and message of its phase."""
        if self.reason:
            return f"{self.reason}: {self.message}"
        return "left to spec.managedBy" if self.is_managed_elsewhere else "no operator has looked at it yet"

    @property
    def reason(self) -> str:
        """Reason of its phase."""
        return str(self.status.get("reason") or "")

    @property
    def message(self) -> str:
        """Message of its phase."""
        return str(self.status.get("message") or "")

    @property
    def attempt(self) -> int:
        """Number of the newest attempt; 0: none yet."""
        return int(self.status.get("attempt") or 0)

    @property
    def attempt_text(self) -> str:
        """The newest attempt, with its run if a queue resumed it: ``attempt 1, run 3``."""
        run = int(self.status.get("attemptRun") or 1)
        return f"attempt {self.attempt}" + (f", run {run}" if run > 1 else "")

    @property
    def is_suspended(self) -> bool:
        """Whether the spec suspends it."""
        return bool((self.spec.get("runPolicy") or {}).get("suspend"))

    @property
    def has_ended(self) -> bool:
        """Whether its phase is terminal."""
        return self.phase in TERMINAL_PHASES

    @property
    def is_stale(self) -> bool:
        """Whether the status is older than the current spec."""
        if self.is_managed_elsewhere:
            return False  # it may be that of a copy in another cluster, whose generations are counted there
        observed = self.status.get("observedGeneration")
        return observed not in (None, UNSEEN_GENERATION, self.metadata.get("generation", observed))

    @property
    def progress(self) -> Json:
        """Progress of the newest attempt in its stage."""
        return self.status.get("progress") or {}

    @property
    def failures(self) -> Sequence[Json]:
        """Failed attempts, oldest first."""
        return self.status.get("failures") or ()

    @property
    def created_s(self) -> float:
        """Creation time in seconds since 1970."""
        return time_of(self.metadata.get("creationTimestamp")) or 0.0

    def condition(self, kind: str) -> Json:
        """Return a condition, empty if it is absent."""
        return next((item for item in self.status.get("conditions") or () if item.get("type") == kind), {})

    def figures(self) -> dict[str, str]:
        """Return all figures of the newest report by name."""
        return {str(item.get("name")): str(item.get("value")) for item in self.progress.get("metrics") or ()}

    def findings(self) -> list[Json]:
        """Return the conditions that need attention."""
        found = (self.condition(kind) for kind in SHOWN_FIRST)
        return [item for item in found if item.get("status") == "True"]

    def stages(self) -> list[Stage]:
        """Return the stages in order, with their state."""
        stages = [(str(stage.get("name")), kind_of(stage)) for stage in self.spec.get("stages") or ()]
        states = _states([name for name, _ in stages], [kind for _, kind in stages], self)
        return [Stage(name=name, kind=kind, state=state) for (name, kind), state in zip(stages, states, strict=True)]


def kind_of(stage: Json) -> str:
    """Return the kind of a stage: its only section."""
    return next((key for key in ("prepare", "pretrain", "evaluate", "finetune", "export") if key in stage), "?")


def _states(names: list[str], kinds: list[str], job: Job) -> list[StageState]:
    if job.phase == "Succeeded":
        return ["done"] * len(names)
    stage = job.status.get("stage")
    checkpoint = (job.status.get("checkpoint") or {}).get("stage")
    current = names.index(stage) if stage in names else None
    # Until a new attempt has reported, its checkpoint says how far the ones before it came.
    reached = current if current is not None else names.index(checkpoint) if checkpoint in names else 0
    is_prepared = PREPARE_RUN in (job.status.get("completedRuns") or ())
    # Preparation is a run of its own and comes first, wherever its stage stands.
    if is_prepared and kinds[reached:] and kinds[reached] == "prepare":
        current = None
    states: list[StageState] = []
    for number, kind in enumerate(kinds):
        if number == current:
            states.append("failed" if job.phase == "Failed" else "current")
        elif number < reached and kind != "prepare" or kind == "prepare" and is_prepared:
            states.append("done")
        else:
            states.append("waiting")
    return states


def read_pods(documents: Iterable[Json]) -> list[Pod]:
    """Return the pods among objects: newest attempt last, in it the one with the log first."""
    order = {LAUNCHER: 0, SINGLE: 0, WORKER: 1}
    pods = [_read_pod(document) for document in documents if document.get("kind", "Pod") == "Pod"]
    return sorted(pods, key=lambda pod: (pod.attempt, order.get(pod.role, 2), pod.created_s, pod.name))


def _read_pod(document: Json) -> Pod:
    metadata, status = document.get("metadata") or {}, document.get("status") or {}
    labels = metadata.get("labels") or {}
    attempt = str(labels.get(ATTEMPT_LABEL, "0"))
    phase = str(status.get("phase") or "Pending")
    state: Json = find_trainer(status.get("containerStatuses")).get("state") or {}
    now: Json = state.get("running") or state.get("terminated") or {}
    return Pod(
        name=str(metadata.get("name")),
        uid=str(metadata.get("uid")),
        role=str(labels.get(ROLE_LABEL, "")),
        attempt=int(attempt) if attempt.isdecimal() else 0,
        phase="Leaving" if metadata.get("deletionTimestamp") and phase == "Running" else phase,
        node=(document.get("spec") or {}).get("nodeName"),
        has_ended=phase in ("Succeeded", "Failed") or "terminated" in state,
        has_started="running" in state or "terminated" in state,
        trouble=_trouble(document, state.get("terminated") or {}),
        created_s=time_of(metadata.get("creationTimestamp")) or 0.0,
        started_s=time_of(now.get("startedAt")),
        ended_s=time_of(now.get("finishedAt")),
    )


def _trouble(pod: Json, ended: Json) -> str | None:
    """Return what is wrong with a pod. ended: how its trainer did, empty if it did not."""
    status: Json = pod.get("status") or {}
    if (waiting := find_waiting(pod)) is not None:
        whose = f"container {waiting.container}: " if waiting.container else ""
        return f"{whose}{waiting.reason}: {waiting.message}".rstrip(": ")
    if ended.get("exitCode"):
        return f"{ended.get('reason') or 'Error'} (exit code {ended['exitCode']})"
    if (foreign := find_foreign_end(pod)) is not None:
        kind = "init container" if foreign.is_init else "container"
        return f"{kind} {foreign.container}: {foreign.reason or 'Error'} (exit code {foreign.exit_code})"
    unscheduled: Json = next(
        (item for item in status.get("conditions") or () if item.get("type") == "PodScheduled"), {}
    )
    if unscheduled.get("status") == "False":
        return f"{unscheduled.get('reason', 'Unschedulable')}: {unscheduled.get('message', '')}".rstrip(": ")
    return f"{status['reason']}: {status.get('message', '')}".rstrip(": ") if status.get("reason") else None


def read_records(lines: Iterable[str], job: Job) -> list[ProgressRecord]:
    """Return the records of a job among the lines of its logs; ranks may print those of another one."""
    found = (parse_progress_line(line) for line in lines)
    return [record for record in found if record is not None and record.job == job.uid]


def metric_row(record: ProgressRecord, attempt: int = 0) -> dict[str, str | float] | None:
    """Return a report as a table row; None for any other record. attempt: used if the record names none."""
    if record.event != "progress" or record.stage is None:
        return None
    row: dict[str, str | float] = {"attempt": record.attempt or attempt, "stage": record.stage}
    figures = ((name, record.number(name)) for name in record.fields if name != "stage")
    return row | {name: value for name, value in figures if value is not None}


def read_timed_records(lines: Iterable[str], job: Job) -> list[tuple[float, ProgressRecord]]:
    """Return the records of a job with their times (seconds since 1970), of a log that was read with timestamps."""
    found = []
    for line in lines:
        stamp, _, text = line.partition(" ")
        record = parse_progress_line(text)
        written_s = None if record is None else time_of(stamp)
        if record is not None and written_s is not None and record.job == job.uid:
            found.append((written_s, record))
    return found


def losses(records: Iterable[ProgressRecord], stage: str | None) -> list[tuple[int, float]]:
    """Return step and loss of the progress records of a stage, in the order in which they were reported.

    Where an attempt has gone back to a checkpoint, what follows replaces the steps behind it.
    """
    found: list[tuple[int, float]] = []
    for record in records:
        step, loss = record.count("step"), record.number("loss")
        if record.event == "progress" and record.stage == stage and step is not None and loss is not None:
            while found and found[-1][0] >= step:
                found.pop()
            found.append((step, loss))
    return found


def last_seen_s(event: Json) -> float | None:
    """Return when an Event happened last, in seconds since 1970: old and new API write it into different fields."""
    times = (
        (event.get("series") or {}).get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
        (event.get("metadata") or {}).get("creationTimestamp"),
    )
    return next((found for text in times if (found := time_of(text)) is not None), None)
