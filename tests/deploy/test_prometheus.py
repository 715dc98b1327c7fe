"""A real Prometheus scrapes operator and training run: it takes every query and alert, and has data for them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator

import pytest

from manifests import KUSTOMIZE, parse
from scraped_run import JOB, NAMESPACE, Scraped, scraped_run

MONITORING = KUSTOMIZE / "components/monitoring"
STEPS = 4
WITHOUT_DATA = {
    # Only while something is wrong, or with more than one rank: this run has neither.
    "bert_operator_attempt_failures_total",
    "bert_operator_job_slow_rank_score",
    "bert_operator_job_unhealthy_findings",
    "bert_operator_job_reduction_exposed_s",
    "bert_operator_job_reduction_bytes",
}
# For longer than their "for" says none of it is: before the first scrape, of the jobs beside, at four steps' speed.
MAY_BE_SO = ("BertOperatorAbsent", "BertJobInvalid", "BertJobsWait", "BertTrainingSlow")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="requires prometheus"),
]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    with scraped_run(tmp_path_factory.mktemp("scraped"), steps=STEPS) as found:
        yield found


def metrics_in(query: str) -> set[str]:
    return set(re.findall(r"bert_(?:operator|trainer)_\w+", query))


def queries() -> list[str]:
    documents = [json.loads(file.read_text()) for file in sorted((MONITORING / "dashboards").glob("*.json"))]
    return [target["expr"] for document in documents for panel in document["panels"] for target in panel["targets"]]


def test_every_query_of_the_dashboards_has_data(scraped: Scraped) -> None:
    empty = {query for query in queries() if not scraped.ask(query)}
    # A container's limit is known where there is one.
    optional = WITHOUT_DATA | {"bert_operator_memory_limit_bytes"}
    of_this_job = "bert_operator_job_trouble{"
    assert {query for query in empty if not metrics_in(query) <= optional and of_this_job not in query} == set()
    assert [query for query in empty if of_this_job in query], "it is healthy, unlike the one beside it"
    assert {query for query in queries() if metrics_in(query) <= WITHOUT_DATA} <= empty, "these have data as well"


def test_every_alert_is_taken_has_what_it_asks_for_and_is_quiet(scraped: Scraped) -> None:
    (document,) = parse((MONITORING / "alerts.yaml").read_text())
    for rule in [rule for group in document["spec"]["groups"] for rule in group["rules"]]:
        assert scraped.ask(rule["expr"]) == [] or rule["alert"] in MAY_BE_SO, rule["alert"]
        for name in metrics_in(rule["expr"]) - WITHOUT_DATA - {"bert_operator_memory_limit_bytes"}:
            assert scraped.ask(name), f"{rule['alert']}: {name} has no series"


def test_the_curve_that_the_operator_tells_is_the_runs_own(scraped: Scraped) -> None:
    (told,) = scraped.ask('bert_operator_job_loss{job_namespace="$job_namespace",job_name="$job_name"}')
    assert (told["metric"]["job_namespace"], told["metric"]["job_name"]) == (NAMESPACE, JOB)
    (own,) = scraped.ask("bert_trainer_loss")
    # As many digits as a line has. The trainer's last value may be gone before it is scraped.
    values = [f"{float(value):.5g}" for _, value in told["values"]]
    assert {f"{float(value):.5g}" for _, value in own["values"]} <= set(values)
    assert len(set(values)) == STEPS
