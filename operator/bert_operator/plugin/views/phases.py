"""Words and colours that several views share."""

from __future__ import annotations

from collections.abc import Mapping

from bert_job.durations import render_duration
from bert_job.foreign_text import one_line
from bert_operator.plugin.job import Job
from bert_operator.plugin.terminal import Cell, Colour

PHASE_COLOURS: Mapping[str, Colour] = {
    "Running": "green",
    "Succeeded": "green",
    "Failed": "red",
    "Invalid": "red",
    "Queued": "yellow",
    "Stopping": "yellow",
    "Stopped": "yellow",
}


def phase_cell(job: Job) -> Cell:
    """Return the phase in its colour; what is in the way stands in its place."""
    if any(item.get("type") == "Blocked" for item in job.findings()) and job.phase in ("Pending", "Running"):
        return ("Blocked", "red")
    colour = PHASE_COLOURS.get(job.phase)
    return (job.phase, colour) if colour else job.phase


def age(since_s: float | None, now_s: float) -> str:
    """Return how long ago something was, as ``42 s`` or ``3:07 min``, ``2:05 h`` or ``3 d``."""
    if since_s is None:
        return "-"
    seconds = max(0.0, now_s - since_s)
    return f"{int(seconds // 86400)} d" if seconds >= 2 * 86400 else render_duration(seconds)


def percent(job: Job) -> str:
    """Return the progress of the stage in percent."""
    share = job.progress.get("progressPercentage")
    return f"{share}%" if share is not None else "-"


def text_or_dash(value: object) -> str:
    """Return text on one line, or a dash for nothing."""
    return "-" if value in (None, "") else one_line(value)
