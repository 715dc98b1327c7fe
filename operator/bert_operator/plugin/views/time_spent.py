"""Where the time of a job went: of its newest attempt by its log, of all attempts by the phases of its status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_job.durations import render_duration
from bert_job.foreign_text import one_line
from bert_job.progress import ProgressRecord
from bert_operator.plugin.job import Job, Pod
from bert_operator.timestamps import time_of

OF_A_STAGE: Mapping[str, str] = {
    "data_wait_s": "waiting for data",
    "evaluation_s": "evaluation",
    "checkpoint_s": "checkpoints",
}
"""Fields of a progress line that say where ``elapsed_s`` went, and their words. The trainer leaves out zeros."""
_MAX_DURATION_S = 1e12
_STEPS, _PLACING, _STARTING, _OTHER = "steps", "waiting for nodes and images", "start", "all else"
_PHASES = {
    "Pending": "waiting to start",
    "Queued": "in the queue",
    "Running": "running",
    "Stopping": "stopping",
    "Stopped": "paused",
    "Invalid": "invalid",
}


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Seconds by activity."""

    of: str
    """What they belong to, for people."""
    seconds: Mapping[str, float]
    """By words for people; what took no time is left out."""

    @property
    def total_s(self) -> float:
        """Sum of all seconds."""
        return sum(self.seconds.values())

    def sentence(self) -> str:
        """Return the shares, largest first, and their total."""
        total_s = max(self.total_s, 1e-9)
        parts = sorted(self.seconds.items(), key=lambda part: -part[1])
        shares = ", ".join(f"{_percent(seconds / total_s)} {name}" for name, seconds in parts)
        return one_line(f"{shares}; of {render_duration(self.total_s)} of {self.of}")

    def document(self) -> dict[str, Any]:
        """Return the times as a JSON document."""
        return {"of": self.of, "seconds": {name: round(seconds, 3) for name, seconds in self.seconds.items()}}


@dataclass(slots=True)
class _Part:
    """What one stage took in one attempt, up to its newest report."""

    stage: str | None
    elapsed_s: float
    waits: dict[str, float]


def time_of_attempt(pod: Pod, timed: Sequence[tuple[float, ProgressRecord]], *, is_whole: bool) -> TimeSpent | None:
    """Return the time of a pod's attempt by activity, up to its end or newest record; None before any report.

    Args:
        pod: The one with the log.
        timed: Records of that log with their times, seconds since 1970.
        is_whole: Whether the log was read from its first line, so that the first stage's beginning is in it.
    """
    parts = _parts(record for _, record in timed)
    began = [time_s for time_s, record in timed if record.event == "stage_started"]
    if not parts or pod.started_s is None:
        return None
    end_s = pod.ended_s if pod.ended_s is not None else timed[-1][0]
    seconds: dict[str, float] = {}
    if not is_whole:
        # What stands before its newest lines is not known, so nothing can be the rest.
        for part in parts:
            _add(seconds, part)
        return TimeSpent(f"attempt {pod.attempt} that the newest lines of its log tell of", _positive(seconds))
    seconds[_PLACING] = pod.started_s - pod.created_s
    if began:
        seconds[_STARTING] = began[0] - pod.started_s
    for part in parts:
        _add(seconds, part)
    seconds[_OTHER] = end_s - pod.created_s - sum(seconds.values())
    return TimeSpent(f"attempt {pod.attempt} up to its {_END[pod.ended_s is None]}", _positive(seconds))


_END = {True: "newest report", False: "end"}


def time_of_stage(job: Job) -> TimeSpent | None:
    """Return the time of the newest attempt's current stage by activity, from the status alone; None: unknown."""
    figures = {name: value for name, text in job.figures().items() if (value := _number(text)) is not None}
    if "data_wait_s" not in figures or "elapsed_s" not in figures:
        return None
    seconds: dict[str, float] = {}
    _add(seconds, _Part(None, figures["elapsed_s"], {name: figures.get(name, 0.0) for name in OF_A_STAGE}))
    return TimeSpent(f"this stage in attempt {job.attempt}", _positive(seconds))


def time_in_phases(job: Job, now_s: float) -> TimeSpent | None:
    """Return the time that a job spent in each phase, over all attempts; None if not recorded."""
    since_s = time_of(job.status.get("phaseSince"))
    if since_s is None:
        return None
    seconds: dict[str, float] = {}
    for item in job.status.get("phaseTimes") or ():
        name = _words(item.get("phase"), item.get("run"))
        seconds[name] = seconds.get(name, 0.0) + (_number(str(item.get("seconds"))) or 0.0)
    if not job.has_ended:
        name = _words(job.phase, job.status.get("run"))
        seconds[name] = seconds.get(name, 0.0) + max(0.0, now_s - since_s)
    return TimeSpent("all attempts", _positive(seconds))


def _words(phase: object, run: object) -> str:
    words = _PHASES.get(str(phase), str(phase))
    return f"preparing ({words})" if run == "prepare" and phase in ("Running", "Stopping") else words


def _parts(records: Iterable[ProgressRecord]) -> list[_Part]:
    parts: list[_Part] = []
    for record in records:
        elapsed_s = _seconds(record, "elapsed_s")
        if record.event != "progress" or elapsed_s is None:
            continue
        waits = {name: _seconds(record, name) or 0.0 for name in OF_A_STAGE}
        if sum(waits.values()) > elapsed_s:
            continue  # of another program
        if parts and parts[-1].stage == record.stage:
            parts[-1].elapsed_s, parts[-1].waits = elapsed_s, waits
        else:
            parts.append(_Part(record.stage, elapsed_s, waits))
    return parts


def _seconds(record: ProgressRecord, name: str) -> float | None:
    """Return a duration of a record, which any program may have printed; None if it can be none."""
    seconds = record.number(name)
    return seconds if seconds is not None and 0 <= seconds < _MAX_DURATION_S else None


def _add(seconds: dict[str, float], part: _Part) -> None:
    for name, words in OF_A_STAGE.items():
        seconds[words] = seconds.get(words, 0.0) + part.waits[name]
    seconds[_STEPS] = seconds.get(_STEPS, 0.0) + part.elapsed_s - sum(part.waits.values())


def _positive(seconds: Mapping[str, float]) -> dict[str, float]:
    # Clocks of nodes differ, and log lines come late: what is a little below zero is nothing.
    return {name: amount for name, amount in seconds.items() if amount > 0}


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.01 else "<1%"


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < _MAX_DURATION_S else None
