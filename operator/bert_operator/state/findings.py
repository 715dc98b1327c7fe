"""What is not as it should be while an attempt runs, by the condition that says so. Pure."""

from __future__ import annotations

from bert_operator.api.schema.conditions import ConditionType, Reason
from bert_operator.api.schema.status import CheckpointStatus
from bert_operator.state.observed import Child, Finding, Observed
from bert_operator.state.stop_grace import describe_short_grace
from bert_operator.state.stragglers import describe_straggler


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
    slow = describe_straggler(observed.progress, newest.attempt, dict(newest.pod_nodes))
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
