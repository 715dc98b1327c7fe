"""Which failures count against a retry budget, and how long the next attempt waits. Pure."""

from __future__ import annotations

from bert_operator.api.schema.conditions import FailureReason
from bert_operator.api.schema.status import Failure
from bert_operator.timestamps import parse_time

# As Kubernetes' own Job controller: 10 s, doubled with every failure, up to 6 minutes.
FIRST_BACK_OFF_S = 10.0
MAX_BACK_OFF_S = 360.0
STORAGE_PATIENCE_S = 86_400.0
"""A volume that fills up in the evening has somebody to look at it by the next one."""


def since_checkpoint(failures: list[Failure]) -> list[Failure]:
    """Return the failures since a checkpoint that went further than all before: what dies behind it made progress.

    Further, not other: an attempt that begins anew, or from an older checkpoint, saves steps that were saved before.
    """
    furthest: dict[str, int] = {}
    first = 0
    for number, failure in enumerate(failures):
        at = failure.checkpoint
        if at is not None and at.step > furthest.get(at.stage, -1):
            furthest[at.stage], first = at.step, number
    return failures[first:]


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

    Those of storage, one after another, count once for as long as people may need to free space or mend a volume:
    each attempt ends at once or at its first checkpoint, and the status says all the while what to do.

    Args:
        failures: Since the newest checkpoint, oldest first.
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
    """Return whether storage ended an attempt, and not by a mistake in the job."""
    return failure.reason == FailureReason.STORAGE_FAILED and failure.kind == "Infrastructure"
