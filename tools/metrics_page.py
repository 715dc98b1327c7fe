"""docs/reference/metrics.md from the two tables that the operator and the trainer make their metrics of.

Knows nothing of how a figure is measured. Both tables are also read by the tests of alerts and dashboards.
"""

from __future__ import annotations

from collections.abc import Iterable

from bert_operator.cluster.metric_table import METRICS
from bert_trainer.output.gauges import GAUGES, PREFIX, RANK_GAUGES, RUN_GAUGES, find_line
from markdown_table import render_rows
from model_page import MARK

INTRODUCTION = """
What Prometheus gets from the operator and from rank 0 of a job. Names and labels stay; sentences may get clearer.
[Monitoring](../guides/monitoring.md) says how both are scraped, and which alerts and dashboards there are.
""".strip()

OPERATOR = """
Served at `/metrics` of the operator's port `http`. A counter with labels appears with its first event, but for
`bert_operator_reconciles_total`, which begins at zero. Prometheus' own `pod` and `namespace` labels are those of the
operator's pod. Every histogram also has `_sum` and `_count`.
""".strip()

TRAINER = """
Served by rank 0 at `logging.prometheusPort` of a job that names one; all are gauges, and one without a value yet is
absent. Without a port the same figures arrive by the lines of standard output: the last column names the event and the
field of its line. The operator reads the newest line of a running job and shows every number of a `progress` line in
`status.progress.metrics`, and those of `evaluated` lines in `status.results`. Every record is also a line of
`metrics.jsonl` in the output folder, which has what is marked with a dash as well.
""".strip()


def render_metrics_page() -> str:
    """Every metric with type, labels, unit and meaning."""
    operator = [
        (f"`{name}`", found.kind, _code(found.labels), found.unit, found.text) for name, found in METRICS.items()
    ]
    trainer = [
        (f"`{PREFIX}{name}`", _code(labels), found.unit, found.text, f"`{line}`" if (line := find_line(name)) else "-")
        for table, labels in ((GAUGES, ("stage",)), (RUN_GAUGES, ()), (RANK_GAUGES, ("stage", "rank")))
        for name, found in table.items()
    ]
    parts = [
        "# Metrics",
        MARK,
        INTRODUCTION,
        "## Operator",
        OPERATOR,
        render_rows(("Name", "Type", "Labels", "Unit", "Meaning"), operator),
        "## Trainer",
        TRAINER,
        render_rows(("Name", "Labels", "Unit", "Meaning", "Line"), trainer),
    ]
    return "\n\n".join(parts) + "\n"


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
