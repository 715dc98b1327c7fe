"""The arithmetic of a finetune stage: its runs, their epochs and steps, and which rows a step takes.

Runs follow one another on one counter of steps. A batch ends with its epoch, as in transformers' Trainer: the last
step of an epoch has what is left of its rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from bert_job.run_stages import FinetuneStage


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Steps are counted from 0 in each run, unless they are the stage's."""

    num_rows: int
    """To train on."""
    rows_per_step: int
    epochs: Fraction
    num_runs: int
    """One after the other."""
    evaluate_every: Fraction
    """Epochs."""

    @classmethod
    def of(cls, stage: FinetuneStage, num_rows: int) -> RunPlan:
        """Return the plan of a stage. num_rows: at least 1."""
        # The decimals as they were written: 3 * 0.1 epochs in floating point are a hair above 0.3.
        every = Fraction(repr(stage.evaluate_every_epochs))
        return cls(num_rows, stage.global_batch_size, Fraction(repr(stage.epochs)), len(stage.run_seeds), every)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every row is seen once."""
        return -(-self.num_rows // self.rows_per_step)

    @property
    def steps_per_run(self) -> int:
        """Of a run that is not stopped early."""
        return math.ceil(self.epochs * self.steps_per_epoch)

    @property
    def total_steps(self) -> int:
        """Of the stage."""
        return self.num_runs * self.steps_per_run

    def rows_of(self, step: int) -> tuple[int, int]:
        """Return the first row of a step and the one behind its last, as places in the endless order of the rows."""
        epoch, number = divmod(step, self.steps_per_epoch)
        start = epoch * self.num_rows + number * self.rows_per_step
        return start, min(start + self.rows_per_step, (epoch + 1) * self.num_rows)

    def rows_before(self, step: int) -> int:
        """Return the rows that a run has seen before a step."""
        return self.rows_of(step)[0]

    def epochs_after(self, steps: int) -> float:
        """Return the passes over the rows that some steps of a run are."""
        return float(Fraction(steps, self.steps_per_epoch))

    def is_evaluated(self, steps: int) -> bool:
        """Return whether the model is evaluated after so many steps of a run."""
        return self._num_passed(steps) > self._num_passed(steps - 1) or steps == self.steps_per_run

    def evaluations_left(self, stage_step: int) -> int:
        """Return how many evaluations come after a step of the stage, if no run is stopped early."""
        runs, steps = divmod(stage_step, self.steps_per_run)
        return (self.num_runs - runs) * self._num_evaluations(self.steps_per_run) - self._num_evaluations(steps)

    def run_of(self, stage_step: int) -> int:
        """Return the run that a step of the stage, counted from 1, belongs to."""
        return (stage_step - 1) // self.steps_per_run

    def _num_evaluations(self, steps: int) -> int:
        passed = min(self._num_passed(steps), steps)
        is_extra = steps == self.steps_per_run and self._num_passed(steps) == self._num_passed(steps - 1)
        return passed + is_extra

    def _num_passed(self, steps: int) -> int:
        return int(Fraction(steps, self.steps_per_epoch) // self.evaluate_every)
