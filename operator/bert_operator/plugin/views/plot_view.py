"""``plot``: a curve in characters, with axes that can be read."""

from __future__ import annotations

from collections.abc import Sequence

from bert_operator.plugin.terminal import Ink

_HEIGHT = 16
_AXIS = 10
"""Columns of the numbers beside the curve."""


def show_plot(
    points: Sequence[tuple[float, float]], title: str, ink: Ink, width: int, height: int = _HEIGHT
) -> list[str]:
    """Return a curve as lines of text.

    Each column holds the mean of the values that fall into it. Columns without any stay empty: nothing is drawn
    that was not reported.

    Args:
        points: Steps, which rise, and values.
        title: What is drawn.
        ink: How to write.
        width: Columns in all.
        height: Lines of the curve alone.
    """
    columns = max(10, width - _AXIS - 2)
    first, last = points[0][0], points[-1][0]
    scale = (columns - 1) / (last - first) if last > first else 0.0
    sums: dict[int, tuple[float, int]] = {}
    for step, value in points:
        column = round((step - first) * scale)
        total, count = sums.get(column, (0.0, 0))
        sums[column] = (total + value, count + 1)
    means = {column: total / count for column, (total, count) in sums.items()}
    low, high = min(means.values()), max(means.values())
    rows = [[" "] * columns for _ in range(height)]
    for column, mean in means.items():
        level = round((mean - low) / (high - low) * (height - 1)) if high > low else 0
        rows[height - 1 - level][column] = ink.sign("•", "*")
    lines = [ink.paint(title, "bold")]
    for number, row in enumerate(rows):
        value = high - (high - low) * number / (height - 1)
        # A number on every fourth line is enough to read the others.
        label = f"{value:.4g}" if number % 4 == 0 or number == height - 1 else ""
        lines.append(f"{label:>{_AXIS}} {ink.sign('│', '|')}{ink.paint(''.join(row).rstrip(), 'blue')}".rstrip())
    lines.append(" " * _AXIS + " " + ink.sign("└", "+") + ink.sign("─", "-") * columns)
    end = f"step {last:g}"
    lines.append(" " * (_AXIS + 2) + f"{first:g}" + end.rjust(columns - len(f"{first:g}")))
    return lines
