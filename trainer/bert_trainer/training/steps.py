"""The steps of a pretraining stage: what the ranks agree on, the forward and backward passes, the update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from bert_job.run_config import RunConfig
from bert_trainer.errors import TrainerError
from bert_trainer.model.batch import Batch
from bert_trainer.model.bert import Bert
from bert_trainer.optim.optimizer import StepResult
from bert_trainer.optim.schedule import learning_rate
from bert_trainer.parallel.world import World
from bert_trainer.system.heartbeat import watched
from bert_trainer.training.checkpoint_schedule import CheckpointSchedule
from bert_trainer.training.data_loader import StageReader
from bert_trainer.training.device import Compute
from bert_trainer.training.findings import apply_remedy
from bert_trainer.training.health import Health
from bert_trainer.training.interval import Interval
from bert_trainer.training.learner import Learner, take_step
from bert_trainer.training.profiling import Profiler
from bert_trainer.training.run_writer import RunWriter
from bert_trainer.training.stage_progress import StageProgress
from bert_trainer.training.stop_signal import StopSignal
from bert_trainer.training.unreadable_shards import read_step, resolve_unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Runs the steps of one stage. Every method is collective."""

    progress: StageProgress
    reader: StageReader
    learner: Learner[Bert]
    compute: Compute
    world: World
    writer: RunWriter
    profiler: Profiler
    interval: Interval
    health: Health
    stop: StopSignal
    saves: CheckpointSchedule
    config: RunConfig
    passes: int
    """Micro-batches of a step, over all ranks."""

    def take(self) -> tuple[StepResult, bool]:
        """Run the next step.

        Returns:
            What became of it, and whether the clock asks for a checkpoint.

        Raises:
            Stopped: on request, before the step.
            TrainingUnhealthy, RanksDisagree: what health says of the step before.
        """
        progress, learner, health = self.progress, self.learner, self.health
        batches, (masked_tokens, stops, in_time, *of_health) = self._next_batches()
        self._act_on_health(of_health)
        if stops:
            self._save_and_stop()
        result = train_step(
            progress,
            learner,
            self.compute,
            batches,
            self.interval,
            self.profiler,
            seed=self.config.seed,
            masked_tokens=masked_tokens,
            passes=self.passes,
            largest_norm=health.largest_norm,
        )
        health.judge_step(progress.step + 1, result, learner.scaler)
        self.interval.add_busiest_rank(self.reader.most_tokens)
        return result, bool(in_time)

    def check_health(self) -> None:
        """Judge the last step before it is saved.

        Raises:
            TrainingUnhealthy, RanksDisagree: what it says.
        """
        # All of the numbers: a library may add one in another place in another order.
        self._act_on_health(_agree(self.world, self.health)[-3:])

    def _act_on_health(self, summed: Sequence[float]) -> None:
        for finding in self.health.judge_last_step(summed, self.world.size):
            apply_remedy(finding, self.writer.event, self.learner.scaler)

    def _next_batches(self) -> tuple[list[Batch], list[float]]:
        """Return this rank's micro-batches of the next step, and what all ranks have agreed on before it.

        As ``_agree`` returns it, without troubles: those are settled here.
        """
        skips = self.config.dataset.on_unreadable_shard == "Skip"
        while True:
            with self.profiler.part("data"), self.learner.compute_timer.on_host():
                read, error = read_step(self.reader)
                batches = [batch.to(self.compute.device) for batch in read]
            with self.profiler.part("reduction"):
                masked_tokens, stops, in_time, troubles, *of_health = _agree(
                    self.world,
                    self.health,
                    batches,
                    stopped=self.stop.received,
                    in_time=self.saves.interval_is_over(),
                    error=error,
                )
            if not troubles:
                return batches, [masked_tokens, stops, in_time, *of_health]
            resolve_unreadable(error, self.reader, self.progress, self.world, self.writer, skips=skips)

    def save(self, *, at_end: bool) -> None:
        """Save a checkpoint; the next one is due an interval from here. at_end: of the stage."""
        with (
            self.profiler.part("checkpoint"),
            self.interval.paused_time.saving(),
            watched().activity(f"a checkpoint of {self.progress.stage.name}"),
        ):
            position = self.progress.position(self.learner, at_end=at_end)
            self.writer.save(position, self.learner.gather_state(), self.health.state())
        self.saves.restart()

    def _save_and_stop(self) -> None:
        """Save, and leave on every rank only when the checkpoint is in place."""
        # On all ranks, before rank 0 goes its own way: with ZeRO-1 it is collective.
        with watched().activity(f"a checkpoint of {self.progress.stage.name}"):
            state = self.learner.gather_state()
            position = self.progress.position(self.learner)

            def save() -> None:
                self.writer.save(position, state, self.health.state())
                self.writer.leave(position)

            self.writer.on_rank_0(save)


def _agree(
    world: World,
    health: Health,
    batches: Sequence[Batch] = (),
    *,
    stopped: bool = False,
    in_time: bool = False,
    error: TrainerError | None = None,
) -> list[float]:
    """Return what all ranks have to know before a forward pass, by one all-reduce of seven numbers.

    Returns:
        The masked tokens that the loss is divided by; how many ranks were asked to stop, so that all of them leave at
        the same step; whether rank 0's clock asks for a checkpoint, since collecting ZeRO-1's moments for one is
        collective; how many ranks could not read the step; and three that ``Health.judge_last_step`` takes.
    """
    masked = sum(batch.num_masked for batch in batches)
    return world.sum_numbers([masked, stopped, in_time, error is not None, *health.own_numbers])


def train_step(
    progress: StageProgress,
    learner: Learner[Bert],
    compute: Compute,
    batches: Sequence[Batch],
    interval: Interval,
    profiler: Profiler,
    *,
    seed: int,
    masked_tokens: float,
    passes: int,
    largest_norm: float = math.inf,
) -> StepResult:
    """Accumulate gradients over micro-batches, reduce them once, update.

    Args:
        progress: Of the stage, before this step.
        learner: What is trained.
        compute: How precisely.
        batches: This rank's micro-batches, on the device.
        interval: Collects the losses without waiting for the device.
        profiler: Times the parts.
        seed: Of dropout.
        masked_tokens: Masked tokens of the whole step, over all ranks.
        passes: Micro-batches of the whole step, over all ranks.
        largest_norm: Gradients of a larger one are not applied.
    """
    stage = progress.stage

    def loss_of(batch: Batch) -> Tensor:
        # Dropout is a function of seed, stage, step and sample number, so that a resumed run, or another number of
        # ranks, drops the same elements. The stage's index in the high bits keeps phases apart.
        dropout = batch.dropout_keys(seed, (progress.index << 32) + progress.step)
        with compute.autocast():
            sums = learner.model(batch, dropout)
        interval.add(sums, rows=batch.num_rows, tokens=batch.num_tokens, masked=batch.num_masked)
        # Ranks add their gradients: so the loss is divided by counts of the whole step, and a step without any masked
        # token divides by 1.
        if stage.loss_normalization == "global":
            loss = sums.masked_lm / max(masked_tokens, 1) + sums.next_sentence / stage.global_batch_size
        else:
            loss = (sums.masked_lm / max(batch.num_masked, 1) + sums.next_sentence / batch.num_rows) / passes
        return loss  # type: ignore[no-any-return]

    # The schedule counts applied updates: a step that fp16 overflow skips does not advance it.
    rate = learning_rate(stage, learner.optimizer.num_applied, progress.data.total_steps)
    result, times = take_step(learner, batches, loss_of, rate, profiler, largest_norm=largest_norm)
    interval.add_reduction(times)
    interval.learning_rate = rate
    return result
