"""The two Grafana dashboards as a table of panels, and their JSON; tools/generate.py writes the files.

A panel is a title, a unit and queries, each with what a curve is called. ``$job_namespace`` and ``$job_name`` choose
the job of the second one; the figures of jobs are those that the operator serves, so that no job has to open a port.
Knows nothing of the cluster: how Grafana gets the files is in deploy/kustomize and the chart.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

Json = dict[str, Any]

SCHEMA_VERSION = 39
"""Of Grafana 10 and 11; newer ones migrate it themselves as they load the file."""
COLUMNS, HEIGHT = 24, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_JOB = '{job_namespace="$job_namespace",job_name="$job_name"}'


class Panel(NamedTuple):
    """One chart over time."""

    title: str
    unit: str
    """As Grafana names it."""
    queries: tuple[tuple[str, str], ...]
    """Query, and what its curves are called; ``{{label}}`` is replaced."""
    text: str = ""


class Dashboard(NamedTuple):
    """One page."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[tuple[str, str], ...] = ()
    """Name and query of the values."""


def of_job(title: str, unit: str, *figures: str, text: str = "") -> Panel:
    """Return a panel with figures of the chosen job."""
    legends = ["{{stage}}" if len(figures) == 1 else "{{stage}} " + name for name in figures]
    queries = [(f"bert_operator_job_{name}{_JOB}", legend) for name, legend in zip(figures, legends, strict=True)]
    return Panel(title, unit, tuple(queries), text)


OPERATOR = Dashboard(
    "bert-operator",
    "BERT operator",
    (
        Panel("Jobs by phase", "short", (("sum by (phase) (bert_operator_jobs)", "{{phase}}"),)),
        Panel(
            "Jobs in trouble",
            "short",
            (("sum by (trouble, reason) (bert_operator_job_trouble)", "{{trouble}}: {{reason}}"),),
            "Failed jobs count for a day.",
        ),
        Panel(
            "Attempts started and failed in an hour",
            "short",
            (
                ("sum by (run) (increase(bert_operator_attempts_total[1h]))", "{{run}}"),
                (
                    "sum by (kind, reason) (increase(bert_operator_attempt_failures_total[1h]))",
                    "failed: {{reason}} ({{kind}})",
                ),
            ),
        ),
        Panel(
            "Looks at jobs per second",
            "ops",
            (("sum by (result) (rate(bert_operator_reconciles_total[$__rate_interval]))", "{{result}}"),),
        ),
        Panel(
            "Seconds per look",
            "s",
            tuple(
                (
                    f"histogram_quantile({share}, sum by (le) "
                    "(rate(bert_operator_reconcile_seconds_bucket[$__rate_interval])))",
                    f"{100 * share:g} % are faster",
                )
                for share in (0.5, 0.99)
            ),
        ),
        Panel(
            "Jobs that wait to be looked at",
            "short",
            (("bert_operator_queue_depth", "waiting"), ("bert_operator_queue_oldest_seconds", "oldest (seconds)")),
        ),
        Panel(
            "Watches: seconds behind",
            "s",
            (
                ("max by (kind) (bert_operator_watch_lag_seconds)", "{{kind}}"),
                ("time() - bert_operator_last_sweep_timestamp_seconds", "last resync"),
            ),
        ),
        Panel(
            "Objects that watches bring per second",
            "ops",
            (("sum by (kind) (rate(bert_operator_watch_events_total[$__rate_interval]))", "{{kind}}"),),
        ),
        Panel("Objects in memory", "short", (("sum by (kind) (bert_operator_known_objects)", "{{kind}}"),)),
        Panel(
            "Memory",
            "bytes",
            (
                ("bert_operator_process_resident_memory_bytes", "used"),
                ("bert_operator_memory_limit_bytes", "limit"),
            ),
        ),
        Panel(
            "Processor",
            "short",
            (("rate(bert_operator_process_cpu_seconds_total[$__rate_interval])", "cores used"),),
        ),
        Panel(
            "Lost in an hour",
            "short",
            (
                ("increase(bert_operator_events_dropped_total[1h])", "Events"),
                ("increase(bert_operator_progress_records_refused_total[1h])", "unreadable progress lines"),
            ),
        ),
    ),
)

JOB = Dashboard(
    "bert-job",
    "BERT job",
    (
        of_job("Loss", "short", "loss"),
        of_job("Masked-LM accuracy", "percentunit", "mlm_accuracy"),
        of_job("Optimizer step", "short", "step"),
        of_job("Time left in the stage", "s", "remaining_s"),
        of_job("Tokens per second", "short", "real_tokens_per_s", text="Real ones, over all ranks."),
        of_job("Sequences per second", "short", "sequences_per_s"),
        of_job(
            "Model FLOP per second",
            "flops",
            "model_flop_per_s",
            text="Divided by what the hardware can do this is the MFU; a lower bound.",
        ),
        of_job("Seconds per step", "s", "step_s", "reduction_exposed_s", text="And what summing gradients adds."),
        of_job("Share of the time that ranks wait for data", "percentunit", "data_wait_share"),
        of_job("Gradient bytes per step and rank", "bytes", "reduction_bytes"),
        of_job("Learning rate", "sci", "learning_rate"),
        of_job("Gradient norm", "short", "gradient_norm"),
        of_job("Checkpoint", "s", "checkpoint_age_s", "checkpoint_seconds", text="Age, and how long it took to write."),
        of_job("Memory of the largest rank", "bytes", "memory_bytes"),
        of_job("Free part of the volume", "percentunit", "volume_free_share"),
        of_job("Trouble in training", "short", "unhealthy_findings", "slow_rank_score"),
        Panel(
            "Age of the newest report",
            "s",
            ((f"time() - bert_operator_job_report_timestamp_seconds{_JOB}", "{{stage}}"),),
        ),
        Panel("Trouble", "short", ((f"bert_operator_job_trouble{_JOB}", "{{trouble}}: {{reason}}"),)),
    ),
    (
        ("job_namespace", "label_values(bert_operator_job_report_timestamp_seconds, job_namespace)"),
        (
            "job_name",
            'label_values(bert_operator_job_report_timestamp_seconds{job_namespace="$job_namespace"}, job_name)',
        ),
    ),
)
DASHBOARDS = (OPERATOR, JOB)


def render_dashboard(dashboard: Dashboard) -> str:
    """Return the JSON of a dashboard, the same at every call."""
    variables: list[Json] = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}
    ]
    variables += [
        {
            "name": name,
            "type": "query",
            "datasource": SOURCE,
            "definition": query,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "sort": 1,
            "current": {},
        }
        for name, query in dashboard.variables
    ]
    document = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["bert-operator"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "annotations": {"list": []},
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }
    return json.dumps(document, indent=1) + "\n"


def _panel(number: int, panel: Panel) -> Json:
    width = COLUMNS // 2
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": width, "x": width * (number % 2), "y": HEIGHT * (number // 2)},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": {"showPoints": "auto"}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for at, (query, legend) in enumerate(panel.queries)
        ],
    }
