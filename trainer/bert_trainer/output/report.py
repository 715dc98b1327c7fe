"""``report.json`` and ``loss.png`` of a finished run, computed from its metrics file.

Both are functions of the files in the output folder alone, so a run that was resumed ten times reports the
same as one that was never interrupted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_job.run_config import RunConfig
from bert_job.run_stages import EvaluateStage, FinetuneStage, PretrainStage
from bert_job.tasks import MISMATCHED, TASK_METRICS
from bert_trainer.output.filled_masks import read_filled_masks
from bert_trainer.output.metrics import Record, attempt_of, find_evaluations, read_metrics
from bert_trainer.system.atomic_files import disk_errors, write_json_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPORT_FILE = "report.json"
PLOT_FILE = "loss.png"


def write_report(config: RunConfig, folder: Path, *, ranks: int) -> None:
    """Write both files into the output folder."""
    records = list(read_metrics(folder))
    dataset_file = Path(config.dataset.folder) / "dataset.json"
    dataset = json.loads(dataset_file.read_text()) if dataset_file.exists() else {}
    report = {**make_report(config, records, dataset, ranks=ranks), "filledMasks": read_filled_masks(folder)}
    write_json_atomically(folder / REPORT_FILE, report)
    plot_loss(config, records, folder / PLOT_FILE)


def make_report(config: RunConfig, records: list[Record], dataset: dict[str, Any], *, ranks: int) -> dict[str, Any]:
    """Build the report. dataset: the content of ``dataset.json``, empty where shards were given ready."""
    attempts = _working_attempts(records)
    return {
        "job": f"{config.job.namespace}/{config.job.name}",
        "ranks": ranks,
        "stages": [
            {**_stage_report(stage, list_by_step(records, stage.name)), **_evaluation_report(stage, records)}
            for stage in config.stages
            if isinstance(stage, PretrainStage | FinetuneStage)
        ],
        "preflight": _preflight_report(records),
        "heldOut": _held_out_report(config, records),
        "checkpoint": _last(records, "checkpoint", "path"),
        "export": _last(records, "exported", "path"),
        "exports": {str(it["stage"]): it["path"] for it in records if it["event"] == "exported"},
        "attempts": _count_attempts(attempts),
        "prepareSeconds": dataset.get("seconds"),
        "seconds": float(dataset.get("seconds", 0)) + sum(it["run_s"] for it in attempts.values()),
        "cpuSeconds": float(dataset.get("cpu_seconds", 0)) + sum(it["cpu_s"] for it in attempts.values()),
    }


def _working_attempts(records: list[Record]) -> dict[tuple[str, int, int], dict[str, float]]:
    """Return the seconds of each run of each attempt, without those that found the job's run finished already.

    By uid, number of the attempt, and number of its run.
    """
    attempts: dict[tuple[str, int, int], dict[str, float]] = {}
    late, trained = set(), set()
    is_done = False
    for record in records:
        key = attempt_of(record)
        if key not in attempts:
            attempts[key] = {"run_s": 0.0, "cpu_s": 0.0}
            if is_done:
                late.add(key)
        for name in ("run_s", "cpu_s"):
            # Both only grow while one runs: the largest value is what it took.
            attempts[key][name] = max(attempts[key][name], float(record.get(name) or 0))
        if record["event"] == "progress":
            trained.add(key)
        is_done = is_done or record["event"] == "succeeded"
    return {key: took for key, took in attempts.items() if key not in late - trained}


def _count_attempts(keys: Iterable[tuple[str, int, int]]) -> int:
    """Return how many attempts there were, those included that failed before their first record.

    Attempts are numbered from 1 for each uid, so the highest number of each is its count.
    """
    newest: dict[str, int] = {}
    for uid, attempt, _ in keys:
        newest[uid] = max(newest.get(uid, 0), attempt)
    return sum(newest.values())


def list_by_step(records: list[Record], stage: str, event: str = "progress") -> list[Record]:
    """Return a stage's records in order; a step that was trained again after a kill counts once, the last time."""
    by_step: dict[int, Record] = {}
    for record in records:
        if (record.get("stage"), record["event"]) == (stage, event):
            by_step[int(record.get("step") or 0)] = record
    return [by_step[step] for step in sorted(by_step)]


def _evaluation_report(stage: PretrainStage | FinetuneStage, records: list[Record]) -> dict[str, Any]:
    """Return what a stage's evaluations found, and what became of its target; nothing for a stage without them."""
    if isinstance(stage, FinetuneStage):
        return _finetune_report(stage, records)
    if stage.evaluation is None:
        return {}
    evaluated = list_by_step(records, stage.name, "evaluated")
    report: dict[str, Any] = {
        "evaluations": [
            {
                "step": record["step"],
                "trainedSamples": record.get("trained_samples"),
                "maskedLmAccuracy": record.get("mlm_accuracy"),
                "nextSentenceAccuracy": record.get("nsp_accuracy"),
                "nextSentenceBaseline": record.get("nsp_baseline"),
                "maskedLmLoss": record.get("mlm_loss"),
                "samples": record.get("samples"),
                "seconds": record.get("seconds"),
            }
            for record in evaluated
        ],
        "verdict": evaluated[-1].get("verdict") if evaluated else None,
    }
    if stage.target is not None:
        last = evaluated[-1] if evaluated else {}
        report["target"] = {
            "maskedLmAccuracy": stage.target.masked_lm_accuracy,
            "met": last.get("target_met") == "true",
            "message": last.get("message"),
        }
    return report


def _finetune_report(stage: FinetuneStage, records: list[Record]) -> dict[str, Any]:
    """Return what a finetune stage came to, once it has ended."""
    found = list(find_evaluations(records, stage.name, "after"))
    if not found:
        return {}
    last, names = found[-1], [name + end for name in TASK_METRICS[stage.task] for end in ("", MISMATCHED)]
    return {
        "result": {
            "task": stage.task,
            "metric": last.get("metric"),
            "metrics": {name: last[name] for name in names if name in last},
            "majority": {name: last[f"majority_{name}"] for name in names if f"majority_{name}" in last},
            "mean": last.get("mean"),
            "std": last.get("std"),
            "runs": last.get("runs"),
            "bestSeed": last.get("best_seed"),
            "bestRank": last.get("best_rank"),
            "bestEpoch": last.get("best_epoch"),
        }
    }


def _stage_report(stage: PretrainStage | FinetuneStage, intervals: list[Record]) -> dict[str, Any]:
    def total(key: str) -> float:
        return sum(float(record[key] or 0) for record in intervals)

    seconds = total("interval_s")
    return {
        "name": stage.name,
        "kind": stage.kind,
        "sequenceLength": stage.sequence_length,
        "globalBatchSize": stage.global_batch_size,
        "steps": intervals[-1]["step"] if intervals else 0,
        "lossFirst": intervals[0].get("loss") if intervals else None,
        "lossLast": intervals[-1].get("loss") if intervals else None,
        "samplesPerSecond": total("interval_sequences") / seconds if seconds else None,
        "realTokensPerSecond": total("interval_tokens") / seconds if seconds else None,
        "seconds": seconds,
    }


def _held_out_report(config: RunConfig, records: list[Record]) -> dict[str, Any] | None:
    """Return the last evaluate stage's figures."""
    names = [stage.name for stage in config.stages if isinstance(stage, EvaluateStage)]
    if not names:
        return None
    found = {
        str(record["when"]): record
        for record in records
        if record["event"] == "evaluated" and record["stage"] == names[-1]
    }
    before, after = found.get("before", {}), found.get("after", {})
    return {
        "maskedLmAccuracyBefore": before.get("mlm_accuracy"),
        "maskedLmAccuracy": after.get("mlm_accuracy"),
        "unigramBaseline": after.get("unigram_baseline"),
        "nextSentenceAccuracyBefore": before.get("nsp_accuracy"),
        "nextSentenceAccuracy": after.get("nsp_accuracy"),
        "nextSentenceBaseline": after.get("nsp_baseline"),
        "maskedLmLoss": after.get("mlm_loss"),
        "samples": after.get("samples"),
        "maskedTokens": after.get("masked_tokens"),
        "verdict": after.get("verdict"),
    }


def _preflight_report(records: list[Record]) -> dict[str, Any] | None:
    """Return what the newest attempt found before its first step; None where nothing was trained."""
    found = next((record for record in reversed(records) if record["event"] == "preflight"), None)
    if found is None:
        return None
    names = {
        "latencyMicroseconds": "latency_us",
        "bandwidthMegabytesPerSecond": "bandwidth_mb_per_s",
        "clockSkewSeconds": "clock_skew_s",
        "outputFreeGigabytes": "output_free_gb",
        "memoryGigabytes": "memory_gb",
        "memoryAvailableGigabytes": "memory_available_gb",
        "findingNames": "findings",
        "findings": "message",
    }
    return {name: found.get(key) for name, key in names.items()}


def _last(records: list[Record], event: str, key: str) -> Any:
    return next((record[key] for record in reversed(records) if record["event"] == event), None)


def plot_loss(config: RunConfig, records: list[Record], target: Path) -> None:
    """Write the picture of a run."""
    figure = draw_run(config, records)
    with disk_errors(target):
        figure.savefig(target, dpi=120)


def draw_run(config: RunConfig, records: list[Record]) -> Figure:
    """Draw loss and what was evaluated over all stages, one after another, on a shared step axis."""
    figure, panels = _panels(config)
    loss_axes, *others = panels
    fine_tunes = any(isinstance(stage, FinetuneStage) for stage in config.stages)
    offset = 0
    for number, stage in enumerate(it for it in config.stages if isinstance(it, PretrainStage | FinetuneStage)):
        intervals = list_by_step(records, stage.name)
        if not intervals:
            continue
        for axes in panels if offset else ():
            axes.axvline(offset, color="0.8", linewidth=1, zorder=0)
        if isinstance(stage, FinetuneStage):
            _plot_runs(stage, intervals, offset, loss_axes, f"C{number}")
            _plot_task(stage, records, offset, others[-1], f"C{number}")
        else:
            _plot_pretraining(stage, records, offset, loss_axes, others[0])
        offset += int(intervals[-1]["step"] or 0)
    _plot_held_out(config, records, offset, others[0])
    for axes in others:
        lowest, highest = axes.dataLim.intervaly
        if lowest >= 0:  # correlations may be below
            axes.set(ylim=(0, 1.05 * highest if 0 < highest < math.inf else None))
    for axes in panels:
        if axes.get_legend_handles_labels()[0]:
            # Pretraining leaves these corners free, a short fine-tuning perhaps not; to look for one takes time.
            axes.legend(loc="best" if fine_tunes else "upper right" if axes is loss_axes else "lower right")
        axes.grid(alpha=0.3)
    return figure


def _panels(config: RunConfig) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes of the loss, and of accuracy and of the tasks' metrics where the run has them."""
    # The object interface: pyplot would keep global state and look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = [stage.task for stage in config.stages if isinstance(stage, FinetuneStage)]
    pretrains = not tasks or any(isinstance(stage, PretrainStage | EvaluateStage) for stage in config.stages)
    rows = 1 + pretrains + bool(tasks)
    figure = Figure(figsize=(9, 3 * rows))
    FigureCanvasAgg(figure)
    # Fixed margins: a layout engine would draw everything twice.
    margins = {"left": 0.09, "right": 0.985, "bottom": 0.16 / rows, "top": 1 - 0.1 / rows, "hspace": 0.08}
    panels = list(figure.subplots(rows, sharex=True, gridspec_kw=margins))
    what = ["pretraining"] * pretrains + ["fine-tuning"] * bool(tasks)
    # A regression's loss is a squared error.
    unit = "" if {"sts-b", "regression"}.intersection(tasks) else ", nats"
    labels = [f"loss{unit}"] + ["masked-LM accuracy, %"] * pretrains + ["task's metric"] * bool(tasks)
    panels[0].set(title=f"{config.job.name}: {' and '.join(what)}")
    panels[-1].set(xlabel="optimizer step")
    for axes, label in zip(panels, labels, strict=True):
        axes.set(ylabel=label)
    return figure, panels


def _plot_pretraining(
    stage: PretrainStage, records: list[Record], offset: int, loss_axes: Axes, accuracy_axes: Axes
) -> None:
    intervals, evaluated = list_by_step(records, stage.name), list_by_step(records, stage.name, "evaluated")
    steps = _steps(intervals, offset)
    loss_axes.plot(steps, _column(intervals, "loss"), _line_of(steps), label=stage.name)
    accuracies = _column(intervals, "mlm_accuracy", percent=True)
    accuracy_axes.plot(steps, accuracies, _line_of(steps), label=stage.name)
    if evaluated:
        accuracies = _column(evaluated, "mlm_accuracy", percent=True)
        label = f"{stage.name}: evaluated"
        accuracy_axes.plot(_steps(evaluated, offset), accuracies, "o", markersize=4, label=label)
    if stage.target is not None:
        wanted = 100 * stage.target.masked_lm_accuracy
        accuracy_axes.plot([offset, steps[-1]], [wanted, wanted], "k:", label=f"{stage.name}: target {wanted:g} %")


def _plot_held_out(config: RunConfig, records: list[Record], step: int, axes: Axes) -> None:
    held_out = _held_out_report(config, records)
    if held_out is not None and held_out["maskedLmAccuracy"] is not None:
        accuracy, baseline = 100 * held_out["maskedLmAccuracy"], 100 * held_out["unigramBaseline"]
        axes.plot([step], [accuracy], "k*", label=f"held out: {accuracy:.1f} %")
        axes.axhline(baseline, color="0.5", linestyle="--", label=f"unigram baseline: {baseline:.1f} %")


def _plot_runs(stage: FinetuneStage, intervals: list[Record], offset: int, axes: Axes, color: str) -> None:
    """Draw the loss of a finetune stage, a line for each run."""
    by_run: dict[int, list[Record]] = {}
    for record in intervals:
        # By step, not by seed: without synchronized gradients runs of several seeds share a record.
        steps_per_run = max(1, int(record["steps"] or 0) // len(stage.run_seeds))
        by_run.setdefault((int(record["step"] or 0) - 1) // steps_per_run, []).append(record)
    for number, found in enumerate(by_run.values()):
        steps, label = _steps(found, offset), None if number else stage.name
        axes.plot(steps, _column(found, "loss"), _line_of(steps), color=color, label=label)


def _plot_task(stage: FinetuneStage, records: list[Record], offset: int, axes: Axes, color: str) -> None:
    """Draw the deciding metric of a finetune stage's evaluations, a line for each seed, and its baseline."""
    of_stage = [it for it in records if (it["event"], it.get("stage")) == ("evaluated", stage.name)]
    metric = stage.metric or TASK_METRICS[stage.task][0]
    by_seed: dict[object, list[Record]] = {}
    for record in of_stage:
        if record.get("when") == "during":
            by_seed.setdefault(record.get("seed"), []).append(record)
    for number, found in enumerate(by_seed.values()):
        label = None if number else f"{stage.name}: {metric}"
        values = _column(found, metric)
        axes.plot(_steps(found, offset), values, "o-", color=color, markersize=4, linewidth=1, label=label)
    if of_stage and (baseline := of_stage[-1].get(f"majority_{metric}")) is not None:
        last = max([offset, *(step for found in by_seed.values() for step in _steps(found, offset))])
        axes.plot([offset, last], [float(baseline)] * 2, "k:", label=f"{stage.name}: majority")


def _steps(records: list[Record], offset: int) -> list[int]:
    return [offset + int(record["step"] or 0) for record in records]


def _line_of(steps: list[int]) -> str:
    """Return the style of a line; of a single point, which has none, a marker."""
    return "o" if len(steps) == 1 else "-"


def _column(records: list[Record], key: str, *, percent: bool = False) -> list[float]:
    """Return one value of every record; one that was not finite, and so not recorded, leaves a gap in the plot."""
    scale = 100.0 if percent else 1.0
    return [scale * float(value) if (value := record.get(key)) is not None else math.nan for record in records]
