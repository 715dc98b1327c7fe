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


# Not "namespace" and "job": Prometheus gives every series of a pod those of the pod and of the scrape.
OF_JOB = ("job_namespace", "job_name")

JOB_FIGURES = {
    "step": ("", "Optimizer steps taken in the current stage."),
    "loss": ("nats", "Training loss over the last logging interval; of a regression squared error."),
    "learning_rate": ("", "Learning rate of the last step."),
    "gradient_norm": ("", "Global gradient norm of the last step, before clipping."),
    "mlm_accuracy": ("share", "Masked tokens predicted correctly in the last logging interval."),
    "sequences_per_s": ("1/s", "Sequences trained per second, over all ranks."),
    "real_tokens_per_s": ("1/s", "Tokens without padding trained per second, over all ranks."),
    "remaining_s": ("seconds", "Expected seconds until the current stage ends."),
    "step_s": ("seconds", "Seconds per step."),
    "model_flop_per_s": ("FLOP/s", "Operations per second that the steps need at least, over all ranks."),
    "data_wait_share": ("share", "Part of the time that ranks waited for their batches."),
    "reduction_exposed_s": ("seconds", "Seconds per step that gradient reduction took after the backward pass."),
    "reduction_bytes": ("bytes", "Gradient bytes that each rank passed to the reduction per step."),
    "memory_bytes": ("bytes", "Memory of the largest rank: resident set, or the most that tensors took on a GPU."),
    "checkpoint_seconds": ("seconds", "Seconds that the latest checkpoint took to reach the disk."),
    "checkpoint_age_s": ("seconds", "Age of the latest checkpoint; before the first one, of the attempt."),
    "volume_free_share": ("share", "Part of the output folder's file system that is free."),
    "slow_rank_score": ("", "How many times as long as the others the slowest rank works, while it is slow."),
    "unhealthy_findings": ("", "Findings of training health in the current stage, once there is one."),
    "rollbacks": ("", "Times that the run has gone back to a checkpoint, once it has."),
}
"""Numbers of the trainer's progress line that become ``bert_operator_job_NAME``: unit and sentence. No other does."""

METRICS = {
    "bert_operator_leader": Described(
        "gauge", (), "", "1 where this replica works, and may write; 0 while another one does, or none."
    ),
    "bert_operator_jobs": Described(
        "gauge",
        ("phase",),
        "",
        "Jobs, by phase; only the replica that works serves it, and the figures of single jobs.",
    ),
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
    "bert_operator_memory_limit_bytes": Described(
        "gauge", (), "bytes", "Memory limit of the operator's container; absent without one."
    ),
    "bert_operator_process_resident_memory_bytes": Described("gauge", (), "bytes", "Memory that the operator holds."),
    "bert_operator_process_virtual_memory_bytes": Described("gauge", (), "bytes", "Its address space."),
    "bert_operator_process_start_time_seconds": Described("gauge", (), "Unix time", "When it started."),
    "bert_operator_process_cpu_seconds_total": Described("counter", (), "seconds", "Processor time that it has used."),
    "bert_operator_process_open_fds": Described("gauge", (), "", "Files and connections that it has open."),
    "bert_operator_process_max_fds": Described("gauge", (), "", "As many may be open."),
    "bert_operator_job_trouble": Described(
        "gauge",
        (*OF_JOB, "trouble", "reason"),
        "",
        "1 while a job is in trouble: Invalid, Failed (for a day), Blocked, Stalled, Straggling, NodeUnhealthy, "
        "ProgressUnknown or GraceTooShort; reason as in its status.",
    ),
    "bert_operator_job_report_timestamp_seconds": Described(
        "gauge", (*OF_JOB, "stage"), "Unix time", "When the newest report of a running job was read."
    ),
    **{
        f"bert_operator_job_{name}": Described("gauge", (*OF_JOB, "stage"), unit, text)
        for name, (unit, text) in JOB_FIGURES.items()
    },
}
