"""What evaluations found, from the trainer's records to the status: one result for each stage. Pure.

Records are untrusted, so nothing in a result grows with them: its stage is one of the job's, its metrics are those of a
fixed list, its texts are cut.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from bert_job.progress import ProgressRecord
from bert_job.tasks import CORRELATIONS, MISMATCHED, TASK_METRICS
from bert_operator.api.schema.status import MAX_METRICS, MAX_RESULTS, Metric, StageResult

# "result": an evaluation that was reported before, repeated at the end of a run for those who read the end alone.
_EVENTS = ("evaluated", "result")
Bounds = tuple[float, float]
_ANY: Bounds = (-math.inf, math.inf)
_FRACTION: Bounds = (0, 1)
_CORRELATION: Bounds = (-1, 1)
_COUNT: Bounds = (0, math.inf)

_TASK_METRICS = tuple(dict.fromkeys(metric for metrics in TASK_METRICS.values() for metric in metrics))
_MEASURED = (*_TASK_METRICS, *(f"{metric}{MISMATCHED}" for metric in _TASK_METRICS))


def _bounds(metric: str) -> Bounds:
    return _CORRELATION if metric.removesuffix(MISMATCHED) in CORRELATIONS else _FRACTION


_PRETRAINING: Mapping[str, Bounds] = MappingProxyType(
    {
        "mlm_accuracy": _FRACTION,
        "nsp_accuracy": _FRACTION,
        "nsp_baseline": _FRACTION,
        "mlm_loss": _ANY,
        "unigram_baseline": _FRACTION,
        "samples": _ANY,
        "trained_samples": _ANY,
        "seconds": _ANY,
        "target": _FRACTION,
    }
)
_FINETUNING: Mapping[str, Bounds] = MappingProxyType(
    {
        **{metric: _bounds(metric) for metric in _MEASURED},
        **{f"majority_{metric}": _bounds(metric) for metric in _MEASURED},
        "mean": _CORRELATION,
        # Of two correlations, -1 and 1, which are the furthest apart.
        "std": (0, math.sqrt(2)),
        "runs": _COUNT,
        "best_seed": _COUNT,
        "best_rank": _COUNT,
        "best_epoch": _COUNT,
        "seed": _COUNT,
        "rank": _COUNT,
        "epoch": _COUNT,
    }
)
_FIGURES: Mapping[str, Bounds] = MappingProxyType({**_PRETRAINING, **_FINETUNING})
"""All that a result may hold, in the order in which it does, and what each can be."""
_MAX_STAGE = 63
"""As the definition has it."""


def read_result(record: ProgressRecord) -> StageResult | None:
    """Return the result in a record; None if it is about something else, or about the model before training."""
    if record.event not in _EVENTS or not record.stage or record.text("when") == "before":
        return None
    # The status would cut it, to the name of another stage perhaps.
    if len(record.stage) > _MAX_STAGE:
        return None
    figures = ((name, _read_figure(record, name)) for name in _in_order(record))
    metrics = tuple(Metric(name=name, value=_render(value)) for name, value in figures if value is not None)
    if not metrics:
        return None
    step = record.count("step")
    # A verdict: the model does no better than the most frequent token, and what to try.
    message = "; ".join(text for text in map(record.text, ("message", "verdict")) if text) or None
    return StageResult(
        stage=record.stage,
        step=step,
        metrics=metrics[:MAX_METRICS],
        target_met={"true": True, "false": False}.get(record.text("target_met") or ""),
        message=None if message is None else _on_one_line(message),
    )


def add_results(
    known: tuple[StageResult, ...], newer: Iterable[StageResult], stages: Collection[str] | None = None
) -> tuple[StageResult, ...]:
    """Return one result for each stage, those that changed last. stages: others are left out; None: none are.

    A result that is known already stays in its place: the same end of a log is read again and again, and another order
    would be another write of the status.
    """
    newest: dict[str, StageResult] = {}
    for result in newer:
        newest.pop(result.stage, None)
        newest[result.stage] = result
    merged = {result.stage: result for result in known}
    for stage, result in newest.items():
        if (stages is None or stage in stages) and merged.get(stage) != result:
            merged.pop(stage, None)
            merged[stage] = result
    return tuple(merged.values())[-MAX_RESULTS:]


def describe_results(results: Iterable[StageResult]) -> str:
    """Return what became of targets and of fine-tuning, and models that hardly learnt, in words; empty without any."""
    return "".join(
        f" {_with_stage(result.stage, _on_one_line(result.message))}."
        for result in results
        if result.message is not None and (result.target_met is not None or _is_told(result))
    )


def _is_told(result: StageResult) -> bool:
    """Return whether a message is about a task, or a verdict on pretraining, which comes with the baseline."""
    return any(metric.name in (*_TASK_METRICS, "unigram_baseline") for metric in result.metrics)


def _with_stage(stage: str, message: str) -> str:
    return message if message.startswith(f"{stage}: ") else f"{stage}: {message}"


def _in_order(record: ProgressRecord) -> list[str]:
    """Return the names of all figures; of several metrics of a task the one that decides which model is kept first."""
    # The trainer names it; without that, it writes the task's main one first.
    named = record.text("metric")
    written = [name for name in record.fields if name in _TASK_METRICS]
    first = [named] if named in written else written[:1]
    return [*first, *(name for name in _FIGURES if name not in first)]


def _read_figure(record: ProgressRecord, name: str) -> float | None:
    value, (low, high) = record.number(name), _FIGURES[name]
    return None if value is not None and not low <= value <= high else value


def _on_one_line(text: str) -> str:
    """Return a text in which nothing looks like a line of the operator's own."""
    return " ".join(text.split())


def _render(value: float) -> str:
    """Return a number as text: counts in full, the rest with six digits."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
