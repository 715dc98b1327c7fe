"""Axes of round numbers, points that are thinned out, and pictures that hold every curve."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bert_trainer.output.charts import Series, fit_axis, plan_chart, sparkline, thin
from bert_trainer.output.pages import templates


@pytest.mark.parametrize(
    ("lowest", "highest", "ticks"),
    [
        (0.0, 600.0, [0.0, 200.0, 400.0, 600.0]),
        (6.2, 8.9, [6.0, 7.0, 8.0, 9.0]),
        (-0.3, 0.2, [-0.3, -0.2, -0.1, 0.0, 0.1, 0.2]),
        (0.0, 3e-3, [0.0, 0.001, 0.002, 0.003]),
        (5.0, 5.0, [4.4, 4.6, 4.8, 5.0, 5.2, 5.4, 5.6]),
        (0.0, 0.0, [-1.0, -0.5, 0.0, 0.5, 1.0]),
    ],
)
def test_an_axis_has_round_numbers_and_holds_all_values(lowest: float, highest: float, ticks: list[float]) -> None:
    axis = fit_axis(lowest, highest)
    assert axis.ticks == pytest.approx(ticks)
    assert axis.lowest <= lowest <= highest <= axis.highest


def test_a_spike_survives_where_points_are_left_out() -> None:
    points = [(float(step), 1.0 + step % 7 / 10) for step in range(10_000)]
    points[4321] = (4321.0, 99.0)
    points[777] = (777.0, math.nan)
    kept = thin(points)
    assert len(kept) <= 600
    assert (4321.0, 99.0) in kept
    assert kept == sorted(kept)
    assert thin(points[:600]) == points[:600]


def draw(*series: Series, **options: Any) -> str:
    """Return the figure that a report shows."""
    template = templates().from_string('{% from "parts.html" import figure %}{{ figure(chart) }}')
    return template.render(chart=plan_chart("Loss", series, **options))


def test_a_curve_without_values_has_no_picture() -> None:
    assert plan_chart("Loss", [Series("a", []), Series("b", [(1.0, math.nan)])], unit="") is None
    assert sparkline([(1.0, 2.0)]) == ""


def test_one_point_is_a_dot_and_names_are_text() -> None:
    picture = draw(Series("<b>", [(5.0, 2.5)]), unit="nats", stages=[("<i>", 0), ("two", 5)])
    assert picture.count("<circle") == 1
    assert "&lt;b&gt;: 2.5 at step 5" in picture
    assert "&lt;i&gt;" in picture
    assert "<polyline" not in picture


def test_the_picture_ends_where_training_did() -> None:
    picture = draw(Series("a", [(0.0, 1.0), (650.0, 2.0)]), unit="")
    (line,) = [part for part in picture.split("<") if part.startswith("polyline")]
    assert 'points="58,216 748,22"' in line
    assert ">600</text>" in picture
    assert ">700</text>" not in picture
