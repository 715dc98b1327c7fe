"""The observed state of a job: its children, how they ended, and the last status. Values; no I/O.

An ``Observed`` must not be older than the executor's last write. A child that was just created and is missing from a
stale cache would count as lost, and a second one would be created beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bert_job.progress import ProgressRecord
from bert_operator.api.schema.conditions import BlockerReason, Reason
from bert_operator.api.schema.status import MAX_MESSAGE, ChildRef, JobStatus, QueueStatus, StageResult

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 3
EXIT_INFRASTRUCTURE = 4
"""Something around the program failed: workers that did not answer, or storage."""

ChildState = Literal["Pending", "Queued", "Running", "Succeeded", "Failed", "Stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Reason why a child cannot be created or run."""

    reason: BlockerReason
    message: str
    """Cause and next step, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem of a running child that does not end it."""

    reason: Reason
    message: str
    """For people."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A launcher that has stopped writing keepalive records."""

    attempt: int
    seconds: int
    """Without a line, when that was found to be too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """The child of one attempt: a process group here, a Job or MPIJob in a cluster."""

    run: str
    attempt: int
    state: ChildState
    stopping: bool = False
    """A stop was requested, or it is being deleted; another request is not needed."""
    held_by: tuple[str, ...] = ()
    """Finalizers of others, which keep it although it is being deleted."""
    exit_code: int | None = None
    signal: int | None = None
    """Number of the signal that ended it."""
    reason: str | None = None
    """The reason in its termination record."""
    message: str = ""
    finished_at_s: float | None = None
    """Seconds since 1970."""
    waiting_since_s: float | None = None
    """When it was created or last resumed by a queue, in seconds since 1970; None while a queue holds it back."""
    running_since_s: float | None = None
    """Since when all pods of several have run, in seconds since 1970; None while one of them does not."""
    ref: ChildRef | None = None
    """Its object in the cluster."""
    pod: str | None = None
    """The pod that failed first."""
    node: str | None = None
    """Node of that pod."""
    blocker: Blocker | None = None
    """Why it does not run although it should."""
    finding: Finding | None = None
    """What is wrong with the nodes or devices under it."""
    queue: QueueStatus | None = None
    """Its place in a queue; None where it has none, or where nothing is known of it."""
    wait: Finding | None = None
    """Why a queue holds it back, in the queue's own words; None if those are not known."""
    grace_s: int | None = None
    """Seconds that its pods have from SIGTERM until they are killed."""
    image: str | None = None
    """By digest, what its program ran in; None where that is not known."""
    lost: str = ""
    """Why it can only end, though its launcher has not noticed: a worker's pod, which is ``pod``, has failed."""
    is_held: bool = False
    """Whether its program has ended and its pod has not, because of containers of others: it has to be deleted."""
    pod_nodes: tuple[tuple[str, str], ...] = ()
    """While it runs, the names of its pods and of their nodes."""

    @property
    def is_active(self) -> bool:
        """Whether it may still touch the output folder."""
        return self.state in ("Pending", "Queued", "Running")

    def describe_hold(self) -> str:
        """Return why it still exists although it is being deleted, and the next step."""
        what = f"{self.ref.kind} {self.ref.name}" if self.ref is not None else "The child"
        return (
            f"{what} is held by the finalizer {', '.join(self.held_by)}. Next: have whoever set it take it away, or "
            f"remove it by kubectl edit"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """All inputs of a plan except the job and the time."""

    status: JobStatus = JobStatus()
    """As last written; an empty one if it was lost, which is harmless."""
    children: tuple[Child, ...] = ()
    stop_requested: bool = False
    """The user wants the job to pause."""
    progress: ProgressRecord | None = None
    """The newest record of the newest attempt."""
    checkpoint: ProgressRecord | None = None
    """The newest record of a checkpoint, if that is not ``progress``."""
    resumed: ProgressRecord | None = None
    """From where the newest attempt has told that it goes on; None if it has not."""
    results: tuple[StageResult, ...] = ()
    """The evaluations that were read, the newest of each stage."""
    hang: ProgressRecord | None = None
    """That ranks of the newest attempt make no progress; None once one of them does."""
    unreached: ProgressRecord | None = None
    """That the launcher of the newest attempt waits for its workers, and for which; None once it has them."""
    silence: Silence | None = None
    """Of an attempt whose launcher, or single pod, does not keep its promise to write something."""
    unreadable: str | None = None
    """Why the log of the newest attempt cannot be read, and since when; None if it can."""
    cut: str | None = None
    """That its last lines are too long to be read to their end, and since when; None if they are not."""
    blocker: Blocker | None = None
    """Why the child that was planned could not be created."""
    created: ChildRef | None = None
    """The child that this process created last, which the status may not show yet."""
    max_grace_s: int | None = None
    """Longest grace period that an attempt may be given; None: pods' grace periods are in force for none, as outside of
    a cluster."""

    def waits_for_workers(self, child: Child) -> bool:
        """Return whether a child's launcher has told that it waits for workers, and nothing since."""
        return child.state == "Running" and self.unreached is not None and self.unreached.attempt == child.attempt

    def is_over(self, child: Child) -> bool:
        """Return whether the status already has a child's outcome; if it still looks active, the cache is stale."""
        failed = any(failure.attempt == child.attempt for failure in self.status.failures)
        return failed or child.run in self.status.completed_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOutcome:
    """Outcome of a child."""

    state: Literal["Succeeded", "Failed", "Stopped"]
    exit_code: int | None
    signal: int | None
    reason: str | None
    message: str


def read_termination_record(text: str | bytes) -> Mapping[str, Any] | None:
    """Return the termination record in a text, None if it is none. Raises nothing."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_outcome(return_code: int, record: Mapping[str, Any] | None) -> ChildOutcome:
    """Return the outcome of a child from exit code and termination record.

    Args:
        return_code: Of the launcher, as a shell or Python's subprocess has it: 128 + n and -n mean signal n.
        record: The termination record that rank 0 may have written. Its ``exitCode`` overrides a launcher that
            reports every failure as 1, as horovodrun does.
    """
    # Everything in it is untrusted: a user's program may write any file there.
    record = record or {}
    recorded = record.get("exitCode")
    if return_code == EXIT_FAILED and recorded in (EXIT_BAD_INPUT, EXIT_STOPPED, EXIT_INFRASTRUCTURE):
        return_code = recorded
    # 193: 128 + 64, the largest real-time signal of Linux, + 1.
    signal = -return_code if return_code < 0 else return_code - 128 if 128 < return_code < 193 else None
    reason, message = record.get("reason"), record.get("message")
    return ChildOutcome(
        state={EXIT_DONE: "Succeeded", EXIT_STOPPED: "Stopped"}.get(return_code, "Failed"),  # type: ignore[arg-type]
        # -n comes from Python's subprocess and stands for a signal alone; 128 + n of a shell is an exit code as well.
        exit_code=None if return_code < 0 else return_code,
        signal=signal,
        reason=reason[:80] if isinstance(reason, str) and reason else None,
        message=message[:MAX_MESSAGE] if isinstance(message, str) else "",
    )
