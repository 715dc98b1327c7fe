"""How much a queue should spare a running job: by the work that it has not saved yet. Pure.

Kueue (0.17.0, feature gate PriorityBoost, alpha) adds an annotation of a Workload to its priority, and preempts those
with the lowest first. A job that has just saved gets 0, and more in few steps the longer it works without a checkpoint.
Never less than 0, and nothing while it waits: who waits cannot be before its equals, so that no two of them preempt
each other by turns. The steps have to stay below the distance of priority classes, which decide first.

Source: KEP-7990 of kubernetes-sigs/kueue; pkg/util/priority and pkg/scheduler/preemption/common/ordering.go of 0.19.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from bert_job.progress import ProgressRecord

BOOST_ANNOTATION = "kueue.x-k8s.io/priority-boost"
"""Of a Workload; a signed integer of 32 bits."""


def find_unsaved_s(progress: ProgressRecord | None, checkpoint: ProgressRecord | None) -> float:
    """Return the seconds of work that a preemption would lose, at most.

    Args:
        progress: The newest record of the running attempt; None before its first step, when nothing can be lost.
        checkpoint: The newest record of a checkpoint that was committed.
    """
    if progress is None:
        return 0.0
    if checkpoint is not None and _is_behind(progress, checkpoint):
        return 0.0
    return max(0.0, progress.number("checkpoint_age_s") or 0.0)


def choose_boost(unsaved_s: float, after_s: Sequence[float]) -> int:
    """Return the priority boost: 1 for each of these ages (ascending) that the unsaved work has reached."""
    return sum(unsaved_s >= bound_s for bound_s in after_s)


def _is_behind(progress: ProgressRecord, checkpoint: ProgressRecord) -> bool:
    """Return whether a checkpoint has all that was reported by then; its record comes before the next of progress."""
    if (progress.stage, progress.attempt) != (checkpoint.stage, checkpoint.attempt):
        return False
    reached, saved = progress.count("step"), checkpoint.count("step")
    return reached is not None and saved is not None and saved >= reached
