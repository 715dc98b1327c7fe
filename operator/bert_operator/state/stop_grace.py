"""Whether a pod that is asked to stop has the time to save, by what checkpoints have taken so far. Pure.

What is measured comes from the trainer, in its records of checkpoints: the longest of the last few writes and a step,
which a stop has to wait for. What is given is ``terminationGracePeriodSeconds``; pods are killed at its end.
"""

from __future__ import annotations

from bert_operator.api.schema.status import CheckpointStatus

MAX_SHARE = 0.8
"""Of the grace period that a stop may need: the rest is for the launcher, the evaluation that a stop may meet, and a
volume that is slower on that day."""
RAISED_TO = 2
"""Times what a stop needs, where the period is raised: so it is not raised again for every checkpoint that takes a
little longer."""
MAX_GRACE_S = 3_600
"""Where the settings have no bound. What a stop needs is told by the job's program, which may tell anything, and drains
wait for it."""


def raise_grace(
    given_s: int, raised_s: int | None, checkpoint: CheckpointStatus | None, max_s: int | None
) -> int | None:
    """Return the minimum grace period in seconds of the next attempt; None: as the job says.

    Args:
        given_s: What the job says.
        raised_s: What an attempt before has got at least. It never shrinks within a job: a volume that was slow once
            may be so again.
        checkpoint: The newest, with what a stop needs.
        max_s: That it may be raised to; None: nobody's grace period is in force.
    """
    present_s = max(given_s, raised_s or 0)
    needed_s = None if checkpoint is None else checkpoint.stop_seconds
    if max_s is None or needed_s is None or is_enough(present_s, needed_s):
        return raised_s
    wanted_s = min(RAISED_TO * needed_s, max_s)
    return wanted_s if wanted_s > present_s else raised_s


def is_enough(grace_s: int, needed_s: int) -> bool:
    """Return whether the grace period is long enough for pods to save."""
    return needed_s <= MAX_SHARE * grace_s


def describe_short_grace(
    grace_s: int | None, checkpoint: CheckpointStatus | None, next_s: int, max_s: int | None
) -> str | None:
    """Return a sentence about pods that may be killed while they save; None where they have the time.

    Args:
        grace_s: Of the pods that run; None: not known.
        checkpoint: The newest.
        next_s: What the next attempt gets.
        max_s: What it may get at most, as in ``raise_grace``.
    """
    needed_s = None if checkpoint is None else checkpoint.stop_seconds
    if grace_s is None or max_s is None or needed_s is None or is_enough(grace_s, needed_s):
        return None
    told = (
        f"A stop needs {needed_s} s (a step, and the longest of the last checkpoints), and the pods of this attempt "
        f"are killed {grace_s} s after they are asked to stop. Where that happens, the steps since the newest "
        "checkpoint are trained again. "
    )
    if is_enough(next_s, needed_s):
        return f"{told}The next attempt gets {next_s} s. Next: for other jobs like it, set runPolicy.stopGraceSeconds"
    return (
        f"{told}The next attempt gets {next_s} s, since {max_s} s are the most. Next: have the settings' "
        "limits.stopGraceSeconds raised, write to a faster volume, or more often (spec.checkpoint)"
    )
