"""What a stage's evaluations have found: read back from the records, judged, and summed up over its runs.

Nothing here computes with a model. What was found is in ``metrics.jsonl``: a run that was killed goes on from a
checkpoint that may be older than the last evaluations, and those are neither made nor reported a second time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bert_job.finetuning import EarlyStoppingSpec
from bert_job.run_stages import FinetuneStage
from bert_job.tasks import MISMATCHED
from bert_trainer.output.metrics import Record, find_evaluations
from bert_trainer.tasks.catalog import Task
from bert_trainer.training.finetuning.run_plan import RunPlan

Scores = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """One seed's run on one rank."""

    number: int
    """Of the runs that follow one another."""
    rank: int
    """0 where all ranks train one model."""
    seed: int


@dataclass(slots=True)
class Findings:
    """The evaluations of a stage so far; the same on every rank."""

    metric: str
    """The one that decides."""
    plan: RunPlan
    by_step: dict[tuple[int, int], Scores] = field(default_factory=dict)
    """By rank and step of the stage."""

    def of_run(self, run: Run) -> dict[int, Scores]:
        """Return a run's evaluations by step of the stage, in order."""
        own = {
            step: scores
            for (rank, step), scores in self.by_step.items()
            if rank == run.rank and self.plan.run_of(step) == run.number
        }
        return dict(sorted(own.items()))

    def value(self, scores: Scores) -> float:
        """Return the deciding metric; below every other where it is not a number."""
        value = scores.get(self.metric, -math.inf)
        return value if math.isfinite(value) else -math.inf

    def is_over(self, run: Run, rule: EarlyStoppingSpec | None, up_to: int) -> bool:
        """Return whether a run's evaluations, up to a step of the stage, have stopped improving."""
        if rule is None:
            return False
        best, without = -math.inf, 0
        for step, scores in self.of_run(run).items():
            if step > up_to:
                break
            value = self.value(scores)
            improved = value > best and value - best >= rule.min_improvement
            best, without = (value, 0) if improved else (best, without + 1)
            if without >= rule.patience:
                return True
        return False

    def best_of(self, run: Run) -> tuple[int, Scores] | None:
        """Return the step and the scores of a run's best evaluation, the first of several."""
        found = self.of_run(run)
        if not found:
            return None
        best = max(found, key=lambda step: (self.value(found[step]), -step))
        return best, found[best]


def deciding_metric(stage: FinetuneStage, task: Task) -> str:
    """Return the metric that decides which evaluation is the best."""
    return stage.metric or task.main_metric


def read_findings(records: Iterable[Record], stage: str, metrics: Iterable[str]) -> dict[tuple[int, int], Scores]:
    """Return the scores of a stage's evaluations by rank and step; damaged records are skipped.

    metrics: names without ``MISMATCHED``.
    """
    names = [name + suffix for name in metrics for suffix in ("", MISMATCHED)]
    found: dict[tuple[int, int], Scores] = {}
    for record in find_evaluations(records, stage, "during"):
        step, rank = record.get("step"), record.get("rank", 0)
        if type(step) is int and type(rank) is int:
            values = {name: record.get(name) for name in names}
            found[rank, step] = {name: float(it) for name, it in values.items() if isinstance(it, int | float)}
    return found


def spread(values: Iterable[float]) -> tuple[float | None, float | None]:
    """Return the mean and the sample standard deviation; None where there is none."""
    known = [value for value in values if math.isfinite(value)]
    mean = statistics.fmean(known) if known else None
    return mean, statistics.stdev(known) if len(known) > 1 else None


def describe_scores(scores: Scores) -> str:
    """Return ``f1 0.889, accuracy 0.84``."""
    return ", ".join(f"{name} {describe_value(value)}" for name, value in scores.items())


def describe_value(value: float) -> str:
    """Return a number with three decimals at most."""
    return f"{round(value, 3):g}"


def run_documents(findings: Findings, runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return what ``results.json`` says of every run."""
    documents = []
    for run in runs:
        evaluations = [
            {"epoch": epoch_of(findings.plan, step), "step": step, "metrics": dict(scores)}
            for step, scores in findings.of_run(run).items()
        ]
        best = findings.best_of(run)
        documents.append(
            {
                "seed": run.seed,
                "rank": run.rank,
                "best": None
                if best is None
                else {"epoch": epoch_of(findings.plan, best[0]), "step": best[0], "metrics": dict(best[1])},
                "evaluations": evaluations,
            }
        )
    return documents


def epoch_of(plan: RunPlan, stage_step: int) -> float:
    """Return the epochs of its run that a step of the stage, counted from 1, completes."""
    return plan.epochs_after(stage_step - plan.run_of(stage_step) * plan.steps_per_run)
