"""``plot`` and ``top``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from bert_operator.errors import EXIT_SUCCEEDED, LaunchError, OperatorError
from bert_operator.plugin.context import Context
from bert_operator.plugin.errors import ApiRefused, NoSuchObject
from bert_operator.plugin.reading import read_job, read_metrics
from bert_operator.plugin.views.plot_view import show_plot
from bert_operator.plugin.views.top_view import show_top
from bert_operator.render.names import JOB_LABEL

Row = dict[str, str | float]


def add_plot_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``plot``."""
    parser.add_argument("name", metavar="NAME", help="of the job")
    parser.add_argument(
        "--metric", default="loss", metavar="NAME", help="a figure of the progress lines; default: loss"
    )
    parser.add_argument("--stage", metavar="NAME", help="default: the one that was reported last")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw into a file instead; needs matplotlib")
    parser.add_argument("-o", "--output", choices=("json",), help="the reports as rows, for programs")


def run_plot(arguments: argparse.Namespace, context: Context) -> int:
    """Draw a figure of a job over its steps, from the logs that are still there.

    Those are the log of the newest attempt, which begins at its checkpoint, and that of the preparation. All reports
    are in metrics.jsonl, and a finished run's curve in loss.png, in the output folder on the volume.
    """
    job = read_job(context.kubectl, arguments.name)
    rows = read_metrics(context.kubectl, job)
    if arguments.output == "json":
        context.console.show(json.dumps(rows, indent=2))
        return EXIT_SUCCEEDED
    stage = arguments.stage or next((str(row["stage"]) for row in reversed(rows) if arguments.metric in row), None)
    points = points_of(rows, stage, arguments.metric)
    if not points:
        has = sorted({name for row in rows for name in row} - {"attempt", "stage", "step", "steps"})
        raise NoSuchObject(
            f"{job.namespace}/{job.name}: no report in its logs has {arguments.metric}"
            f"{f' of stage {stage}' if stage else ''}; they have {', '.join(has) or 'none at all'}",
            hint="metrics.jsonl in the output folder has the reports of every attempt",
        )
    title = f"{job.namespace}/{job.name}  {stage}  {arguments.metric}"
    if arguments.png is not None:
        _draw(points, title, arguments.metric, arguments.png)
        context.console.show(str(arguments.png))
    else:
        context.console.show(show_plot(points, title, context.console.ink, context.console.width))
    return EXIT_SUCCEEDED


def points_of(rows: Sequence[Row], stage: str | None, metric: str) -> list[tuple[float, float]]:
    """Return steps and values of a figure; steps that were taken again replace those before."""
    points: list[tuple[float, float]] = []
    for row in rows:
        step, value = row.get("step"), row.get(metric)
        if row["stage"] == stage and isinstance(step, float) and isinstance(value, float):
            while points and points[-1][0] >= step:
                points.pop()
            points.append((step, value))
    return points


def _draw(points: Sequence[tuple[float, float]], title: str, metric: str, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LaunchError(
            "--png: needs matplotlib, which this Python has not", hint="pip install matplotlib"
        ) from error
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([step for step, _ in points], [value for _, value in points])
    axes.set(title=title, xlabel="step", ylabel=metric)
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise OperatorError(f"--png: {path} cannot be written ({error})", hint="name a .png or .svg file") from error


def add_top_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``top``."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="of a job; default: all jobs of the namespace")


def run_top(arguments: argparse.Namespace, context: Context) -> int:
    """Show what the pods of jobs use of processors and memory, beside their limits. Needs metrics-server.

    Memory above nine tenths of its limit is shown in red: the kernel ends a pod that reaches it. What is used of
    devices such as GPUs is not known to Kubernetes.
    """
    kubectl = context.kubectl
    if arguments.name is not None:
        kubectl = kubectl.within(read_job(kubectl, arguments.name).namespace)
    selector = JOB_LABEL if arguments.name is None else f"{JOB_LABEL}={arguments.name}"
    pods = kubectl.read("get", "pods", "--selector", selector).get("items") or ()
    if not pods:
        context.console.remark("No pods of a job are here.")
        return EXIT_SUCCEEDED
    namespace = pods[0]["metadata"]["namespace"]
    path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods?labelSelector={quote(selector)}"
    try:
        usage = kubectl.get_raw(path).get("items") or ()
    except ApiRefused as error:
        if error.status not in (404, 503):
            raise
        usage = ()
        context.console.remark("what is used is not known: the cluster has no metrics-server (or it does not answer)")
    context.console.show(show_top(pods, usage, context.console.ink))
    return EXIT_SUCCEEDED
