"""Draw the panels of both dashboards from what a real Prometheus answers, for the documentation: ``make dashboards``.

It trains a tiny model on this machine for two minutes while Prometheus scrapes it and an operator
(tests/deploy/scraped_run.py). The pictures show what the queries give, not how Grafana looks.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot

from dashboards import DASHBOARDS, Dashboard
from scraped_run import Scraped, scraped_run

STEPS = 14
IMAGES = Path(__file__).resolve().parents[1] / "docs/images"
COLUMNS = 3


def name_curve(legend: str, labels: dict[str, str]) -> str:
    """Return what a curve is called."""
    for label, value in labels.items():
        legend = legend.replace("{{" + label + "}}", value)
    return legend


def draw(dashboard: Dashboard, scraped: Scraped, path: Path) -> None:
    """Write a picture of all panels."""
    rows = -(-len(dashboard.panels) // COLUMNS)
    figure, axes = pyplot.subplots(rows, COLUMNS, figsize=(5 * COLUMNS, 2.6 * rows), layout="constrained")
    for axis, panel in zip(axes.flat, dashboard.panels, strict=False):
        axis.set_title(panel.title, fontsize=10)
        curves: list[Any] = [(legend, series) for query, legend in panel.queries for series in scraped.ask(query)]
        for legend, series in curves:
            times = [float(at) - scraped.began_s for at, _ in series["values"]]
            values = [float(value) for _, value in series["values"]]
            axis.plot(times, values, label=name_curve(legend, series["metric"]), linewidth=1.2)
        if curves:
            axis.legend(fontsize=7, loc="best")
            axis.set_ylabel(panel.unit, fontsize=8)
        else:
            axis.text(0.3, 0.5, "nothing: this run had none", transform=axis.transAxes, fontsize=8)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(dashboard.panels) :]:
        axis.axis("off")
    for axis in axes[-1]:
        axis.set_xlabel("seconds", fontsize=8)
    figure.savefig(path, dpi=70)
    pyplot.close(figure)


def main() -> int:
    """Train, scrape, draw."""
    with tempfile.TemporaryDirectory() as folder, scraped_run(Path(folder), steps=STEPS) as scraped:
        for dashboard in DASHBOARDS:
            path = IMAGES / f"dashboard-{dashboard.uid}.png"
            draw(dashboard, scraped, path)
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
