"""The training loop: every step of a stage, whatever it trains. Reads top to bottom.

Of a step: the objective reads it, the ranks agree on what all of them have to know, ``learner.take_step`` computes it,
``Interval`` measures it, ``CheckpointSchedule`` decides about a checkpoint, and ``RunWriter.save`` writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from bert_trainer.errors import TrainerError, TrainingUnhealthy
from bert_trainer.model.batch import Batch
from bert_trainer.optim.optimizer import StepResult
from bert_trainer.parallel.reduction import ReductionTimes
from bert_trainer.system.heartbeat import watched
from bert_trainer.training.health import HINT, Finding
from bert_trainer.training.interval import Interval
from bert_trainer.training.learner import take_step
from bert_trainer.training.objective import Objective
from bert_trainer.training.session import Session
from bert_trainer.training.stop_signal import StopSignal


@dataclass(frozen=True, slots=True)
class _Agreed:
    """What all ranks know before a forward pass."""

    masked_tokens: float
    """Of the step, which the loss is divided by."""
    stops: bool
    """Whether a rank was asked to stop: all of them leave at the same step."""
    in_time: bool
    """Whether rank 0's clock asks for a checkpoint, since collecting ZeRO-1's moments for one is collective."""
    troubled: bool
    """Whether a rank could not read the step."""


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """Takes the steps of an objective. Every method is collective."""

    session: Session
    objective: Objective[Any]
    interval: Interval
    stop: StopSignal

    def run(self) -> None:
        """Train until the objective is at its end.

        Raises:
            Stopped: on request, at the same step on every rank, with a checkpoint of that step.
            TrainingUnhealthy, RanksDisagree: what health says of a step.
            TrainerError: whatever else ends the run.
        """
        objective, interval, writer = self.objective, self.interval, self.session.writer
        profiler, name = self.session.profiler, objective.stage.name
        at_end = False
        with objective.reader:
            while not at_end:
                profiler.start_step(name, objective.step + 1)
                result, in_time = self._take()
                samples_before = objective.samples
                watched().step()
                objective.advance(objective.health.why_skipped)
                writer.has_trained = True

                at_end = objective.is_at_end
                is_reported = objective.step % self.session.config.logging.every_steps == 0 or at_end
                if is_reported:
                    interval.publish(objective, result)
                if objective.is_evaluated():
                    with profiler.paused(), interval.paused(), watched().activity(f"the evaluation of {name}"):
                        at_end = objective.evaluate() or at_end
                    if at_end and not is_reported:
                        interval.publish(objective, result)
                if objective.saves.is_due(objective.step, samples_before, objective.samples, in_time=in_time) or at_end:
                    self._agree()  # health judges the last step before it is saved
                    self._save(at_end=at_end)
                profiler.end_step()
                # Checkpoints are written in the background: a write that failed ends the run at the end of this step.
                writer.raise_if_failed()

    def _next_batches(self) -> tuple[Sequence[Batch], _Agreed]:
        """Return this rank's micro-batches of the next step, and what all ranks have agreed on before it."""
        objective, profiler = self.objective, self.session.profiler
        while True:
            waited_before_s = objective.reader.waited_s
            with profiler.part("data"), objective.learner.compute_timer.on_host():
                read, error = ([], None) if objective.is_over else objective.read()
                batches = [batch.to(self.session.compute.device) for batch in read]
            self.interval.add_wait(objective.reader.waited_s - waited_before_s)
            with profiler.part("reduction"):
                agreed = self._agree(
                    batches,
                    stopped=self.stop.received,
                    in_time=objective.saves.interval_is_over(),
                    error=error,
                )
            if not agreed.troubled:
                return batches, agreed
            objective.resolve(error)

    def _agree(
        self,
        batches: Sequence[Batch] = (),
        *,
        stopped: bool = False,
        in_time: bool = False,
        error: TrainerError | None = None,
    ) -> _Agreed:
        """Tell all ranks what they have to know, by one all-reduce of seven numbers, and judge the last step.

        Raises:
            TrainingUnhealthy, RanksDisagree: what health says of it, where ranks train one model together.
        """
        health, world = self.objective.health, self.session.world
        masked = sum(batch.num_masked for batch in batches)
        own = [0.0, 0.0, 0.0] if self.objective.is_split_by_rank else health.own_numbers
        summed = world.sum_numbers([masked, stopped, in_time, error is not None, *own])
        if not self.objective.is_split_by_rank:
            for finding in health.judge_last_step(summed[4:], world.size):
                self._apply_remedy(finding)
        return _Agreed(summed[0], *(bool(number) for number in summed[1:4]))

    def _apply_remedy(self, finding: Finding | None) -> None:
        """Report a finding, if any, and act on its policy; skipped updates have been skipped already.

        Raises:
            TrainingUnhealthy: the policy says Stop; on every rank alike.
        """
        if finding is None:
            return
        self.session.writer.event(
            "unhealthy",
            stage=finding.stage,
            step=finding.last_step,
            finding=finding.name,
            action=finding.action,
            message=finding.message,
        )
        if finding.action == "Stop":
            raise TrainingUnhealthy(f"{finding.stage}: {finding.message}", hint=HINT)
        if finding.name == "lossScale":
            # What the overflow has halved it from: lower, it would lose more than it saves.
            self.objective.learner.scaler.scale *= 2

    def _take(self) -> tuple[StepResult | None, bool]:
        """Compute the next step, on a rank that waits for others none; and return whether a checkpoint is due in time.

        Its batches are freed at the end, before anything is evaluated or gathered.
        """
        objective, learner = self.objective, self.objective.learner
        batches, agreed = self._next_batches()
        if agreed.stops:
            self._save_and_stop()
        result, finding = None, None
        if objective.is_over:
            self.interval.add_step(0, ReductionTimes(0, 0.0, 0.0))
        else:

            def loss_of(batch: Batch) -> Tensor:
                loss, sums = objective.loss(batch, agreed.masked_tokens)
                self.interval.add(sums, batch)
                return loss

            rate, largest_norm = objective.learning_rate(), objective.health.largest_norm
            result, times = take_step(learner, batches, loss_of, rate, self.session.profiler, largest_norm=largest_norm)
            self.interval.add_step(objective.reader.most_tokens, times)
            self.interval.learning_rate = rate
            finding = objective.health.judge_step(objective.step + 1, result, learner.scaler)
        if objective.is_split_by_rank:
            self._act_together(finding)
        return result, agreed.in_time

    def _act_together(self, finding: Finding | None) -> None:
        """Act on what is found of this rank's own model, and on all ranks where one of them ends: none waits for ever.

        Raises:
            TrainingUnhealthy: a rank's policy says Stop.
        """
        objective, world = self.objective, self.session.world
        error: TrainingUnhealthy | None = None
        try:
            self._apply_remedy(finding)
        except TrainingUnhealthy as raised:
            error = raised
        failed = np.zeros(world.size)
        failed[world.rank] = error is not None
        by_rank = world.sum_numbers(failed.tolist())
        if any(by_rank) and error is None:
            message = f"{objective.stage.name}: step {objective.step + 1} is unhealthy on rank {by_rank.index(1)}"
            error = TrainingUnhealthy(message, hint=HINT)
        if error is not None:
            raise error

    def _save(self, *, at_end: bool) -> None:
        """Save a checkpoint; the next one is due an interval from here."""
        objective = self.objective
        with (
            self.session.profiler.part("checkpoint"),
            self.interval.paused_time.saving(),
            watched().activity(f"a checkpoint of {objective.stage.name}"),
        ):
            position = objective.position(at_end=at_end)
            self.session.writer.save(position, objective.learner.gather_state(), objective.health_state())
        objective.saves.restart()

    def _save_and_stop(self) -> None:
        """Save, and leave on every rank only when the checkpoint is in place."""
        objective, writer = self.objective, self.session.writer
        # On all ranks, before rank 0 goes its own way: with ZeRO-1 it is collective.
        with watched().activity(f"a checkpoint of {objective.stage.name}"):
            state = objective.learner.gather_state() if objective.has_state else None
            position = objective.position()

            def save() -> None:
                if state is not None:
                    writer.save(position, state, objective.health_state())
                writer.leave(position)

            writer.on_rank_0(save)
