"""Where the curves of a picture run, in inline SVG: no script, no font and no picture from elsewhere. Pure.

Colours are classes of ``templates/style.css``, so that a dark page and paper get theirs. Every curve has its label
beside the colour, and styles differ as well: colour never stands alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve with its places in the picture."""

    label: str
    color: str
    """Class of the style sheet."""
    style: Literal["line", "dots", "dashed"]
    dots: Sequence[tuple[float, float, str]]
    """Place and label of each point; of ``dots`` alone."""
    lines: Sequence[str]
    """Points of each unbroken part, as SVG's ``polyline`` wants them."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything of a picture but its elements, which the macro ``figure`` of ``templates/parts.html`` has."""

    title: str
    unit: str
    y_ticks: Sequence[tuple[float, str]]
    x_ticks: Sequence[tuple[float, str]]
    stages: Sequence[tuple[float, str]]
    curves: Sequence[Curve]
    width = _WIDTH
    height = _HEIGHT
    left = _LEFT
    right = _WIDTH - _RIGHT
    top = _TOP
    bottom = _HEIGHT - _BOTTOM


def plan_chart(
    title: str,
    series: Sequence[Series],
    *,
    unit: str,
    stages: Sequence[tuple[str, float]] = (),
    from_zero: bool = False,
) -> Chart | None:
    """Return a picture with its legend; None where no curve has a point.

    Args:
        title: What is shown, for people and for screen readers.
        series: The curves.
        unit: Of the y axis: ``%`` or words behind the title.
        stages: Names and first steps of the stages, which thin lines part.
        from_zero: The y axis begins with 0.
    """
    shown = [one for one in series if any(math.isfinite(y) for _, y in one.points)]
    if not shown:
        return None
    values = [y for one in shown for _, y in one.points if math.isfinite(y)]
    last = max(x for one in shown for x, _ in one.points)
    # Cut where training ended.
    x_axis = Axis(0.0, last or 1.0, fit_axis(0.0, last, 8).step)
    y_axis = fit_axis(min([*values, *([0.0] if from_zero else [])]), max(values))
    place = _Place(x_axis, y_axis)
    percent = "%" if unit == "%" else ""
    return Chart(
        title=title,
        unit=unit,
        y_ticks=[(place.y(value), f"{_number(value, y_axis.step)}{percent}") for value in y_axis.ticks],
        x_ticks=[(place.x(value), _number(value, x_axis.step)) for value in x_axis.ticks],
        stages=[(place.x(step), name) for name, step in stages] if len(stages) > 1 else [],
        curves=[_curve(place, one) for one in shown],
    )


def sparkline(points: Sequence[Point]) -> str:
    """Return a curve without axes for a picture of 100 x 24, as ``polyline`` wants it; empty below two points."""
    finite = [point for point in thin(points, 80) if math.isfinite(point[1])]
    if len(finite) < 2:
        return ""
    xs, ys = [x for x, _ in finite], [y for _, y in finite]
    width, height = max(xs) - min(xs) or 1.0, max(ys) - min(ys) or 1.0
    return " ".join(f"{(x - min(xs)) / width * 96 + 2:.1f},{22 - (y - min(ys)) / height * 20:.1f}" for x, y in finite)


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


def _curve(place: _Place, series: Series) -> Curve:
    points = thin(series.points)
    style = "dots" if len(series.points) == 1 else series.style
    runs: list[list[str]] = [[]]
    for x, y in points:
        if math.isfinite(y):
            runs[-1].append(f"{place.x(x):g},{place.y(y):g}")
        elif runs[-1]:
            runs.append([])
    return Curve(
        label=series.label,
        color=f"c{series.color % _NUM_COLORS}",
        style=style,
        dots=[(place.x(x), place.y(y), f"{series.label}: {y:.4g} at step {x:g}") for x, y in points if math.isfinite(y)]
        if style == "dots"
        else [],
        lines=[] if style == "dots" else [" ".join(run) for run in runs if run],
    )


def _number(value: float, step: float) -> str:
    """Return a number of an axis with as many digits as its step needs."""
    if value and step < 1e-4:
        return f"{value:.1e}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    # Minus zero comes from rounding.
    return f"{value + 0.0:,.{digits}f}" if abs(value) > step / 2 else "0"
