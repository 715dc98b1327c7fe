"""``plot`` and ``top``."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_operator.plugin.terminal import Ink
from bert_operator.plugin.verbs.measuring import points_of
from bert_operator.plugin.views.plot_view import show_plot
from kubectl_stand_in import KubectlStandIn, items, says
from seen_jobs import pod, progress, running

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
