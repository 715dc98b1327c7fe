"""Every metric of the operator as Prometheus sees it: the one place where names, labels and meanings stand.

``metrics`` makes the collectors of it, tools/generate.py the page docs/reference/metrics.md. Names are public: alerts,
dashboards and queries of users have them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Described(NamedTuple):
    """One metric."""

    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    unit: str
    """As a page shows it; empty for a count."""
    text: str
    """A sentence."""
    buckets: tuple[float, ...] = ()
    """Of a histogram."""


METRICS = {
    "bert_operator_jobs": Described("gauge", ("phase",), "", "Jobs, by phase."),
    "bert_operator_reconciles_total": Described("counter", ("result",), "", "Reconciles; result is done or failed."),
    "bert_operator_reconcile_seconds": Described(
        "histogram", (), "seconds", "Seconds per reconcile.", (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
    ),
    "bert_operator_queue_wait_seconds": Described(
        "histogram", (), "seconds", "Seconds that a job waits in the queue.", (0.001, 0.01, 0.1, 1, 10, 60, 300)
    ),
    "bert_operator_queue_depth": Described("gauge", (), "", "Jobs that wait to be reconciled."),
    "bert_operator_queue_oldest_seconds": Described(
        "gauge", (), "seconds", "Seconds for which the oldest job has waited or is being reconciled."
    ),
    "bert_operator_attempts_total": Described("counter", ("run",), "", "Children created; run is prepare or training."),
    "bert_operator_attempt_failures_total": Described(
        "counter", ("kind", "reason"), "", "Failed attempts, by kind and reason as in status.failures."
    ),
    "bert_operator_events_dropped_total": Described("counter", (), "", "Kubernetes Events that could not be written."),
    "bert_operator_progress_records_refused_total": Described(
        "counter", (), "", "Lines of logs that start like progress records and cannot be parsed."
    ),
    "bert_operator_watch_events_total": Described("counter", ("kind",), "", "Objects that watches delivered."),
    "bert_operator_watch_lag_seconds": Described(
        "gauge", ("kind",), "seconds", "Seconds for which a watch has not delivered a change, or has been silent."
    ),
    # The name is public, the alerts use it: it stays although a sweep is called a resync now.
    "bert_operator_last_sweep_timestamp_seconds": Described(
        "gauge", (), "Unix time", "When the last resync finished: a comparison of known jobs with a fresh list."
    ),
    "bert_operator_known_objects": Described("gauge", ("kind",), "", "Objects in memory."),
}
