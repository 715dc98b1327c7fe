"""``list``: jobs as a table, those that wait for a person first."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bert_job.foreign_text import one_line
from bert_operator.errors import InputError
from bert_operator.plugin.job import Job
from bert_operator.plugin.terminal import Cell, Ink, table
from bert_operator.plugin.views.phases import age, percent, phase_cell, text_or_dash

# What needs somebody's hand stands first, what is done last.
_ORDER = (
    *("Invalid", "Stopped", "Stopping", "Failed", "Unseen"),
    *("Queued", "Pending", "Running", "Elsewhere", "Succeeded"),
)
_BLOCKED = "Blocked"
"""Stands in the column of phases where something is in the way."""
_WITH_REASON = ("Invalid", "Failed", "Queued", "Pending", "Stopping")
"""Phases that are not explained by themselves."""


def parse_phases(text: str) -> frozenset[str]:
    """Return the phases of a list with commas, as jobs have them. Raises InputError for a word that is none."""
    allowed = {phase.lower(): phase for phase in (_BLOCKED, *_ORDER)}
    words = [word.strip().lower() for word in text.split(",")]
    if unknown := [word for word in words if word not in allowed]:
        raise InputError(f"--phase: got {one_line(unknown[0]) or 'nothing'}; allowed: {', '.join(allowed)}")
    return frozenset(allowed[word] for word in words)


def is_in_phase(job: Job, phases: Collection[str]) -> bool:
    """Tell whether a job is in one of these phases. A blocked one is in its phase and in ``Blocked``."""
    return job.phase in phases or _BLOCKED in phases and phase_cell(job) == (_BLOCKED, "red")


def show_list(jobs: Sequence[Job], ink: Ink, now_s: float, *, wide: bool, with_namespace: bool) -> list[str]:
    """Return the table of jobs.

    Args:
        jobs: In any order.
        ink: How to write.
        now_s: Seconds since 1970, from which ages count.
        wide: Whether to add image, node figures and the reason.
        with_namespace: Whether to name the namespace of each.
    """
    header = ["NAME", "PHASE", "STAGE", "PROGRESS", "LOSS", "SEQ/S", "LEFT", "ATTEMPT", "AGE"]
    if with_namespace:
        header.insert(0, "NAMESPACE")
    if wide:
        header += ["WORKERS", "CHECKPOINT", "REASON", "IMAGE"]
    elif with_reason := any(_reason(job) for job in jobs):
        header.append("REASON")
    rows = [_row(job, now_s, wide=wide, with_namespace=with_namespace) for job in in_order(jobs)]
    if not wide and with_reason:
        rows = [[*row, one_line(_reason(job))] for row, job in zip(rows, in_order(jobs), strict=True)]
    return table(header, rows, ink)


def in_order(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs: blocked and stopped ones first, then by phase, the youngest first."""

    def place(job: Job) -> tuple[bool, int, float, str]:
        phase = _ORDER.index(job.phase) if job.phase in _ORDER else len(_ORDER)
        return (phase_cell(job) != (_BLOCKED, "red"), phase, -job.created_s, job.name)

    return sorted(jobs, key=place)


def _reason(job: Job) -> str:
    """Return why a job is not going its way; empty where it is."""
    return job.reason if phase_cell(job) == (_BLOCKED, "red") or job.phase in _WITH_REASON else ""


def _row(job: Job, now_s: float, *, wide: bool, with_namespace: bool) -> list[Cell]:
    progress, checkpoint = job.progress, job.status.get("checkpoint")
    row: list[Cell] = [
        job.name,
        phase_cell(job),
        text_or_dash(job.status.get("stage")),
        percent(job),
        text_or_dash(progress.get("loss")),
        text_or_dash(progress.get("sequencesPerSecond")),
        text_or_dash(progress.get("eta") if job.phase == "Running" else None),
        str(job.attempt),
        age(job.created_s, now_s),
    ]
    if with_namespace:
        row.insert(0, job.namespace)
    if wide:
        row += [
            str(job.spec.get("workers", 1)),
            f"{checkpoint['stage']} {checkpoint['step']}" if checkpoint else "-",
            text_or_dash(job.reason),
            text_or_dash(job.spec.get("image") or job.status.get("image")),
        ]
    return row
