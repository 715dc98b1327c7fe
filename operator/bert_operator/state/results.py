"""What evaluations found, from the trainer's records to the status: one result for each stage. Pure.

Records are untrusted, so nothing in a result grows with them: its stage is one of the job's, its metrics are those of a
fixed list, its texts are cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bert_operator.api.schema.status import MAX_RESULTS, Metric, StageResult
from bert_operator.state.progress import ProgressRecord

# "result": an evaluation that was reported before, repeated at the end of a run for those who read the end alone.
_EVENTS = ("evaluated", "result")
_METRICS = (
    "mlm_accuracy",
    "nsp_accuracy",
    "mlm_loss",
    "unigram_baseline",
    "samples",
    "trained_samples",
    "seconds",
    "target",
)

_FRACTIONS = frozenset({"mlm_accuracy", "nsp_accuracy", "unigram_baseline", "target"})
_LONGEST_STAGE = 63
"""As the definition has it."""


def read_result(record: ProgressRecord) -> StageResult | None:
    """Return the result in a record; None if it is about something else, or about the model before training."""
    if record.event not in _EVENTS or not record.stage or record.text("when") == "before":
        return None
    # The status would cut it, to the name of another stage perhaps.
    if len(record.stage) > _LONGEST_STAGE:
        return None
    figures = ((name, _read_figure(record, name)) for name in _METRICS)
    metrics = tuple(Metric(name=name, value=_render(value)) for name, value in figures if value is not None)
    if not metrics:
        return None
    step, message = record.count("step"), record.text("message")
    return StageResult(
        stage=record.stage,
        step=step,
        metrics=metrics,
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


def describe_targets(results: Iterable[StageResult]) -> str:
    """Return what became of targets, in words; empty where there were none."""
    return "".join(
        f" {result.stage}: {_on_one_line(result.message)}."
        for result in results
        if result.target_met is not None and result.message is not None
    )


def _read_figure(record: ProgressRecord, name: str) -> float | None:
    value = record.number(name)
    return None if value is not None and name in _FRACTIONS and not 0 <= value <= 1 else value


def _on_one_line(text: str) -> str:
    """Return a text in which nothing looks like a line of the operator's own."""
    return " ".join(text.split())


def _render(value: float) -> str:
    """Return a number as text: counts in full, the rest with six digits."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
