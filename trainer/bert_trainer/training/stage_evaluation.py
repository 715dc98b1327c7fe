"""Evaluations while a stage trains: when one is due, what was found so far, and whether the stage's target is met.

Every rank has the same view, since a stage ends on all of them at once. What was found is in ``metrics.jsonl``: a run
that was killed goes on from a checkpoint that may be older than the last evaluations, and those are neither made nor
reported a second time. The model is the same at that step, so the result would be, too; and where a resumed run is not
bit-identical, a target that was met before the kill stays met.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from bert_job.run_stages import Evaluation, PretrainStage
from bert_trainer.output.metrics import Record, read_metrics
from bert_trainer.training.evaluation import Accuracy
from bert_trainer.training.run_data import StageData
from bert_trainer.training.run_writer import RunWriter


@dataclass(frozen=True, slots=True)
class EvaluationSchedule:
    """Steps after which a stage is evaluated."""

    evaluation: Evaluation | None
    """None: never."""
    global_batch_size: int
    num_samples: int
    """Samples of one epoch of the stage."""
    total_steps: int
    at_end: bool = False
    """Whether the last step is one of them in any case."""

    def is_due(self, step: int) -> bool:
        """Return whether the model is evaluated after a step, counted from 1."""
        return self._num_passed(step) > self._num_passed(step - 1) or (self.at_end and step == self.total_steps)

    def num_left(self, step: int) -> int:
        """Return how many evaluations come after a step, at most one for each step."""
        passed = self._num_passed(self.total_steps) - self._num_passed(step)
        is_extra = self.at_end and self._num_passed(self.total_steps) == self._num_passed(self.total_steps - 1)
        return min(self.total_steps - step, passed + is_extra)

    def _num_passed(self, step: int) -> int:
        """Return how many of the numbers at which an evaluation is due have been reached or passed after a step."""
        if self.evaluation is None:
            return 0
        samples, given = step * self.global_batch_size, self.evaluation
        choices = (
            (Fraction(step), given.every_steps, given.start_steps),
            (Fraction(samples), given.every_samples, given.start_samples),
            (Fraction(samples, self.num_samples), given.every_epochs, given.start_epochs),
        )
        done, every, start = next(choice for choice in choices if choice[1] is not None)
        # The decimals as they were written: 3 * 0.1 epochs in floating point are a hair above 0.3.
        interval = Fraction(repr(every))
        first = interval if start is None else Fraction(repr(start))
        return 0 if done < first else int((done - first) // interval) + 1


@dataclass(slots=True)
class StageEvaluations:
    """The evaluations of one stage, on one rank."""

    stage: PretrainStage
    times: EvaluationSchedule
    measure: Callable[[], Accuracy]
    """Evaluates the model as it is. Collective."""
    judge: Callable[[Accuracy], tuple[float, str | None]]
    """Returns the unigram baseline, and what to say where an accuracy is within its noise; reads shards."""
    writer: RunWriter
    accuracies: dict[int, float]
    """Masked-LM accuracy by step, those included that an earlier attempt has reported."""
    target_met: bool = field(default=False, init=False)
    outcome: str | None = field(default=None, init=False)
    """What became of the target, in words; None while that is open."""
    _last_s: float = field(default=0.0, init=False)

    @classmethod
    def open(
        cls,
        stage: PretrainStage,
        data: StageData,
        measure: Callable[[], Accuracy],
        judge: Callable[[Accuracy], tuple[float, str | None]],
        writer: RunWriter,
    ) -> StageEvaluations:
        """Find what was evaluated before. Collective if the stage has evaluations."""
        found: dict[int, float] = {}
        if stage.evaluation is not None:
            found = writer.on_rank_0(lambda: accuracies_by_step(read_metrics(writer.folder.path), stage.name))
        times = EvaluationSchedule(
            stage.evaluation,
            stage.global_batch_size,
            data.order.num_samples,
            data.total_steps,
            at_end=stage.target is not None,
        )
        return cls(stage, times, measure, judge, writer, found)

    def remaining_s(self, step: int) -> float:
        """Return the seconds that the evaluations still to come will take if each takes as long as the last one."""
        return self.times.num_left(step) * self._last_s

    def run(self, step: int) -> None:
        """Evaluate after a step and report it, unless that was done before. Collective."""
        before = self.accuracies.get(step)
        if before is not None:
            self._judge(step, before)
            return
        started_at_s = time.monotonic()
        accuracy = self.measure()
        self._last_s = time.monotonic() - started_at_s
        self.accuracies[step] = accuracy.masked_lm
        self._judge(step, accuracy.masked_lm)
        self.writer.on_rank_0(lambda: self._report(step, accuracy))

    def _judge(self, step: int, accuracy: float) -> None:
        if self.stage.target is None:
            return
        wanted = self.stage.target.masked_lm_accuracy
        self.target_met = accuracy >= wanted
        # "0.72", but "1" for 1.0.
        goal = str(wanted).removesuffix(".0")
        if self.target_met:
            self.outcome = f"target met at step {step}: {format_against_target(accuracy, wanted)} >= {goal}"
        elif step == self.times.total_steps:
            best = max(self.accuracies, key=lambda number: (self.accuracies[number], -number))
            found = f"best {format_against_target(self.accuracies[best], wanted)} at step {best} of {step}"
            self.outcome = f"target not met: {found}, wanted {goal}"

    def _report(self, step: int, accuracy: Accuracy) -> None:
        target = self.stage.target
        # Of the last one alone: earlier ones are on their way.
        baseline, verdict = (None, None) if self.times.num_left(step) else self.judge(accuracy)
        self.writer.evaluated(
            stage=self.stage.name,
            when="during",
            step=step,
            steps=self.times.total_steps,
            trained_samples=step * self.times.global_batch_size,
            mlm_accuracy=accuracy.masked_lm,
            nsp_accuracy=accuracy.next_sentence,
            nsp_baseline=accuracy.next_sentence_baseline,
            mlm_loss=accuracy.masked_lm_loss,
            unigram_baseline=baseline,
            samples=accuracy.samples,
            masked_tokens=accuracy.masked_tokens,
            verdict=verdict,
            seconds=self._last_s,
            target=None if target is None else target.masked_lm_accuracy,
            target_met=None if target is None else str(self.target_met).lower(),
            message=self.outcome,
        )


def format_against_target(accuracy: float, wanted: float) -> str:
    """Format an accuracy with four digits, or more if rounding would cross the target."""
    rounded = (f"{accuracy:.{digits}f}" for digits in range(4, 17))
    return next((text for text in rounded if (float(text) >= wanted) == (accuracy >= wanted)), repr(accuracy))


def accuracies_by_step(records: Iterable[Record], stage: str) -> dict[int, float]:
    """Return the masked-LM accuracy of a stage's evaluations while it trained, by step; damaged records are skipped."""
    found: dict[int, float] = {}
    for record in records:
        if record.get("stage") != stage:
            continue
        step, accuracy = record.get("step"), record.get("mlm_accuracy")
        if record.get("event") != "evaluated":
            continue
        if type(step) is int and isinstance(accuracy, int | float) and 0 <= accuracy <= 1:
            found[step] = float(accuracy)
    return found
