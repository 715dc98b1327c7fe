"""Which failed attempts have pods that need no time to leave: a stopped process takes no SIGTERM. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from bert_operator.api.schema.conditions import FailureReason
from bert_operator.api.schema.status import TERMINAL_PHASES, Failure, JobStatus
from bert_operator.state.observed import Child

# Of these no end of the program was seen, and none is to be waited for: its ranks wait for one that does not answer.
_HOPELESS = frozenset({FailureReason.HUNG.value, FailureReason.DEVICE_UNHEALTHY.value, "WorkerLost"})


def find_left_behind(status: JobStatus, children: Iterable[Child], *, stop_requested: bool) -> tuple[Child, ...]:
    """Return the failed children whose pods have nothing to save.

    Not those of a job that is stopped: ranks write a checkpoint then. Nor those that failed because a pod was evicted,
    drained or deleted: the others may still be saving what the notice left them time for.

    Args:
        status: As it is about to be written.
        children: That were seen.
        stop_requested: The user wants the job to pause.
    """
    if stop_requested or status.phase in (*TERMINAL_PHASES, "Stopping", "Stopped"):
        return ()
    over = {failure.attempt for failure in status.failures if _is_over(failure)}
    return tuple(child for child in children if child.attempt in over and child.ref is not None)


def _is_over(failure: Failure) -> bool:
    if failure.reason == FailureReason.STOPPED_UNASKED:
        return False
    return failure.reason in _HOPELESS or failure.exit_code is not None or failure.signal is not None
