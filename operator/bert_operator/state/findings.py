"""What is not as it should be while an attempt runs, by the condition that says so. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from bert_job.progress import ProgressRecord
from bert_operator.api.schema.conditions import ConditionType, Reason
from bert_operator.api.schema.status import CheckpointStatus
from bert_operator.state.observed import Child, Finding, Observed
from bert_operator.state.stop_grace import describe_short_grace

_LASTING_INTERVALS = 3
_LASTING_S = 60.0
"""So long a rank is slow before the status says so: a neighbour on its cores, or a cold cache, is gone by then."""


def find_findings(
    observed: Observed, newest: Child | None, checkpoint: CheckpointStatus | None, next_grace_s: int
) -> dict[ConditionType, Finding]:
    """Return the findings of a running attempt by condition.

    Args:
        observed: What is seen of the job.
        newest: Its newest child.
        checkpoint: Its newest checkpoint.
        next_grace_s: The grace period that its next attempt gets.
    """
    if newest is None or newest.state != "Running":
        return {}
    slow = _describe_straggler(observed.progress, newest.attempt, dict(newest.pod_nodes))
    short = describe_short_grace(newest.grace_s, checkpoint, next_grace_s, observed.max_grace_s)
    found = {
        ConditionType.STRAGGLING: Finding(reason=Reason.SLOW_RANK, message=slow) if slow else None,
        ConditionType.NODE_UNHEALTHY: newest.finding,
        ConditionType.PROGRESS_UNKNOWN: _find_unread(observed),
        ConditionType.GRACE_TOO_SHORT: Finding(reason=Reason.SLOW_CHECKPOINTS, message=short) if short else None,
    }
    return {kind: finding for kind, finding in found.items() if finding is not None}


def _find_unread(observed: Observed) -> Finding | None:
    if observed.unreadable:
        return Finding(reason=Reason.LOG_UNREADABLE, message=observed.unreadable)
    return Finding(reason=Reason.LOG_CUT, message=observed.cut) if observed.cut else None


def _describe_straggler(record: ProgressRecord | None, attempt: int, nodes: Mapping[str, str]) -> str | None:
    """Return a sentence about the slow rank of an attempt; None if there is none, or not for long.

    Args:
        record: The newest about progress.
        attempt: The newest one.
        nodes: Of its pods, by name.
    """
    if record is None or record.attempt != attempt or (rank := record.count("slow_rank")) is None:
        return None
    score, for_s = record.number("slow_rank_score"), record.number("slow_rank_s")
    intervals = record.count("slow_rank_intervals")
    if score is None or for_s is None or intervals is None:
        return None
    if intervals < _LASTING_INTERVALS or for_s < _LASTING_S:
        return None
    # Its pod by its host's name, which a program may print as it likes: only a pod of the attempt has a node.
    host = (record.text("slow_rank_host") or "an unknown host")[:63]
    where = f"pod {host} on node {nodes[host]}" if host in nodes else host
    node = f": kubectl describe node {nodes[host]}" if host in nodes else ""
    return (
        f"Rank {rank} in {where} takes {score:.1f} times as long as the others for its part of a step, and they wait "
        f"for it. Next: look for throttled, faulty or shared processors, devices and disks there{node}"
    )
