"""The operator's own metrics, for Prometheus. The trainer has its own."""

from __future__ import annotations

import builtins
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily

from bert_operator.api.schema.conditions import FailureReason
from bert_operator.cluster.job_series import (
    JobSeries,
    Values,
    choose_jobs,
    list_figures,
    list_report_times,
    list_troubles,
)
from bert_operator.cluster.metric_table import JOB_FIGURES, METRICS, Described
from bert_operator.names import JobRef

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CGROUPS = (Path("/sys/fs/cgroup"),)
_NO_LIMIT = 2**62

OTHER_REASON = "Other"
KNOWN_REASONS = frozenset(
    {reason.value for reason in FailureReason}
    # Reasons in termination records of the trainer's programs, and signals.
    | {"Failed", "InputError", "PeerFailed", "Stopped", "TakenOverError", "TrainerError"}
    | {"WorkerLost", "WorkersUnreachable", "HorovodInternalError", "LostPeer", "OutOfMemoryError"}
    | {known.name for known in signal.Signals}
    | {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)}
)
"""Reasons that are label values. A user's program may write any reason: all others share one label value, so that the
number of time series is bounded."""


class Metrics:
    """All metrics of the operator, in a registry of their own."""

    def __init__(self) -> None:
        """Start all counters at zero."""
        self.registry = CollectorRegistry()
        self._reconciles = self._counter("bert_operator_reconciles_total")
        self._reconcile_seconds = self._histogram("bert_operator_reconcile_seconds")
        self._queue_seconds = self._histogram("bert_operator_queue_wait_seconds")
        self._attempts = self._counter("bert_operator_attempts_total")
        self._failures = self._counter("bert_operator_attempt_failures_total")
        self._dropped = self._counter("bert_operator_events_dropped_total")
        self._refused_records = self._counter("bert_operator_progress_records_refused_total")
        self._watch_events = self._counter("bert_operator_watch_events_total")
        ProcessCollector(namespace="bert_operator", registry=self.registry)
        self.add_view("bert_operator_memory_limit_bytes", read_memory_limit)
        # A counter that appears with its first failure has no rate() before the second.
        self._done, self._failed = (self._reconciles.labels(result) for result in ("done", "failed"))

    def _counter(self, name: str) -> Counter:
        found = METRICS[name]
        return Counter(name.removesuffix("_total"), found.text, found.labels, registry=self.registry)

    def _histogram(self, name: str) -> Histogram:
        found = METRICS[name]
        return Histogram(name, found.text, found.labels, registry=self.registry, buckets=found.buckets)

    def waited(self, seconds: float) -> None:
        """Record how long a job waited in the work queue."""
        self._queue_seconds.observe(seconds)

    def reconciled(self, seconds: float, *, failed: bool) -> None:
        """Record a reconciliation."""
        (self._failed if failed else self._done).inc()
        self._reconcile_seconds.observe(seconds)

    def attempt_started(self, run: str) -> None:
        """Count a created child."""
        self._attempts.labels(run).inc()

    def attempt_failed(self, kind: str, reason: str) -> None:
        """Count a failed attempt."""
        self._failures.labels(kind, reason if reason in KNOWN_REASONS else OTHER_REASON).inc()

    def event_dropped(self) -> None:
        """Count an Event that could not be written."""
        self._dropped.inc()

    def progress_refused(self, lines: int) -> None:
        """Count log lines that start like records but cannot be parsed."""
        self._refused_records.inc(lines)

    def watched(self, kind: str) -> None:
        """Count an object that a watch delivered."""
        self._watch_events.labels(kind).inc()

    def add_view(self, name: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Register a gauge whose values are computed at every scrape.

        Args:
            name: In the table; a gauge with one label or none.
            read: Returns a value by the label's value.
        """
        # Computed at the scrape: lags and waiting times grow without any event that could set a gauge.
        self.registry.register(_View(name, METRICS[name], read))

    def add_job_views(self, read: Callable[[], Iterable[tuple[JobRef, JobSeries]]], clock: Callable[[], float]) -> None:
        """Register the gauges of single jobs. read: returns all jobs; clock: seconds since 1970."""
        self.registry.register(_JobViews(read, clock))

    def render(self) -> bytes:
        """Return the page that Prometheus scrapes."""
        return generate_latest(self.registry)


class _View:
    """A gauge that is computed at every scrape."""

    def __init__(self, name: str, described: Described, read: Callable[[], Mapping[str, float]]) -> None:
        self._name, self._described, self._read = name, described, read

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._described.text, labels=self._described.labels)
        for value, figure in self._read().items():
            family.add_metric([value] if self._described.labels else [], figure)
        yield family


class _JobViews:
    """All gauges of single jobs, computed from one look at them."""

    def __init__(self, read: Callable[[], Iterable[tuple[JobRef, JobSeries]]], clock: Callable[[], float]) -> None:
        self._read, self._clock = read, clock

    def collect(self) -> Iterable[GaugeMetricFamily]:
        now_s = self._clock()
        jobs = choose_jobs(self._read(), now_s)
        yield _family("bert_operator_job_trouble", list_troubles(jobs, now_s))
        yield _family("bert_operator_job_report_timestamp_seconds", list_report_times(jobs))
        for name in JOB_FIGURES:
            yield _family(f"bert_operator_job_{name}", list_figures(jobs, name))


def _family(name: str, values: Values) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, METRICS[name].text, labels=METRICS[name].labels)
    for labels, figure in values.items():
        family.add_metric(labels, figure)
    return family


def read_memory_limit(roots: Iterable[Path] = CGROUPS) -> Mapping[str, float]:
    """Return the memory limit of this container in bytes, under ""; empty if there is none."""
    for root in roots:
        for name in ("memory.max", "memory/memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                limit = int((root / name).read_text())
                # Version 1 writes "no limit" as the largest multiple of a page.
                return {"": float(limit)} if limit < _NO_LIMIT else {}
    return {}
