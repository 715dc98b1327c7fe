"""Dashboards ask for metrics and labels that there are, and show each figure of a job."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bert_operator.cluster.metric_table import JOB_FIGURES, METRICS
from manifests import KUSTOMIZE

ROOT = Path(__file__).parents[2]
FILES = sorted((KUSTOMIZE / "components/monitoring/dashboards").glob("*.json"))
SELECTOR = re.compile(r"(bert_\w+)(?:\{([^}]*)\})?")
OF_HISTOGRAM = re.compile(r"_(?:bucket|sum|count)$")


def texts(file: Path) -> list[str]:
    """Return every query of a dashboard, those of its variables included."""
    document = json.loads(file.read_text())
    panels = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    return panels + [item["definition"] for item in document["templating"]["list"] if item["type"] == "query"]


def find_metric(name: str) -> tuple[str, set[str]]:
    base = OF_HISTOGRAM.sub("", name)
    if base in METRICS and METRICS[base].kind == "histogram":
        assert name != base, f"{name}: a histogram has no series of that name"
        return base, {*METRICS[base].labels, "le"}
    assert name in METRICS, f"{name}: docs/reference/metrics.md has no such metric"
    return name, set(METRICS[name].labels)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_query_names_metrics_and_labels_that_exist(file: Path) -> None:
    for text in texts(file):
        named = [(*find_metric(match[1]), match[2] or "") for match in SELECTOR.finditer(text)]
        assert named, text
        labels = set().union(*(found for _, found, _ in named))
        for _, own, selector in named:
            assert set(re.findall(r"(\w+)\s*=~?", selector)) <= own, text
        for clause in re.findall(r"by \(([^)]*)\)", text):
            assert set(re.split(r",\s*", clause)) <= labels, text
        assert set(re.findall(r"\$(\w+)", text)) <= {"__rate_interval", "job_namespace", "job_name"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_curves_are_called_by_labels_that_remain(file: Path) -> None:
    for panel in json.loads(file.read_text())["panels"]:
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            clause = re.search(r"by \(([^)]*)\)", target["expr"])
            (match,) = SELECTOR.finditer(target["expr"])
            kept = set(re.split(r",\s*", clause[1])) if clause else find_metric(match[1])[1]
            assert named <= kept, target


def test_panels_have_places_of_their_own() -> None:
    for file in FILES:
        document = json.loads(file.read_text())
        assert document["uid"] == file.stem
        places = [tuple(panel["gridPos"].values()) for panel in document["panels"]]
        assert len({panel["id"] for panel in document["panels"]}) == len(set(places)) == len(places) >= 12


def test_every_figure_of_a_job_is_drawn_and_every_other_metric_or_said_why_not() -> None:
    drawn = {
        OF_HISTOGRAM.sub("", match[1]) for file in FILES for text in texts(file) for match in SELECTOR.finditer(text)
    }
    assert {f"bert_operator_job_{name}" for name in JOB_FIGURES} <= drawn
    left_out = {
        "bert_operator_queue_wait_seconds",  # the depth and the oldest say it sooner
        "bert_operator_leader",  # who leads is in the Lease, and nobody leads for seconds only
        "bert_operator_process_virtual_memory_bytes",  # says nothing
        "bert_operator_process_start_time_seconds",  # an alert has it
        "bert_operator_process_open_fds",
        "bert_operator_process_max_fds",
    }
    assert set(METRICS) - drawn == left_out
