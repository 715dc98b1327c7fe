"""All metrics of the operator: names, labels, units and help texts.

``metrics`` makes the collectors of it, tools/generate.py the page docs/reference/metrics.md. Names are public: alerts,
dashboards and queries of users have them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Described(NamedTuple):
    """Type, labels, unit and help text of one metric."""

    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    unit: str
    """Unit in the reference; empty for a count."""
    text: str
    """Help text."""
    buckets: tuple[float, ...] = ()
    """Bucket bounds of a histogram."""


# Not "namespace" and "job": Prometheus gives every series of a pod those of the pod and of the scrape.
OF_JOB = ("job_namespace", "job_name")

JOB_FIGURES = {
    "step": ("", "Optimizer steps taken in the current stage."),
    "loss": ("nats", "Training loss over the last logging interval; squared error for regression."),
    "learning_rate": ("", "Learning rate of the last step."),
    "gradient_norm": ("", "Global gradient norm of the last step, before clipping."),
    "mlm_accuracy": ("share", "Masked tokens predicted correctly in the last logging interval."),
    "sequences_per_s": ("1/s", "Sequences trained per second, over all ranks."),
    "real_tokens_per_s": ("1/s", "Tokens without padding trained per second, over all ranks."),
    "remaining_s": ("seconds", "Estimated time until the current stage ends."),
    "step_s": ("seconds", "Time per optimizer step."),
    "model_flop_per_s": ("FLOP/s", "Model FLOP per second over all ranks: the minimum that the steps need."),
    "data_wait_share": ("share", "Share of the time that ranks waited for input batches."),
    "reduction_exposed_s": (
        "seconds",
        "Gradient reduction time per step after the backward pass, not hidden by overlap.",
    ),
    "reduction_bytes": ("bytes", "Gradient bytes that each rank reduced per step."),
    "memory_bytes": ("bytes", "Memory of the largest rank: resident set, or peak tensor memory on a GPU."),
    "checkpoint_seconds": ("seconds", "Time that writing the latest checkpoint took."),
    "checkpoint_age_s": ("seconds", "Age of the latest checkpoint; before the first one, age of the attempt."),
    "volume_free_share": ("share", "Free share of the output folder's file system."),
    "slow_rank_score": ("", "Compute time of the slowest rank relative to the others, while it is slow."),
    "unhealthy_findings": ("", "Training health findings in the current stage, once there is one."),
}
"""The figures of the trainer's progress line that are exported as ``bert_operator_job_NAME``: unit and help text."""

METRICS = {
    "bert_operator_leader": Described(
        "gauge", (), "", "1 if this replica is the leader, 0 if another one is, or none."
    ),
    "bert_operator_jobs": Described(
        "gauge",
        ("phase",),
        "",
        "Number of jobs by phase. Only the leader exports it and the metrics of single jobs.",
    ),
    "bert_operator_reconciles_total": Described(
        "counter", ("result",), "", "Reconciliations, by result: done or failed."
    ),
    "bert_operator_reconcile_seconds": Described(
        "histogram", (), "seconds", "Duration of a reconciliation.", (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
    ),
    "bert_operator_queue_wait_seconds": Described(
        "histogram", (), "seconds", "Time that a job waits in the work queue.", (0.001, 0.01, 0.1, 1, 10, 60, 300)
    ),
    "bert_operator_queue_depth": Described("gauge", (), "", "Jobs in the work queue."),
    "bert_operator_queue_oldest_seconds": Described(
        "gauge", (), "seconds", "Time since the oldest job was queued, or since its reconciliation began."
    ),
    "bert_operator_attempts_total": Described(
        "counter", ("run",), "", "Attempts started (Jobs and MPIJobs created), by run: prepare or training."
    ),
    "bert_operator_attempt_failures_total": Described(
        "counter", ("kind", "reason"), "", "Failed attempts, by kind and reason as in status.failures."
    ),
    "bert_operator_events_dropped_total": Described("counter", (), "", "Kubernetes Events that could not be written."),
    "bert_operator_progress_records_refused_total": Described(
        "counter", (), "", "Log lines that start like progress records but cannot be parsed."
    ),
    "bert_operator_watch_events_total": Described("counter", ("kind",), "", "Objects delivered by watches."),
    "bert_operator_watch_lag_seconds": Described(
        "gauge", ("kind",), "seconds", "Time for which a watch has not delivered a change, or has been silent."
    ),
    # The name is public, the alerts use it: it stays although a sweep is called a resync now.
    "bert_operator_last_sweep_timestamp_seconds": Described(
        "gauge", (), "Unix time", "When the last resync finished, which compares the cache with a fresh list of jobs."
    ),
    "bert_operator_known_objects": Described("gauge", ("kind",), "", "Objects in the operator's cache."),
    "bert_operator_memory_limit_bytes": Described(
        "gauge", (), "bytes", "Memory limit of the operator's container; absent without one."
    ),
    "bert_operator_process_resident_memory_bytes": Described("gauge", (), "bytes", "Resident memory of the operator."),
    "bert_operator_process_virtual_memory_bytes": Described("gauge", (), "bytes", "Virtual memory of the operator."),
    "bert_operator_process_start_time_seconds": Described("gauge", (), "Unix time", "When the operator started."),
    "bert_operator_process_cpu_seconds_total": Described(
        "counter", (), "seconds", "CPU time that the operator has used."
    ),
    "bert_operator_process_open_fds": Described("gauge", (), "", "Open file descriptors of the operator."),
    "bert_operator_process_max_fds": Described("gauge", (), "", "Maximum number of open file descriptors."),
    "bert_operator_job_trouble": Described(
        "gauge",
        (*OF_JOB, "trouble", "reason"),
        "",
        "1 while a job needs attention: Invalid, Failed (for a day), Blocked, Stalled, Straggling, NodeUnhealthy, "
        "ProgressUnknown or GraceTooShort; reason as in its status.",
    ),
    "bert_operator_job_report_timestamp_seconds": Described(
        "gauge", (*OF_JOB, "stage"), "Unix time", "When the newest progress report of a running job was read."
    ),
    **{
        f"bert_operator_job_{name}": Described("gauge", (*OF_JOB, "stage"), unit, text)
        for name, (unit, text) in JOB_FIGURES.items()
    },
}
