"""docs/reference/metrics.md lists what operator and rank 0 serve: each name, type and label, and nothing else."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from bert_job.progress import parse_progress_line
from bert_operator.cluster.metric_table import JOB_FIGURES
from bert_operator.cluster.service import _Service
from bert_operator.cluster.settings import Settings
from bert_trainer.output.gauges import GAUGES, ON_THE_LINE, ON_THE_LINE_UNLESS_ZERO, RANK_GAUGES, find_line
from bert_trainer.output.metrics import MetricsWriter
from bert_trainer.output.progress import Reporter
from whole_configs import logging_settings

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
ROW = re.compile(r"^\| `(bert_\w+)` \|(.*)\|$", re.MULTILINE)
OPERATORS, TRAINERS = "bert_operator_", "bert_trainer_"


def rows(prefix: str) -> dict[str, list[str]]:
    """Return the cells of every row of the page after the name, by name."""
    found = [(match[1], [cell.strip() for cell in match[2].split("|")]) for match in ROW.finditer(PAGE.read_text())]
    assert len(found) == len(dict(found)), "a name stands there once"
    return {name: cells for name, cells in found if name.startswith(prefix)}


def words(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def families(text: str) -> list[Metric]:
    # Counters come with a second family for the time they began, which nobody asks for.
    return [family for family in text_string_to_metric_families(text) if not family.name.endswith("_created")]


def operator_page() -> str:
    """Return what an operator serves that has seen one of everything."""
    service = _Service(Settings())
    service._queue = SimpleNamespace(depth=0, oldest_s=lambda: 0.0)  # type: ignore[assignment]
    service._resyncs = [SimpleNamespace(lag_s=lambda: 0.0, listed_at_s=0.0)]  # type: ignore[list-item]
    service._reflectors = []
    service._register_gauges()
    told = [{"name": name, "value": "0.5"} for name in JOB_FIGURES]
    progress = {"metrics": told, "lastUpdatedTime": "2026-01-01T12:00:00Z"}
    blocked = [{"type": "Blocked", "status": "True", "reason": "QuotaExceeded"}]
    status = {"phase": "Running", "stage": "phase1", "progress": progress, "conditions": blocked}
    metadata = {"name": "corpus", "namespace": "team", "uid": "uid-1", "resourceVersion": "1"}
    service._index.put_job(
        {"kind": "BertPretrainJob", "metadata": metadata, "spec": {"stages": [{"name": "phase1"}]}, "status": status}
    )
    metrics = service._metrics
    metrics.attempt_started("training")
    metrics.attempt_failed("Application", "Exited")
    metrics.watched("Pod")
    return metrics.render().decode()


def test_the_page_lists_what_the_operator_serves() -> None:
    listed, served = rows(OPERATORS), families(operator_page())
    names = {family.name + "_total" * (family.type == "counter"): family for family in served}
    assert set(listed) == set(names)
    assert {name for name in names if not names[name].samples} <= {"bert_operator_memory_limit_bytes"}
    for name, (kind, labels, *_) in listed.items():
        assert kind == names[name].type
        for sample in names[name].samples:
            assert set(sample.labels) - {"le"} == set(words(labels)), sample


def test_the_page_lists_what_rank_0_serves(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, logging_settings(tensorboard=False, prometheus_port=0), Reporter("uid", 1, None))
    try:
        figures = {name: 1.0 for name in GAUGES if not name.startswith("evaluation_")}
        scores = {f"{name}s": [1.0, 2.0] for name in RANK_GAUGES}
        writer.progress({**figures, "stage": "phase1", "step": 1, "steps": 2}, scores)
        with urllib.request.urlopen(f"http://127.0.0.1:{writer.prometheus_port}/metrics") as answer:
            served = families(answer.read().decode())
    finally:
        writer.close()
    listed = rows(TRAINERS)
    assert set(listed) == {family.name for family in served}
    assert {family.type for family in served} == {"gauge"}, "the page says so"
    for family in served:
        for sample in family.samples:
            assert set(sample.labels) == set(words(listed[family.name][0])), sample


@pytest.mark.parametrize("name", sorted(GAUGES))
def test_a_figure_stands_on_the_line_that_the_page_names(name: str, tmp_path: Path) -> None:
    lines: list[str] = []
    out = SimpleNamespace(write=lines.append, flush=lambda: None)
    writer = MetricsWriter(tmp_path, logging_settings(tensorboard=False), Reporter("uid", 1, out))  # type: ignore[arg-type]
    event, _, key = find_line(name).partition(" ")
    writer.progress({"stage": "phase1", "step": 1, "steps": 2, **({name: 5.0} if event != "evaluated" else {})})
    writer.evaluated(stage="phase1", when="during", **({key: 5.0} if event == "evaluated" else {}))
    writer.close()
    records = [record for line in "".join(lines).splitlines() if (record := parse_progress_line(line))]
    told = [(record.event, field) for record in records for field in record.fields if record.number(field) == 5.0]
    assert told == ([(event, key)] if event else [])


def test_figures_of_jobs_stand_on_the_line_and_are_what_rank_0_serves_too() -> None:
    assert set(JOB_FIGURES) <= {*ON_THE_LINE, *ON_THE_LINE_UNLESS_ZERO}
    assert {name: unit for name, (unit, _) in JOB_FIGURES.items() if name in GAUGES} == {
        name: found.unit for name, found in GAUGES.items() if name in JOB_FIGURES
    }
    assert set(JOB_FIGURES) - set(GAUGES) == {"checkpoint_age_s", "slow_rank_score"}


def test_the_line_has_no_more_numbers_than_a_status_takes() -> None:
    from bert_operator.api.schema.status import Progress

    most = next(item.max_length for item in Progress.model_fields["metrics"].metadata if hasattr(item, "max_length"))
    words = {"stage", "slow_rank_host"}
    assert len({*ON_THE_LINE, *ON_THE_LINE_UNLESS_ZERO} - words) <= most
