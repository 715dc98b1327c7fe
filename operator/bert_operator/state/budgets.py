"""Which failures count against a retry budget, and how long the next attempt waits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bert_operator.api.schema.conditions import FailureReason
from bert_operator.api.schema.status import CheckpointStatus, Failure
from bert_operator.timestamps import parse_time

# As Kubernetes' own Job controller: 10 s, doubled with every failure, up to 6 minutes.
FIRST_BACK_OFF_S = 10.0
MAX_BACK_OFF_S = 360.0
SETTLED_S = 600
"""An attempt that ran for so long begins the back-off again, as a container does for kubelet."""
STORAGE_PATIENCE_S = 86_400.0
"""A volume that fills up in the evening has somebody to look at it by the next one."""


def since_checkpoint(failures: list[Failure]) -> list[Failure]:
    """Return the failures since the furthest reported checkpoint, after which the count starts again.

    Further, not other: an attempt that begins anew, or from an older checkpoint, saves steps that were saved before.
    A data build saves its finished parts. Whether a reported checkpoint exists: ``since_confirmed_progress``.
    """
    return failures[_last_advance(failures, lambda failure: failure.checkpoint) :]


def since_confirmed_progress(failures: list[Failure]) -> list[Failure]:
    """Return the failures since an attempt resumed further than all before: earlier progress was really saved.

    Failures without that figure say nothing of where attempts began: their checkpoints are believed.
    """
    first = _last_advance(
        failures, lambda failure: failure.checkpoint if failure.ran_seconds is None else failure.resumed
    )
    was_saved_before = first > 0 and failures[first].ran_seconds is not None
    return failures[first - 1 if was_saved_before else first :]


def max_unconfirmed(retries: int) -> int:
    """Return how many failures may rely on reported checkpoints before an attempt must have resumed from one.

    Twice as many as without any progress: an attempt may die before it tells where it has begun.
    """
    return 2 * retries + 1


def since_long_run(failures: list[Failure]) -> list[Failure]:
    """Return the failures since an attempt that ran for long; they determine the back-off.

    Whatever they have reported: what a program prints costs it nothing, and each attempt costs the cluster a set of
    pods.
    """
    settled = [number for number, failure in enumerate(failures) if (failure.ran_seconds or 0) >= SETTLED_S]
    return failures[settled[-1] if settled else 0 :]


def _last_advance(failures: Sequence[Failure], place: Callable[[Failure], CheckpointStatus | None]) -> int:
    """Return the number of the last failure whose place is beyond all before; 0 if there is none."""
    furthest: dict[str, int] = {}
    last = 0
    for number, failure in enumerate(failures):
        at = place(failure)
        if at is not None and at.step > furthest.get(at.stage, -1):
            furthest[at.stage], last = at.step, number
    return last


def back_off_s(failures: list[Failure]) -> float:
    """Return the seconds from the last failure to the next attempt: 0, 10, 20, 40 ... 360.

    After a storage failure they start at 10: storage does not recover at once.
    """
    waits = len(failures) if failures and is_storage(failures[-1]) else len(failures) - 1
    if waits < 1:
        return 0.0
    doublings = min(waits - 1, 16)  # 2.0 ** 1024 overflows
    return min(FIRST_BACK_OFF_S * 2.0**doublings, MAX_BACK_OFF_S)


def num_counted(failures: list[Failure]) -> int:
    """Return how many failures count against ``infrastructureRetries``.

    Those of storage, one after another, count once for as long as people may need to free space or fix a volume:
    each attempt ends at once or at its first checkpoint, and the status says all the while what to do.

    Args:
        failures: Of those since progress, oldest first.
    """
    counted, began_at_s = 0, 0.0
    previous: Failure | None = None
    for failure in failures:
        if failure.kind != "Infrastructure":
            continue
        at_s = parse_time(failure.finished_at)
        goes_on = previous is not None and is_storage(failure) and is_storage(previous)
        if not goes_on:
            began_at_s = at_s
        if not goes_on or at_s - began_at_s > STORAGE_PATIENCE_S:
            counted += 1
        previous = failure
    return counted


def is_storage(failure: Failure) -> bool:
    """Return whether a storage error that is not the user's mistake ended the attempt."""
    return failure.reason == FailureReason.STORAGE_FAILED and failure.kind == "Infrastructure"
