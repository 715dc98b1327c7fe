"""Alerts, PodMonitors and NetworkPolicies speak of metrics and labels that exist."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bert_operator.api.schema.status import Phase
from bert_operator.cluster.metric_table import METRICS
from bert_operator.render import names
from bert_trainer.output.gauges import GAUGES, PREFIX, RANK_GAUGES, RUN_GAUGES
from manifests import KUSTOMIZE, Json, parse

MONITORING = KUSTOMIZE / "components/monitoring"
JOB_LABELS = {*names.labels("job", "training", 1), names.ROLE_LABEL, "training.kubeflow.org/replica-index"}
PROMETHEUS_PORT = 9400


def rules() -> list[Json]:
    (document,) = parse((MONITORING / "alerts.yaml").read_text())
    return [rule for group in document["spec"]["groups"] for rule in group["rules"]]


def known_metrics() -> set[str]:
    """Return the names that operator and rank 0 serve, as tests/metrics/test_reference.py makes sure."""
    return {*METRICS, *(PREFIX + name for name in (*GAUGES, *RANK_GAUGES, *RUN_GAUGES))}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_uses_metrics_that_exist_and_says_what_to_do(rule: Json) -> None:
    used = set(re.findall(r"bert_(?:operator|trainer)_\w+", rule["expr"]))
    assert used
    assert used <= known_metrics()
    assert set(rule["annotations"]) == {"summary", "description", "remedy", "runbook_url"}
    assert all(rule["annotations"].values())
    assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_phases_that_alerts_name_exist() -> None:
    named = re.findall(r'phase="(\w+)"', " ".join(rule["expr"] for rule in rules()))
    assert named
    assert set(named) <= set(Phase.__args__)


def selectors(value: Any) -> list[Json]:
    """Return every selector of pods in a document."""
    if isinstance(value, list):
        return [found for item in value for found in selectors(item)]
    if not isinstance(value, dict):
        return []
    own = [item for key, item in value.items() if key in ("podSelector", "selector") and isinstance(item, dict)]
    return own + [found for item in value.values() for found in selectors(item)]


@pytest.mark.parametrize("file", ["monitoring/jobs.yaml"])
def test_pods_of_jobs_are_found_by_labels_that_they_carry(file: str) -> None:
    keys: set[str] = set()
    for document in parse((KUSTOMIZE / "components" / file).read_text()):
        for selector in selectors(document["spec"]):
            keys |= set(selector.get("matchLabels", {}))
            keys |= {expression["key"] for expression in selector.get("matchExpressions", [])}
    assert keys
    assert keys <= JOB_LABELS


def test_prometheus_may_reach_the_port_that_it_is_told() -> None:
    for monitor in parse((MONITORING / "jobs.yaml").read_text()):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        for address, scraped in (("10.0.0.7", "10.0.0.7:9400"), ("fd00::7", "[fd00::7]:9400")):
            made = [
                rule["replacement"].replace("$1", found[1])
                for rule in endpoint["relabelings"]
                if (found := re.fullmatch(rule["regex"], address))
            ]
            assert made == [scraped]
            assert scraped.endswith(f":{PROMETHEUS_PORT}")
