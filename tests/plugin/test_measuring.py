"""``plot``, ``compare`` and ``top``."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_operator.plugin.terminal import Ink
from bert_operator.plugin.verbs.measuring import points_of
from bert_operator.plugin.views.compare_view import find_differences
from bert_operator.plugin.views.plot_view import show_plot
from bert_operator.plugin.views.top_view import parse_quantity
from kubectl_stand_in import KubectlStandIn, items, refuses, says
from seen_jobs import job, pod, progress, running

GET = "get bertpretrainjobs.bert-operator.dev"
Bert = Callable[..., int]
Json = dict[str, Any]


@pytest.fixture
def logged(kubectl: KubectlStandIn) -> KubectlStandIn:
    kubectl.answer(GET, says(running()))
    kubectl.answer("get pods", items(pod("corpus-a3-launcher-x")))
    lines = [progress(step, 9 - step / 200, learning_rate=step / 1e6) for step in range(10, 701, 10)]
    kubectl.answer("logs", says("\n".join(lines)))
    return kubectl


def test_a_curve_has_axes_that_can_be_read(
    bert: Bert, logged: KubectlStandIn, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    assert bert("plot", "corpus") == 0
    golden("plugin/plot.txt", capsys.readouterr().out)


def test_a_falling_line_is_drawn_from_the_left_at_the_top_to_the_right_at_the_bottom() -> None:
    lines = show_plot([(0.0, 3.0), (10.0, 2.0), (20.0, 1.0)], "t", Ink(unicode=False), width=33, height=3)
    assert lines == [
        "t",
        "         3 |*",
        "           |          *",
        "         1 |                    *",
        "           +---------------------",
        "            0             step 20",
    ]
    assert show_plot([(5.0, 1.0)], "t", Ink(), width=30)[-2:], "one report is a curve as well"


def test_steps_that_were_taken_again_count_once() -> None:
    rows: list[dict[str, str | float]] = [
        {"stage": "a", "step": 1.0, "loss": 3.0},
        {"stage": "a", "step": 2.0, "loss": 2.0},
        {"stage": "a", "step": 1.0, "loss": 2.5},
        {"stage": "b", "step": 1.0, "loss": 9.0},
    ]
    assert points_of(rows, "a", "loss") == [(1.0, 2.5)]


def test_a_figure_that_is_not_there_is_answered_with_those_that_are(
    bert: Bert, logged: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bert("plot", "corpus", "--metric", "losss") == 3
    assert "no report in its logs has losss; they have learning_rate, loss\n" in capsys.readouterr().err


def test_reports_are_rows_for_programs(bert: Bert, logged: KubectlStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert bert("plot", "corpus", "-o", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert (len(rows), rows[0]["step"], rows[0]["loss"]) == (70, 10, 8.95)


def test_a_picture_is_drawn_where_there_is_matplotlib(
    bert: Bert,
    logged: KubectlStandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "loss.png"
    assert bert("plot", "corpus", "--png", str(path)) == 0
    assert path.read_bytes().startswith(b"\x89PNG")

    def hidden(name: str, *rest: Any, whole: Callable[..., Any] = builtins.__import__) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return whole(name, *rest)

    monkeypatch.setattr(builtins, "__import__", hidden)
    assert bert("plot", "corpus", "--png", str(path)) == 2
    assert capsys.readouterr().err == (
        "--png: needs matplotlib, which this Python has not\nhint: pip install matplotlib\n"
    )


def test_two_jobs_stand_side_by_side(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    second = job("second", spec={"workers": 4}, phase="Failed", attempt=1)
    second["spec"]["stages"][1]["pretrain"] = {"sequenceLength": 128, "learningRate": 0.001}
    kubectl.answer(f"{GET} corpus", says(running()))
    kubectl.answer(f"{GET} second", says(second))
    assert bert("compare", "corpus", "second") == 0
    golden("plugin/compare.txt", capsys.readouterr().out)
    assert bert("compare", "corpus", "second", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {"path": "spec.workers", "corpus": 2, "second": 4},
        {"path": "spec.stages[phase1].pretrain.learningRate", "corpus": None, "second": 0.001},
        {"path": "spec.output.path", "corpus": "runs/corpus", "second": "runs/second"},
    ]


@pytest.mark.parametrize(
    ("first", "second", "paths"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": {"b": 1}}, {"a": 2}, ["spec.a"]),
        ({"a": [1, 2]}, {"a": [1, 3]}, ["spec.a"]),
        ([{"name": "x"}, {"name": "y", "v": 1}], [{"name": "y", "v": 2}], ["spec[x]", "spec[y].v"]),
        ({}, {"a": False}, ["spec.a"]),
    ],
)
def test_differences_are_named_by_path(first: Any, second: Any, paths: list[str]) -> None:
    assert [path for path, _, _ in find_differences(first, second)] == paths


def asking(name: str, **limits: str) -> Json:
    document = pod(name)
    document["spec"]["containers"] = [{"name": "trainer", "resources": {"limits": limits}}]
    return document


def test_what_is_used_stands_beside_what_may_be(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(running()))
    limits = {"cpu": "8", "memory": "4Gi", "nvidia.com/gpu": "2"}
    kubectl.answer("get pods", items(asking("corpus-a3-x", **limits), pod("corpus-a2-y", phase="Failed"), pod("other")))
    used = {
        "containers": [
            {"name": "istio-proxy", "usage": {"cpu": "250000000n", "memory": "900Mi"}},
            {"name": "trainer", "usage": {"cpu": "2500m", "memory": "3145728Ki"}},
        ]
    }
    usage = {"items": [{"metadata": {"namespace": "team", "name": "corpus-a3-x"}, **used}]}
    kubectl.answer("get --raw /apis/metrics.k8s.io/v1beta1/namespaces/team/pods", says(usage))
    assert bert("top", "corpus") == 0
    assert capsys.readouterr().out.splitlines() == [
        "JOB      POD           ROLE       NODE     CPU    OF   MEMORY     OF         DEVICES",
        "corpus   corpus-a3-x   launcher   node-1   2.50   8    3.00 GiB   4.00 GiB   2 nvidia.com/gpu",
        "corpus   other         launcher   node-1   -      -    -          -          -",
    ]
    assert kubectl.calls()[-1].endswith("?labelSelector=bert-operator.dev/job%3Dcorpus")


def test_a_cluster_without_metrics_shows_the_pods_and_says_so(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer("get pods", items(asking("corpus-a3-x", cpu="8")), items(asking("x")), items())
    kubectl.answer("get --raw", refuses("NotFound", "no"), refuses("Forbidden", "no"))
    assert bert("top") == 0
    output, remarks = capsys.readouterr()
    assert (len(output.splitlines()), "no metrics-server" in remarks) == (2, True)
    assert bert("top") == 1
    assert bert("top") == 0
    assert capsys.readouterr().err.endswith("No pods of a job are here.\n")


@pytest.mark.parametrize(
    ("text", "amount"),
    [("250m", 0.25), ("2", 2.0), ("1.5Gi", 1.5 * 2**30), ("1e3", None), (None, None), ("1.2.3", None)],
)
def test_amounts_are_read_as_kubernetes_writes_them(text: str | None, amount: float | None) -> None:
    assert parse_quantity(text) == amount
