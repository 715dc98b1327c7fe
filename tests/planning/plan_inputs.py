"""What plans are made of, in the fewest words: children, statuses, and two jobs."""

from __future__ import annotations

from typing import Any

from bert_operator.api.schema.status import ChildRef, JobStatus
from bert_operator.state.observed import Child, Observed
from bert_operator.timestamps import render_time
from sample_job import PREPARE, sample_job

NOW_S = 1_700_000_000.0
JOB = sample_job()
TRAINING_ONLY = sample_job(lambda spec: spec.update(dataset={"path": "data"}, stages=spec["stages"][PREPARE + 1 :]))


def child(attempt: int = 1, *, run: str = "training", state: str = "Failed", **rest: Any) -> Child:
    """Return a child, by default one that has just failed."""
    rest.setdefault("finished_at_s", NOW_S if state in ("Failed", "Stopped", "Succeeded") else None)
    return Child(run=run, attempt=attempt, state=state, **rest)  # type: ignore[arg-type]


def observed(*children: Child, stop: bool = False, status: JobStatus | None = None) -> Observed:
    """Return children with a status, by default the one that was written before the newest was created."""
    newest = max((each.attempt for each in children), default=0)
    run = children[-1].run if children else None
    written = JobStatus(attempt=newest, run=run, start_time=render_time(NOW_S) if children else None)
    return Observed(status=status or written, children=children, stop_requested=stop)


def reason_of(status: JobStatus, kind: str) -> str | None:
    """Return the reason of a condition that holds."""
    return next((item.reason for item in status.conditions if item.type == kind and item.status == "True"), None)


def ref(attempt: int = 1) -> ChildRef:
    """Return what a child is called in a cluster."""
    return ChildRef(kind="MPIJob", name=f"demo-a{attempt}", uid="uid", attempt=attempt)
