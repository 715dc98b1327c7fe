"""What Prometheus gets of single jobs, out of their status: figures of those that run, and what is wrong with any.

So a job needs no port of its own to be drawn or watched. The number of series is bounded by ``MAX_JOBS``, not by
anything that a job's program prints: only figures that are named here are taken, and only while the job runs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bert_operator.api.schema.conditions import FINDINGS, BlockerReason, ConditionType, Reason
from bert_operator.cluster.metric_table import JOB_FIGURES
from bert_operator.cluster.round_robin import RoundRobin
from bert_operator.names import JobRef
from bert_operator.timestamps import time_of

MAX_JOBS = 500
"""Jobs with series of their own; namespaces take turns, so that many jobs of one do not hide those of another."""
FAILED_FOR_S = 86_400.0
"""So long a failed job counts as trouble: failed jobs may stay for ever."""
STALLED, OTHER = "Stalled", "Other"
TROUBLES = ("Invalid", "Failed", "Blocked", STALLED, *(finding.value for finding in FINDINGS))
_REASONS = frozenset(member.value for table in (Reason, BlockerReason) for member in table)
Values = Mapping[tuple[str, ...], float]


class JobSeries(NamedTuple):
    """A job's data for its own metrics."""

    stage: str = ""
    figures: tuple[tuple[str, float], ...] = ()
    """By name, of the newest report of a running job."""
    reported_at_s: float | None = None
    """When that was read; None: it does not run, or has reported nothing."""
    troubles: tuple[tuple[str, str], ...] = ()
    """Name from ``TROUBLES`` and the reason."""
    failed_at_s: float | None = None


NOTHING = JobSeries()


def read_series(status: Mapping[str, Any], stages: Collection[str]) -> JobSeries:
    """Return the data for a job's own metrics from its status. stages: names in its spec; others are ignored."""
    phase, progress = status.get("phase"), status.get("progress") or {}
    troubles = tuple(_troubles(status))
    failed_at_s = time_of(status.get("completionTime")) if phase == "Failed" else None
    if phase not in ("Running", "Stopping") or not progress:
        return JobSeries(troubles=troubles, failed_at_s=failed_at_s) if troubles else NOTHING
    told = {item.get("name"): item.get("value") for item in progress.get("metrics") or ()}
    figures = ((name, value) for name in JOB_FIGURES if (value := _number(told.get(name))) is not None)
    stage = str(status.get("stage") or "")
    # One that the spec does not have is no label: a new name in each report would be a new series each time.
    stage = sys.intern(stage) if stage in stages else ""
    return JobSeries(stage, tuple(figures), time_of(progress.get("lastUpdatedTime")), troubles)


def _troubles(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if (phase := status.get("phase")) in ("Invalid", "Failed"):
        yield phase, _known_reason(status.get("reason"))
    kinds = {ConditionType.BLOCKED.value, *(finding.value for finding in FINDINGS)}
    for condition in status.get("conditions") or ():
        kind, reason = condition.get("type"), condition.get("reason")
        if condition.get("status") != "True":
            continue
        if kind in kinds:
            yield sys.intern(kind), _known_reason(reason)
        elif kind == ConditionType.RUNNING.value and reason == Reason.NO_PROGRESS.value:
            yield STALLED, _known_reason(reason)


def _known_reason(reason: Any) -> str:
    # A status may be written by whoever has the right to; a label value per word of theirs has no bound.
    return sys.intern(reason) if reason in _REASONS else OTHER


def _number(text: Any) -> float | None:
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def choose_jobs(jobs: Iterable[tuple[JobRef, JobSeries]], now_s: float) -> list[tuple[JobRef, JobSeries]]:
    """Return the jobs with anything to export, at most ``MAX_JOBS``, round robin over namespaces."""
    fair: RoundRobin[tuple[JobRef, JobSeries]] = RoundRobin()
    for ref, series in jobs:
        # One that failed long ago would take the place of one that runs.
        is_over = series.failed_at_s is not None and now_s - series.failed_at_s >= FAILED_FOR_S
        if series is not NOTHING and series != NOTHING and not is_over:
            fair.put(ref.namespace, (ref, series))
    return [fair.take() for _ in range(min(MAX_JOBS, len(fair)))]


def list_figures(jobs: Iterable[tuple[JobRef, JobSeries]], name: str) -> Values:
    """Return one figure of all jobs, by namespace, name and stage."""
    found = ((ref, series, value) for ref, series in jobs for key, value in series.figures if key == name)
    return {(ref.namespace, ref.name, series.stage): value for ref, series, value in found}


def list_report_times(jobs: Iterable[tuple[JobRef, JobSeries]]) -> Values:
    """Return the time of each running job's newest report, by namespace, name and stage."""
    found = ((ref, series.stage, series.reported_at_s) for ref, series in jobs)
    return {(ref.namespace, ref.name, stage): at_s for ref, stage, at_s in found if at_s is not None}


def list_troubles(jobs: Iterable[tuple[JobRef, JobSeries]], now_s: float) -> Values:
    """Return 1 for each trouble of each job, by namespace, name, trouble and reason."""
    return {
        (ref.namespace, ref.name, trouble, reason): 1.0
        for ref, series in jobs
        for trouble, reason in series.troubles
        if trouble != "Failed" or series.failed_at_s is None or now_s - series.failed_at_s < FAILED_FOR_S
    }
