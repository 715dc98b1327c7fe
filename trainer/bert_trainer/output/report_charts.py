"""The curves of a report: which records become which curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from bert_job.run_stages import FinetuneStage, PretrainStage
from bert_job.tasks import TASK_METRICS
from bert_trainer.output.charts import Chart, Point, Series, plan_chart
from bert_trainer.output.metrics import Record
from bert_trainer.output.report import list_by_step
from bert_trainer.output.run_facts import Run

Placed = tuple[PretrainStage | FinetuneStage, float, list[Record]]
"""A stage, the steps of all before it, and its intervals."""


def plan_charts(run: Run) -> list[Chart]:
    """Return a figure for everything that the run has recorded."""
    placed = _place_stages(run)
    starts = [(stage.name, before) for stage, before, _ in placed]

    def chart(title: str, series: list[Series], *, unit: str = "", from_zero: bool = False) -> Chart | None:
        return plan_chart(title, series, unit=unit, stages=starts, from_zero=from_zero)

    throughput = [
        (before, Series(stage.name, _points(found, before, "real_tokens_per_s"), number))
        for number, (stage, before, found) in enumerate(placed)
    ]
    charts = [
        chart("Loss", _by_stage(placed, "loss"), unit="nats" if _is_in_nats(run) else ""),
        chart("Masked-LM accuracy", _accuracy(run, placed), unit="%", from_zero=True),
        chart("Task metrics on validation data", _tasks(run, placed)),
        chart("Throughput", [one for _, one in throughput], unit="real tokens per second", from_zero=True),
        chart("Learning rate", _by_stage(placed, "learning_rate"), from_zero=True),
        chart("Gradient norm before clipping", _by_stage(placed, "gradient_norm"), from_zero=True),
    ]
    return [one for one in charts if one]


def _place_stages(run: Run) -> list[Placed]:
    placed: list[Placed] = []
    before = 0.0
    for stage in run.config.stages:
        if isinstance(stage, PretrainStage | FinetuneStage):
            found = list_by_step(list(run.records), stage.name)
            if found:
                placed.append((stage, before, found))
                before += float(found[-1]["step"] or 0)
    return placed


def _is_in_nats(run: Run) -> bool:
    tasks = {stage.task for stage in run.config.stages if isinstance(stage, FinetuneStage)}
    return not tasks & {"sts-b", "regression"}


def _by_stage(placed: list[Placed], key: str) -> list[Series]:
    """Return a curve for each stage, of a finetune stage for each of its runs: every seed begins anew."""
    series: list[Series] = []
    for stage, before, found in placed:
        for seed, of_seed in _by_seed(found).items():
            label = f"{stage.name}, seed {seed}" if isinstance(stage, FinetuneStage) and stage.seeds > 1 else stage.name
            series.append(Series(label, _points(of_seed, before, key), len(series)))
    return series


def _by_seed(records: Iterable[Record]) -> dict[object, list[Record]]:
    """Return records by the seed of their run; those of pretraining, and of several seeds together, have none."""
    found: dict[object, list[Record]] = {}
    for record in records:
        found.setdefault(record.get("seed"), []).append(record)
    return found


def _accuracy(run: Run, placed: list[Placed]) -> list[Series]:
    def in_percent(value: float) -> float:
        return 100 * value

    series = []
    for number, (stage, before, found) in enumerate(placed):
        if not isinstance(stage, PretrainStage):
            continue
        series.append(Series(f"{stage.name}: training", _points(found, before, "mlm_accuracy", in_percent), number))
        evaluated = list_by_step(list(run.records), stage.name, "evaluated")
        points = _points(evaluated, before, "mlm_accuracy", in_percent)
        series.append(Series(f"{stage.name}: evaluated", points, number, "dots"))
        if stage.target is not None:
            wanted, last = 100 * stage.target.masked_lm_accuracy, before + float(found[-1]["step"] or 0)
            series.append(Series(f"{stage.name}: target", [(before, wanted), (last, wanted)], number, "dashed"))
    held_out = run.report.get("heldOut") or {}
    accuracy, baseline = held_out.get("maskedLmAccuracy"), held_out.get("unigramBaseline")
    last = max((before + float(found[-1]["step"] or 0) for _, before, found in placed), default=0.0)
    if accuracy is not None:
        series.append(Series(f"held out: {accuracy:.1%}", [(last, 100 * accuracy)], 4, "dots"))
    if baseline is not None:
        points = [(0.0, 100 * baseline), (last, 100 * baseline)]
        series.append(Series(f"most frequent token alone: {baseline:.1%}", points, 5, "dashed"))
    return series


def _tasks(run: Run, placed: list[Placed]) -> list[Series]:
    series: list[Series] = []
    for number, (stage, before, _) in enumerate(placed):
        if isinstance(stage, FinetuneStage):
            metric = stage.metric or TASK_METRICS[stage.task][0]
            wanted = ("evaluated", stage.name, "during")
            evaluated = (it for it in run.records if (it["event"], it.get("stage"), it.get("when")) == wanted)
            for seed, found in _by_seed(evaluated).items():
                label = f"{stage.name}: {metric}, seed {seed}"
                series.append(Series(label, _points(found, before, metric), number + len(series), "line"))
    return series


def _points(records: list[Record], before: float, key: str, change: Callable[[float], float] = float) -> list[Point]:
    """Return one point of every record; a value that was not finite, and so not recorded, leaves a gap."""
    return [
        (
            before + float(record.get("step") or 0),
            math.nan if (value := record.get(key)) is None else change(float(value)),
        )
        for record in records
    ]
