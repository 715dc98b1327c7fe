"""``kubectl bert cost``: hours and prices over all attempts, and what they leave out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_operator.client import Client
from bert_operator.errors import InputError
from bert_operator.plugin.job import Job
from bert_operator.plugin.prices import Prices, parse_prices
from bert_operator.plugin.terminal import Ink
from bert_operator.plugin.views.cost_view import Cost, find_cost, not_known, show_cost
from kubectl_stand_in import KubectlStandIn, refuses, says
from seen_jobs import NOON, NOW_S, UID, job, running

Bert = Callable[..., int]
Golden = Callable[[str, str], None]

RESOURCES = {"cpu": 8, "memory": "64Gi", "accelerator": {"perWorker": 4}}
COUNTED = {
    "phaseSince": "2026-01-01T11:00:00Z",
    "phaseTimes": [
        {"phase": "Queued", "seconds": 3000},
        {"phase": "Running", "run": "prepare", "seconds": 1800},
        {"phase": "Running", "run": "training", "seconds": 3600},
        {"phase": "Pending", "run": "training", "seconds": 90},
        {"phase": "Stopping", "run": "training", "seconds": 360},
        {"phase": "Stopped", "run": "training", "seconds": 9000},
    ],
    "startTime": "2026-01-01T06:00:00Z",
}
PRICES = Prices({"cpu": 0.04, "nvidia.com/gpu": 2.5}, "EUR")


def seen(**status: Any) -> Job:
    return Job(running(**{**COUNTED, **status}))


def cost_of(job: Job, *, is_frozen: bool = True, **spec: Any) -> Cost:
    return find_cost(job, {**job.spec, "resources": RESOURCES, **spec}, NOW_S, is_frozen=is_frozen)


def test_hours_are_those_in_which_pods_ran_over_all_attempts() -> None:
    # Training for 1 h, 0.1 h of stopping and the hour since eleven, on two workers with a launcher; preparing for half
    # an hour in one pod, which gets no devices.
    hours = cost_of(seen()).hours
    assert hours == pytest.approx(
        {
            "node": 2.1 * 2 + 0.5,
            "cpu": 2.1 * (2 * 8 + 1) + 0.5 * 8,
            "memory": 2.1 * (2 * 64 + 2) + 0.5 * 64,
            "nvidia.com/gpu": 2.1 * 2 * 4,
        }
    )


def test_what_is_expected_is_the_rest_of_the_stage() -> None:
    cost = cost_of(seen())
    assert cost.expected is not None
    assert cost.expected["nvidia.com/gpu"] - cost.hours["nvidia.com/gpu"] == pytest.approx(8 * 723 / 3600)
    assert "How long the stages after this one will take: evaluate, export." in cost.unknown
    ended = cost_of(seen(phase="Succeeded", phaseSince=NOON))
    assert ended.expected == ended.hours
    silent = cost_of(seen(progress=None))
    assert silent.expected is None
    assert "How long it will still take: it has not reported that yet." in silent.unknown


def test_a_job_of_an_operator_that_does_not_count_costs_no_more_than_all_its_time() -> None:
    cost = cost_of(Job(running()), workers=1)
    assert cost.hours["node"] == pytest.approx(7195 / 3600)
    assert any("does not count" in sentence for sentence in cost.unknown)
    late = cost_of(seen(phaseTimes=[]))
    assert any(sentence.startswith("The first 5:00 h, in which an older operator") for sentence in late.unknown)


def test_a_clock_that_is_behind_costs_nothing() -> None:
    job = Job(running())
    assert find_cost(job, job.spec, NOW_S - 86400, is_frozen=True).hours["node"] == 0


def test_a_job_that_has_not_begun_has_cost_nothing() -> None:
    cost = cost_of(Job(job()))
    assert (dict(cost.hours), cost.expected) == ({}, None)
    assert show_cost(Job(job()), cost, PRICES, Ink(), 100)[2] == "It has not run yet, so it has taken nothing."


def test_what_is_not_counted_by_number_is_named() -> None:
    claimed = {"resources": {"accelerator": {"resourceClaim": "gpus"}, "resourceClaims": [{"name": "gpus"}]}}
    cost = cost_of(seen(), **claimed)
    assert "nvidia.com/gpu" not in cost.hours
    assert any(sentence.startswith("Devices that come by resource claims") for sentence in cost.unknown)
    paused = Job(running(phase="Stopped", phaseSince=NOON))
    assert show_cost(paused, cost_of(paused), PRICES, Ink(), 100)[2] == "None of its time is counted yet."


def test_a_launcher_s_own_resources_count() -> None:
    launcher = {"resources": {"cpu": 3, "memory": "4Gi"}}
    own, usual = cost_of(seen(), launcher=launcher).hours, cost_of(seen()).hours
    assert own["cpu"] - usual["cpu"] == pytest.approx(2.1 * 2)
    assert own["memory"] - usual["memory"] == pytest.approx(2.1 * 2)


def test_the_screen_says_what_is_not_in_it(golden: Golden) -> None:
    job = seen()
    cost = cost_of(job, is_frozen=False)
    text = "\n".join(show_cost(job, cost, Prices({**PRICES.of_an_hour, "tpu\x1b[2J": 1.0}, "EUR"), Ink(), 100)) + "\n"
    golden("plugin/cost.txt", text)


def test_without_prices_there_are_hours_alone(golden: Golden) -> None:
    job = seen()
    golden("plugin/cost-hours.txt", "\n".join(show_cost(job, cost_of(job), Prices({}), Ink(), 100)) + "\n")


def test_the_frozen_configuration_is_what_pods_were_made_of(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "prices.yaml"
    table.write_text("# of our cluster\ncurrency: EUR\nnode: 10  # each\nnvidia.com/gpu: 2.5\n")
    document = running(**COUNTED)
    frozen = {"data": {"spec.json": json.dumps({**document["spec"], "resources": RESOURCES})}}
    owned = {**frozen, "metadata": {"ownerReferences": [{"uid": UID}]}}
    kubectl.answer("get bertpretrainjobs", says(document))
    kubectl.answer("get configmaps corpus-frozen", says(owned), says(frozen), refuses("Forbidden", "no"))
    assert bert("cost", "corpus", "--prices", str(table), "--price", "node=20", "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["hours"] == {"node": 4.7, "cpu": 39.7, "memory": 305.0, "nvidia.com/gpu": 16.8}
    assert (told["cost"], told["currency"]) == (4.7 * 20 + 16.8 * 2.5, "EUR")
    for why in ("a namesake's", "may not be read"):
        assert bert("cost", "corpus", "-o", "json") == 0
        told = json.loads(capsys.readouterr().out)
        assert set(told["hours"]) == {"node"}, why
        assert any("frozen configuration is not there" in sentence for sentence in told["notKnown"]), why


def test_the_same_from_python(kubectl: KubectlStandIn) -> None:
    kubectl.answer("get bertpretrainjobs", says(running(**{**COUNTED, "phase": "Succeeded"})))
    cost = Client("team").cost("corpus")
    assert cost.hours == cost.expected == {"node": pytest.approx(1.1 * 2 + 0.5)}


def test_a_machine_and_what_is_in_it_are_not_paid_twice_unsaid() -> None:
    cost = cost_of(seen())
    both, one = (not_known(cost, Prices(prices)) for prices in ({"node": 1.0, "cpu": 1.0}, {"cpu": 1.0, "memory": 1.0}))
    assert [any("of nodes and of what is in them" in line for line in lines) for lines in (both, one)] == [True, False]


@pytest.mark.parametrize(
    ("words", "table", "path"),
    [
        (["cpu"], None, "--price: got 'cpu'"),
        (["=1"], None, "--price: got '=1'"),
        (["cpu=-1"], None, "--price cpu: got '-1'"),
        (["cpu=nan"], None, "--price cpu: got 'nan'"),
        (["cpu=1,5"], None, "--price cpu: got '1,5'"),
        ([], "cpu 3", "prices: line 1: got 'cpu 3'"),
        ([], "cpu: much", "prices: cpu: got 'much'"),
        ([], '{"cpu": [1]}', "prices: cpu: got [1]"),
        ([], '{"cpu": true}', "prices: cpu: got True"),
        ([], '{"cpu": 1', "prices: is no JSON"),
        ([], f'{{"cpu": {"9" * 400}}}', "prices: cpu: got 9999"),
    ],
)
def test_what_is_no_price_is_named(words: list[str], table: str | None, path: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_prices(words, table, source="prices")
    assert str(caught.value).startswith(path)


NAMES = st.from_regex(r"[a-z][a-z0-9./-]{0,20}", fullmatch=True).filter(lambda name: name != "currency")


@given(st.dictionaries(NAMES, st.floats(0, 1e6), max_size=5))
def test_a_table_means_the_same_in_json_and_in_lines(prices: dict[str, float]) -> None:
    lines = "---\n" + "".join(f'"{name}": {price!r}\n' for name, price in prices.items())
    assert parse_prices([], lines).of_an_hour == prices
    assert parse_prices([], json.dumps(prices)).of_an_hour == prices
    assert parse_prices([f"{name}={price!r}" for name, price in prices.items()]).of_an_hour == prices
