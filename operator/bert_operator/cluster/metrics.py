"""The operator's own metrics, for Prometheus. The trainer has its own."""

from __future__ import annotations

import builtins
import signal
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from bert_operator.api.schema.conditions import FailureReason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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
    """All counters of one operator, in a registry of their own."""

    def __init__(self) -> None:
        """Start all counters at zero."""
        self.registry = CollectorRegistry()
        self._reconciles = Counter("bert_operator_reconciles", "Reconciles.", ["result"], registry=self.registry)
        self._reconcile_seconds = Histogram(
            "bert_operator_reconcile_seconds",
            "Seconds per reconcile.",
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
            registry=self.registry,
        )
        self._queue_seconds = Histogram(
            "bert_operator_queue_wait_seconds",
            "Seconds that a job waits in the queue.",
            buckets=(0.001, 0.01, 0.1, 1, 10, 60, 300),
            registry=self.registry,
        )
        self._attempts = Counter("bert_operator_attempts", "Children created, by run.", ["run"], registry=self.registry)
        self._failures = Counter(
            "bert_operator_attempt_failures", "Failed attempts, by cause.", ["kind", "reason"], registry=self.registry
        )
        self._dropped = Counter(
            "bert_operator_events_dropped", "Kubernetes Events that could not be written.", registry=self.registry
        )
        self._refused_records = Counter(
            "bert_operator_progress_records_refused",
            "Lines of logs that start like progress records and cannot be parsed.",
            registry=self.registry,
        )
        self._watch_events = Counter(
            "bert_operator_watch_events", "Objects that watches delivered.", ["kind"], registry=self.registry
        )
        self._resyncs = Gauge(
            # The name is public, the alerts use it: it stays although a sweep is called a resync now.
            "bert_operator_last_sweep_timestamp_seconds",
            "When the last resync finished: a comparison of known jobs with a fresh list.",
            registry=self.registry,
        )
        # A counter that appears with its first failure has no rate() before the second.
        self._done, self._failed = (self._reconciles.labels(result) for result in ("done", "failed"))

    def waited(self, seconds: float) -> None:
        """A job waited this long until a worker took it."""
        self._queue_seconds.observe(seconds)

    def reconciled(self, seconds: float, *, failed: bool) -> None:
        """A job was reconciled."""
        (self._failed if failed else self._done).inc()
        self._reconcile_seconds.observe(seconds)

    def attempt_started(self, run: str) -> None:
        """A child was created."""
        self._attempts.labels(run).inc()

    def attempt_failed(self, kind: str, reason: str) -> None:
        """A child failed."""
        self._failures.labels(kind, reason if reason in KNOWN_REASONS else OTHER_REASON).inc()

    def event_dropped(self) -> None:
        """An Event could not be written."""
        self._dropped.inc()

    def progress_refused(self, lines: int) -> None:
        """This many lines of a log start like records and cannot be parsed."""
        self._refused_records.inc(lines)

    def watched(self, kind: str) -> None:
        """A watch delivered an object."""
        self._watch_events.labels(kind).inc()

    def resynced(self, now_s: float) -> None:
        """A resync finished."""
        self._resyncs.set(now_s)

    def add_view(self, read: Callable[[], Mapping[str, float]], name: str, text: str, label: str) -> None:
        """Register a gauge whose values are computed at every scrape. read: returns a value by the label's value."""
        # Computed at the scrape: lags and waiting times grow without any event that could set a gauge.
        self.registry.register(_View(read, name, text, label))

    def render(self) -> bytes:
        """Return the page that Prometheus scrapes."""
        return generate_latest(self.registry)


class _View:
    """A gauge that is computed at every scrape."""

    def __init__(self, read: Callable[[], Mapping[str, float]], name: str, text: str, label: str) -> None:
        self._read, self._name, self._text, self._label = read, name, text, label

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._text, labels=[self._label] if self._label else [])
        for value, figure in self._read().items():
            family.add_metric([value] if self._label else [], figure)
        yield family
