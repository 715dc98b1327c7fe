"""Plots statistics of shards: lengths, predictions and what predictions show, for each group of files.

Needs matplotlib, which comes with the trainer's packages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.quality.inspection import Group
from bert_trainer.dataset.quality.sample_statistics import SampleStatistics
from bert_trainer.errors import InputError
from bert_trainer.system.atomic_files import create_partial, disk_errors

# Rows of the figure; of more groups, those with the most samples are drawn.
_MAX_GROUPS = 6
_LENGTH_BINS = 32
_BLUE, _ORANGE, _GREY = "#33658a", "#d1661c", "#8d99ae"


def plot_groups(groups: Sequence[Group], path: Path) -> None:
    """Write the figure atomically. groups: at least one, with samples. path: its suffix decides the format.

    Raises:
        InputError: matplotlib is missing, or does not support the format.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            f"--plot {path}: needs matplotlib ({error})", hint="pip install 'bert-pretrain-operator[trainer]'"
        ) from error
    drawn = sorted(groups, key=lambda group: -sum(group.rows))[:_MAX_GROUPS]
    kept = [group for group in groups if group in drawn]
    figure = Figure(figsize=(13, 0.9 + 3.4 * len(kept)), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    known = {name.lower() for name in canvas.get_supported_filetypes()}
    if path.suffix.lstrip(".").lower() not in known:
        raise InputError(f"--plot {path}: allowed endings: {', '.join(sorted(known))}")
    left_out = len(groups) - len(kept)
    figure.suptitle("What the shards hold" + (f" ({left_out} smaller groups are not drawn)" if left_out else ""))
    parts = figure.subfigures(len(kept), 1, squeeze=False)[:, 0]
    for part, group in zip(parts, kept, strict=True):
        _draw(part, group)
    with disk_errors(path):
        partial = create_partial(path)
    try:
        with disk_errors(path):
            figure.savefig(partial, dpi=110, format=path.suffix.lstrip(".").lower())
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _draw(part: Any, group: Group) -> None:
    counted = group.statistics
    assert counted is not None, "only groups with samples are drawn"
    files = f"{len(group.files):,} file{'s' if len(group.files) > 1 else ''}"
    folder = Path(*group.folder.absolute().parts[-2:])
    part.suptitle(
        f"{folder}, {group.split}: {counted.rows:,} samples in {files}, layout {group.header.layout}", fontsize=10
    )
    lengths, predictions, shown = part.subplots(1, 3, width_ratios=(5, 4, 3.4))
    _draw_lengths(lengths, counted)
    _draw_predictions(predictions, counted)
    _draw_shown(shown, counted)


def _draw_lengths(axes: Any, counted: SampleStatistics) -> None:
    longest = len(counted.lengths) - 1
    edges = np.unique(np.linspace(0, longest, min(_LENGTH_BINS, longest) + 1).round().astype(np.int64))
    shares = _binned(counted.lengths, edges) / counted.rows
    axes.bar(edges[:-1] + 0.5, 100 * shares, width=np.diff(edges), align="edge", color=_BLUE, edgecolor="white")
    mean = counted.tokens / counted.rows
    axes.axvline(mean, color=_ORANGE, linewidth=1.5, label=f"mean {mean:.1f}; padding {counted.padding_share:.1%}")
    axes.set(xlabel="Tokens of a sample, [CLS] and [SEP] counted", ylabel="Share of the samples (%)")
    axes.set(title="Lengths", xlim=(0, longest + 1))
    _finish(axes)


def _draw_predictions(axes: Any, counted: SampleStatistics) -> None:
    values = np.arange(len(counted.predictions))
    axes.bar(values, 100 * counted.predictions / counted.rows, width=0.9, color=_BLUE)
    label = f"{counted.predicted_share:.2%} of all tokens"
    axes.axvline(counted.num_predictions / counted.rows, color=_ORANGE, linewidth=1.5, label=label)
    axes.set(xlabel="Predictions of a sample", ylabel="Share of the samples (%)", title="Masked-LM predictions")
    _finish(axes)


def _draw_shown(axes: Any, counted: SampleStatistics) -> None:
    total = max(1, counted.num_predictions)
    shares = [counted.masked / total, counted.unchanged / total]
    values = 100 * np.array([*shares, (1 - sum(shares)) * bool(counted.num_predictions), 0])
    values[3] = 100 * counted.random_next / counted.rows
    names = ["[MASK]", "un-\nchanged", "another\ntoken", "random\nnext"]
    bars = axes.bar(names, values, width=0.75, color=[_BLUE, _BLUE, _BLUE, _GREY])
    axes.bar_label(bars, labels=[f"{value:.1f}" for value in values], fontsize=8, padding=2)
    for place, published in enumerate((80, 10, 10, 50)):
        label = "BERT: 80, 10, 10; 50" if place == 0 else None
        axes.plot([place - 0.45, place + 0.45], [published] * 2, color=_ORANGE, linewidth=1.5, label=label)
    axes.set(ylabel="Share (%)", title="Predictions show (blue); pairs (grey)", ylim=(0, 100))
    axes.tick_params(axis="x", labelsize=8)
    _finish(axes)


def _binned(counts: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how many values are above one edge and at most the next."""
    below = np.concatenate([[0], np.cumsum(counts)])
    totals: NDArray[np.float64] = np.diff(below[edges + 1]).astype(np.float64)
    return totals


def _finish(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, frameon=False)
