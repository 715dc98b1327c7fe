"""Waits for what becomes of a job, by kubectl's watch."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bert_job.foreign_text import one_line
from bert_operator.errors import InputError
from bert_operator.plugin.errors import ApiRefused, NoSuchObject, Unreachable, WaitTimeout
from bert_operator.plugin.job import TERMINAL_PHASES, Job
from bert_operator.plugin.kubectl import JOBS, Kubectl
from bert_operator.plugin.reading import check_name

PAUSE_S = 2.0
"""Before a watch that was refused is begun again."""

_PHASES = ("Invalid", "Pending", "Queued", "Running", "Stopping", "Stopped", "Succeeded", "Failed")
AWAITED_FORMS = (
    *(phase.lower() for phase in _PHASES),
    "ended",
    "deleted",
    "checkpoint",
    "attempt=N",
    "stage=NAME",
    "step=N",
    "condition=TYPE",
)
"""What can be waited for, as ``--for`` takes it."""
_DURATION = re.compile(r"([0-9]{1,9})(s|m|h|d)?")
_MAX_DURATION_S = 366 * 86400
_UNITS_S = {None: 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Awaited:
    """A state to wait for."""

    text: str
    """As it was asked for."""
    holds: Callable[[Job], bool]
    is_deletion: bool = False


def parse_awaited(text: str) -> Awaited:
    """Return the state that a word names. Raises InputError."""
    form, sign, value = text.partition("=")
    by_name = {phase.lower(): phase for phase in _PHASES}
    if not sign and form.lower() in by_name:
        phase = by_name[form.lower()]
        return Awaited(text, lambda job: job.phase == phase)
    if text == "ended":
        return Awaited(text, lambda job: job.has_ended)
    if text == "deleted":
        return Awaited(text, lambda job: False, is_deletion=True)
    if text == "checkpoint":
        return Awaited(text, lambda job: bool(job.status.get("checkpoint")))
    if form == "condition" and value:
        return Awaited(text, lambda job: job.condition(value).get("status") == "True")
    if form == "stage" and value:
        return Awaited(text, lambda job: _has_come_to(job, value))
    if form in ("attempt", "step") and value.isdecimal():
        number = int(value)
        if form == "attempt":
            return Awaited(text, lambda job: job.attempt >= number)
        return Awaited(text, lambda job: (job.progress.get("step") or 0) >= number)
    raise InputError(f"--for: got {text}; allowed: {', '.join(AWAITED_FORMS)}")


def _has_come_to(job: Job, name: str) -> bool:
    stage = next((stage for stage in job.stages() if stage.name == name), None)
    if stage is None:
        names = ", ".join(stage.name for stage in job.stages())
        raise InputError(f"--for: got stage={name}, which {job.name} has not; allowed: {names}")
    return stage.state != "waiting"


def parse_duration(text: str) -> float:
    """Return the seconds of ``90``, ``90s``, ``15m``, ``2h`` or ``3d``. Raises InputError."""
    found = _DURATION.fullmatch(text)
    seconds = int(found[1]) * _UNITS_S[found[2]] if found is not None else 0
    if found is None or not 0 < seconds <= _MAX_DURATION_S:
        raise InputError(
            f"--timeout: got {text}; allowed: a whole number of seconds, or one with s, m, h or d as 15m, up to a year"
        )
    return float(seconds)


def watch_job(
    kubectl: Kubectl, name: str, *, until_s: float | None = None, pause: Callable[[float], None] = time.sleep
) -> Iterator[Job | None]:
    """Yield a job now and after each change, and None once deleted; the watch is restarted if it ends.

    Args:
        kubectl: The way to the cluster.
        name: Of the job.
        until_s: Of time.monotonic(), when to give up; None: never.
        pause: Waits for so many seconds.

    Raises:
        NoSuchObject: There is none from the beginning.
        WaitTimeout: The time has come.
        ApiRefused: It may not be read, or the API server has not answered 30 times in a row.
    """
    check_name(name)
    uid: str | None = None
    num_refused = 0
    while True:
        try:
            for kind, document in kubectl.watch(JOBS, name, until_s):
                num_refused = 0
                job = Job(document)
                if kind == "DELETED" or uid not in (None, job.uid):
                    yield None
                    return
                uid = job.uid
                yield job
        except NoSuchObject:
            if uid is None:
                raise
            yield None
            return
        except ApiRefused as error:
            num_refused += 1
            if uid is None or error.status in (401, 403) or num_refused == 30:
                raise
            if until_s is not None and time.monotonic() >= until_s:
                raise WaitTimeout(f"{name}: time is up") from error
        # The server ends watches after some minutes; one that it ends at once must not keep a core busy.
        pause(PAUSE_S)


def wait_for(
    kubectl: Kubectl,
    name: str,
    awaited: Awaited,
    *,
    timeout_s: float | None = None,
    tell: Callable[[Job], None] = lambda job: None,
    pause: Callable[[float], None] = time.sleep,
) -> Job | None:
    """Return the job once the awaited state is reached; None if that is its deletion.

    A status that is about an older spec counts for nothing: right after ``suspend`` a job is still Running.

    Args:
        kubectl: The way to the cluster.
        name: Of the job.
        awaited: What to wait for.
        timeout_s: How long; None: for ever.
        tell: Given the job after each change.
        pause: Waits for so many seconds.

    Raises:
        Unreachable: The job has ended otherwise, or was deleted.
        WaitTimeout: It took too long.
        NoSuchObject: There is no such job.
        ApiRefused: It cannot be read.
    """
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    last: Job | None = None
    try:
        for job in watch_job(kubectl, name, until_s=until_s, pause=pause):
            if job is None:
                if awaited.is_deletion:
                    return None
                raise Unreachable(f"{name} was deleted, and {awaited.text} was waited for")
            last = job
            tell(job)
            if not awaited.is_deletion and awaited.holds(job) and not (job.is_stale and not job.has_ended):
                return job
            if job.phase in TERMINAL_PHASES and not awaited.is_deletion:
                raise Unreachable(
                    f"{name} has ended as {job.phase} ({job.reason}: {one_line(job.message)}); {awaited.text} was "
                    "waited for"
                )
    except NoSuchObject:
        if awaited.is_deletion:
            return None
        raise
    except WaitTimeout:
        now = f"it is {last.phase} ({last.reason})" if last is not None else "it was not seen"
        raise WaitTimeout(
            f"{name}: not {awaited.text} after {timeout_s:g} s; {now}",
            hint=f"kubectl bert status {name}{kubectl.where}",
        ) from None
    raise AssertionError("a watch goes on for ever")
