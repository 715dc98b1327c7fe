"""What the status says of a child that a queue holds back. Pure."""

from __future__ import annotations

from bert_operator.api.schema.conditions import Reason
from bert_operator.api.schema.status import CheckpointStatus, JobStatus, QueueStatus
from bert_operator.state.observed import Child
from bert_operator.state.status import Verdict


def describe_queued(child: Child, previous: JobStatus) -> Verdict:
    """Return that a child waits, why, and, where it was displaced, what becomes of its training."""
    if child.wait is None:
        return Verdict(phase="Queued", reason=Reason.QUEUED)
    message = child.wait.message
    if child.wait.reason == Reason.PREEMPTED:
        message = f"{message}. {_say_kept(previous.checkpoint)}"
    return Verdict(phase="Queued", reason=child.wait.reason, message=message)


def find_queue(previous: JobStatus, newest: Child | None) -> QueueStatus | None:
    """Return where the newest child waits or was admitted. What is not known at the moment stays as it was told."""
    if newest is None:
        return previous.queue
    told = previous.queue if previous.attempt == newest.attempt else None
    found = newest.queue
    if found is None or (told is not None and found.workload is None and found.name == told.name):
        return told
    return found


def _say_kept(checkpoint: CheckpointStatus | None) -> str:
    if checkpoint is None:
        return "It goes on from its newest checkpoint, if it has written one by then"
    return f"It goes on from its newest checkpoint ({checkpoint.stage}, step {checkpoint.step}, or a later one)"
