"""Curves as inline SVG: no script, no font and no picture from elsewhere. Pure.

Colours are classes (``page_style``), so that a dark page and paper get theirs. Every curve has its label beside the
colour, and styles differ as well: colour never stands alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bert_trainer.output.markup import Markup, tag

Point = tuple[float, float]

_WIDTH, _HEIGHT = 760.0, 250.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 12.0, 22.0, 34.0
_MAX_POINTS = 600
"""Of a curve: more than the picture has places for. Of neighbours the lowest and the highest stay."""
_NUM_COLORS = 6


@dataclass(frozen=True, slots=True)
class Series:
    """One curve."""

    label: str
    points: Sequence[Point]
    """By x, ascending; a y that is not finite leaves a gap."""
    color: int = 0
    style: Literal["line", "dots", "dashed"] = "line"


@dataclass(frozen=True, slots=True)
class Axis:
    """The values of an axis that are written beside it."""

    lowest: float
    highest: float
    step: float

    @property
    def ticks(self) -> list[float]:
        """Values from the lowest to the highest, which is one of them unless the axis was cut."""
        count = math.floor((self.highest - self.lowest) / self.step + 1e-6)
        return [self.lowest + number * self.step for number in range(count + 1)]


def fit_axis(lowest: float, highest: float, most: int = 5) -> Axis:
    """Return an axis of round numbers (1, 2 or 5 times a power of ten) that holds both values."""
    if not highest > lowest:
        pad = abs(lowest) / 10 or 1.0
        lowest, highest = lowest - pad, highest + pad
    step = 10.0 ** math.floor(math.log10((highest - lowest) / most))
    step *= next(factor for factor in (1, 2, 5, 10) if (highest - lowest) / (factor * step) <= most)
    return Axis(math.floor(lowest / step) * step, math.ceil(highest / step) * step, step)


def thin(points: Sequence[Point], most: int = _MAX_POINTS) -> list[Point]:
    """Return at most so many points, of which the extremes of every stretch are kept: a spike stays a spike."""
    if len(points) <= most:
        return list(points)
    kept: list[Point] = []
    size = math.ceil(2 * len(points) / most)
    for at in range(0, len(points), size):
        part = points[at : at + size]
        finite = [point for point in part if math.isfinite(point[1])] or [part[0]]
        ends = {min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


def render_chart(
    title: str,
    series: Sequence[Series],
    *,
    unit: str,
    stages: Sequence[tuple[str, float]] = (),
    from_zero: bool = False,
) -> Markup:
    """Return a figure with its legend; nothing where no curve has a point.

    Args:
        title: What is shown, for people and for screen readers.
        series: The curves.
        unit: Of the y axis: ``%`` or words behind the title.
        stages: Names and first steps of the stages, which thin lines part.
        from_zero: The y axis begins with 0.
    """
    shown = [one for one in series if any(math.isfinite(y) for _, y in one.points)]
    if not shown:
        return Markup()
    values = [y for one in shown for _, y in one.points if math.isfinite(y)]
    last = max(x for one in shown for x, _ in one.points)
    # Cut where training ended.
    x_axis = Axis(0.0, last or 1.0, fit_axis(0.0, last, 8).step)
    y_axis = fit_axis(min([*values, *([0.0] if from_zero else [])]), max(values))
    place = _Place(x_axis, y_axis)
    parts = [*_grid(place, unit), *_stage_lines(place, stages), *(part for one in shown for part in _curve(place, one))]
    picture = tag(
        "svg", tag("title", title), *parts, viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", role="img", aria_label=title
    )
    heading = tag("figcaption", tag("b", title), "" if unit in ("", "%") else f" ({unit})")
    legend = tag("p", *(_key(one) for one in shown), class_="legend")
    return tag("figure", heading, picture, legend)


def render_sparkline(points: Sequence[Point]) -> Markup:
    """Return a curve without axes, for a line of a table; nothing for fewer than two points."""
    finite = [point for point in thin(points, 80) if math.isfinite(point[1])]
    if len(finite) < 2:
        return Markup()
    xs, ys = [x for x, _ in finite], [y for _, y in finite]
    width, height = max(xs) - min(xs) or 1.0, max(ys) - min(ys) or 1.0
    path = " ".join(f"{(x - min(xs)) / width * 96 + 2:.1f},{22 - (y - min(ys)) / height * 20:.1f}" for x, y in finite)
    return tag("svg", tag("polyline", points=path, class_="line c0"), viewBox="0 0 100 24", class_="spark", role="img")


class _Place:
    """Turns values into places of the picture."""

    def __init__(self, x_axis: Axis, y_axis: Axis) -> None:
        self.x_axis, self.y_axis = x_axis, y_axis

    def x(self, value: float) -> float:
        share = (value - self.x_axis.lowest) / (self.x_axis.highest - self.x_axis.lowest)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self.y_axis.lowest) / (self.y_axis.highest - self.y_axis.lowest)
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)


def _grid(place: _Place, unit: str) -> list[Markup]:
    left, right, bottom = _LEFT, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    percent = "%" if unit == "%" else ""
    parts = []
    for value in place.y_axis.ticks:
        y = place.y(value)
        parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", f"{_number(value, place.y_axis.step)}{percent}", x=left - 6, y=y + 4, class_="y"))
    parts += [
        tag("text", _number(value, place.x_axis.step), x=place.x(value), y=bottom + 16, class_="x")
        for value in place.x_axis.ticks
    ]
    parts.append(tag("text", "optimizer step", x=(left + right) / 2, y=_HEIGHT - 3, class_="x"))
    return parts


def _stage_lines(place: _Place, stages: Sequence[tuple[str, float]]) -> list[Markup]:
    if len(stages) < 2:
        return []
    parts = []
    for name, step in stages:
        x = place.x(step)
        parts.append(tag("line", x1=x, x2=x, y1=_TOP - 12, y2=_HEIGHT - _BOTTOM, class_="stage"))
        # Above the curves, which may be anywhere below.
        parts.append(tag("text", name, x=x + 4, y=_TOP - 6, class_="stage"))
    return parts


def _curve(place: _Place, series: Series) -> list[Markup]:
    color = f"c{series.color % _NUM_COLORS}"
    if series.style == "dots" or len(series.points) == 1:
        return [
            tag("circle", tag("title", f"{series.label}: {y:.4g} at step {x:g}"), cx=place.x(x), cy=place.y(y), r=3.5,
                class_=f"dot {color}")
            for x, y in thin(series.points)
            if math.isfinite(y)
        ]  # fmt: skip
    runs: list[list[str]] = [[]]
    for x, y in thin(series.points):
        if math.isfinite(y):
            runs[-1].append(f"{place.x(x):g},{place.y(y):g}")
        elif runs[-1]:
            runs.append([])
    return [tag("polyline", points=" ".join(run), class_=f"{series.style} {color}") for run in runs if run]


def _key(series: Series) -> Markup:
    kind = "dots" if series.style == "dots" or len(series.points) == 1 else series.style
    return tag("span", tag("i", class_=f"key {kind} c{series.color % _NUM_COLORS}"), series.label)


def _number(value: float, step: float) -> str:
    """Return a number of an axis with as many digits as its step needs."""
    if value and step < 1e-4:
        return f"{value:.1e}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    # Minus zero comes from rounding.
    return f"{value + 0.0:,.{digits}f}" if abs(value) > step / 2 else "0"
