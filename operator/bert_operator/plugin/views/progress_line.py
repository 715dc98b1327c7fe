"""One line about a job that somebody waits for."""

from __future__ import annotations

from bert_job.foreign_text import one_line
from bert_operator.plugin.job import Job


def progress_line(job: Job) -> str:
    """Return phase, stage and figures: what changes on a terminal."""
    progress = job.progress
    parts = [state_line(job)]
    if job.phase in ("Running", "Stopping") and progress.get("step") is not None:
        parts.append(f"step {progress['step']} of {progress.get('totalSteps', '?')}")
        if progress.get("loss") is not None:
            parts.append(f"loss {progress['loss']}")
        if progress.get("eta"):
            parts.append(f"{progress['eta']} left")
    return one_line("  ".join(parts))


def state_line(job: Job) -> str:
    """Return phase, attempt, stage and reason: what changes a few times in a job's life."""
    parts = [f"{job.name} {job.phase}"]
    if job.attempt:
        parts.append(job.attempt_text)
    if job.status.get("stage") and not job.has_ended:
        parts.append(str(job.status["stage"]))
    if job.phase not in ("Running", "Succeeded"):
        parts.append(job.why)
    return one_line("  ".join(parts))
