"""The evaluations of a stage while it trains: outputs, scores, the best one's weights, records.

All ranks have the same view, since runs end on all of them at once. The weights of a new best are in place before its
record is written: a kill in between makes the same evaluation once more, and it writes the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bert_job.run_stages import FinetuneStage
from bert_job.tasks import MISMATCHED
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.errors import InputError, TrainerError
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.rank_by_rank import to_rank_0
from bert_trainer.tasks.catalog import Task
from bert_trainer.training.device import Compute
from bert_trainer.training.finetuning.best import Best, best_folder, find_best, keep_best
from bert_trainer.training.finetuning.data import StageRows, TaskTexts, TextSplit
from bert_trainer.training.finetuning.outputs import head_outputs
from bert_trainer.training.finetuning.results import (
    Findings,
    Run,
    Scores,
    deciding_metric,
    describe_scores,
    describe_value,
    epoch_of,
    read_findings,
)
from bert_trainer.training.finetuning.run_plan import RunPlan
from bert_trainer.training.finetuning.task_learner import TaskLearner
from bert_trainer.training.run_writer import RunWriter


@dataclass(slots=True)
class Evaluations:
    """Measures the models of a stage, on one rank."""

    stage: FinetuneStage
    data: StageRows
    texts: TaskTexts | None
    """On rank 0."""
    plan: RunPlan
    learner: TaskLearner
    compute: Compute
    writer: RunWriter
    findings: Findings
    majority: Scores
    """The baselines by the names of the metrics."""
    kept: Best | None
    """What the best weights so far are; on rank 0."""
    last_s: float = field(default=0.0, init=False)
    """What the last evaluation took."""

    @classmethod
    def open(
        cls,
        stage: FinetuneStage,
        data: StageRows,
        texts: TaskTexts | None,
        plan: RunPlan,
        learner: TaskLearner,
        compute: Compute,
        writer: RunWriter,
    ) -> Evaluations:
        """Find what was evaluated before. Collective."""
        kept: list[Best | None] = [None]

        def find() -> tuple[dict[tuple[int, int], Scores], Scores]:
            assert texts is not None, "runs on rank 0"
            output = writer.folder.path
            kept[0] = find_best(output, stage)
            records = read_metrics(output)
            findings.by_step = read_findings(records, stage.name, data.task.metrics)
            _check_kept(kept[0], findings, best_folder(output, stage))
            return findings.by_step, majority_of(texts)

        findings = Findings(deciding_metric(stage, data.task), plan)
        findings.by_step, majority = writer.on_rank_0(find)
        return cls(stage, data, texts, plan, learner, compute, writer, findings, majority, kept[0])

    @property
    def have_found(self) -> bool:
        """Whether anything was evaluated, by this attempt or before; on rank 0."""
        return self.kept is not None or bool(self.findings.by_step)

    def runs_of(self, number: int) -> list[Run]:
        """Return the runs that go on at the same time: one, or without synchronised gradients one on every rank."""
        seed, seeds = self.stage.run_seeds[number], len(self.stage.run_seeds)
        ranks = self.learner.all_ranks.size if self.learner.is_split_by_rank else 1
        return [Run(number, rank, seed + rank * seeds) for rank in range(ranks)]

    def is_over(self, run: Run, up_to: int) -> bool:
        """Return whether a run is to be stopped, after a step of the stage."""
        return self.findings.is_over(run, self.stage.early_stopping, up_to)

    def run(self, number: int, steps: int) -> None:
        """Evaluate after so many steps of a run, and report it, unless that was done before. Collective."""
        step = number * self.plan.steps_per_run + steps
        # A run that was stopped before, while others go on, is not looked at any more.
        missing = [
            run
            for run in self.runs_of(number)
            if (run.rank, step) not in self.findings.by_step and not self.is_over(run, step - 1)
        ]
        if not missing:
            return
        began_at_s = time.monotonic()
        own = [self.outputs(samples) for samples in self.data.validations]
        scores = [self._score(run, own) for run in missing]
        self.last_s = time.monotonic() - began_at_s
        new = self.writer.on_rank_0(lambda: self._find_new_best(scores))
        if new is not None:
            tensors = self.learner.values_of(missing[new].rank)
            best = self._best(missing[new], step, scores[new])

            def keep() -> None:
                assert tensors is not None, "runs on rank 0"
                keep_best(self.writer.folder, self.stage, best, tensors)
                self.kept = best

            self.writer.on_rank_0(keep)
        self.writer.on_rank_0(lambda: self._report(missing, step, scores))
        self.findings.by_step |= {(run.rank, step): found for run, found in zip(missing, scores, strict=True)}

    def outputs(self, samples: RaggedSamples, *, alike: bool = False) -> Tensor:
        """Return the outputs of a split. alike: all ranks have the same weights, whatever they train."""
        learner = self.learner
        return head_outputs(
            self.compute,
            learner.model,
            samples,
            sequence_length=self.stage.sequence_length,
            micro_batch_size=self.stage.micro_batch_size,
            world=learner.all_ranks if alike else learner.world,
        )

    def _score(self, run: Run, own: Sequence[Tensor]) -> Scores:
        """Score a run's outputs on rank 0. Collective. own: this rank's, of every split."""
        outputs: list[Tensor | None] = list(own)
        if self.learner.is_split_by_rank:
            world = self.learner.all_ranks
            of_rank = [to_rank_0(world, part.view(-1), run.rank) for part in own]
            outputs = [None if it is None else it.view(part.shape) for it, part in zip(of_rank, own, strict=True)]

        def score() -> Scores:
            assert self.texts is not None, "runs on rank 0"
            found: dict[str, float] = {}
            for number, (part, values) in enumerate(zip(self.texts.validations, outputs, strict=True)):
                assert values is not None, "runs on rank 0"
                scores = score_outputs(self.data.task, self.stage, part, values.numpy())
                found |= {name + suffix_of(number): value for name, value in scores.items()}
            return found

        return self.writer.on_rank_0(score)

    def _find_new_best(self, scores: Sequence[Scores]) -> int | None:
        """Return which of several evaluations is the best so far; None if none is. On rank 0."""
        values = [self.findings.value(one) for one in scores]
        number = max(range(len(values)), key=lambda at: (values[at], -at))
        # The record beside the weights decides, not the reports: after a kill it may be ahead of them.
        return number if self.kept is None or values[number] > self.findings.value(self.kept.metrics) else None

    def _best(self, run: Run, step: int, scores: Scores) -> Best:
        texts, task = self.texts, self.data.task
        return Best(
            task=task.name,
            labels=task.labels,
            metric=self.findings.metric,
            seed=run.seed,
            rank=run.rank,
            epoch=epoch_of(self.plan, step),
            step=step,
            metrics=dict(scores),
            majority=dict(self.majority),
            train_examples=self.data.num_examples[0],
            train_rows=len(self.data.train),
            validation_examples=self.data.num_examples[1],
            lower_case=True if texts is None else texts.lower_case,
        )

    def _report(self, runs: Sequence[Run], step: int, scores: Sequence[Scores]) -> None:
        metric = self.findings.metric
        for run, found in zip(runs, scores, strict=True):
            epoch, is_one_of_many = epoch_of(self.plan, step), self.learner.is_split_by_rank
            who = f"seed {run.seed}" + (f", rank {run.rank}" if is_one_of_many else "")
            baseline = self.majority.get(metric)
            self.writer.evaluated(
                stage=self.stage.name,
                when="during",
                seed=run.seed,
                rank=run.rank if is_one_of_many else None,
                epoch=epoch,
                step=step,
                steps=self.plan.total_steps,
                metric=metric,
                **found,
                seconds=self.last_s,
                message=f"Evaluation in {self.stage.name} ({who}, epoch {describe_value(epoch)} of "
                f"{describe_value(float(self.plan.epochs))}): {describe_scores(found)}"
                + ("" if baseline is None else f"; majority {describe_value(baseline)}"),
            )


def _check_kept(kept: Best | None, findings: Findings, folder: Path) -> None:
    """Refuse best weights that are gone, or older than the records: a later and worse evaluation would replace them."""
    if not findings.by_step:
        return
    best, value = max(
        ((step, findings.value(scores)) for (_, step), scores in findings.by_step.items()), key=lambda it: it[1]
    )
    hint = "restore the folder from a copy, or start over (output.ifExists: New)"
    if kept is None:
        raise InputError(f"{folder}: is missing, but step {best} was evaluated, whose weights were kept", hint=hint)
    if findings.value(kept.metrics) < value:
        raise InputError(
            f"{folder}: its {findings.metric} is {kept.value:g}, but step {best} was evaluated at {value:g}", hint=hint
        )


def suffix_of(number: int) -> str:
    """Return what the names of a validation split's metrics end in."""
    return "" if number == 0 else MISMATCHED


def score_outputs(task: Task, stage: FinetuneStage, part: TextSplit, outputs: NDArray[np.float32]) -> Scores:
    """Return a split's metrics.

    Raises:
        TrainerError: the outputs are not finite.
    """
    # scikit-learn, which takes a second to load: on rank 0 alone.
    from bert_trainer.tasks.scoring import predict, score

    if not np.isfinite(outputs).all():
        raise TrainerError(
            f"{stage.name}: the model's outputs for {part.split.name} are not finite",
            hint="lower the learning rate or lengthen the warm-up; with fp16, use bf16 or fp32",
        )
    found = score(predict(part.rows, part.split, task, outputs, stage), part.split, task)
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def majority_of(texts: TaskTexts) -> Scores:
    """Return the baselines of all validation splits; on rank 0."""
    from bert_trainer.tasks.scoring import majority_scores

    found: dict[str, float] = {}
    for number, part in enumerate(texts.validations):
        scores = majority_scores(texts.examples, part.split)
        found |= {name + suffix_of(number): float(value) for name, value in scores.items() if math.isfinite(value)}
    return found
