"""A run's progress, and the metrics of the steps between two reports."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from bert_trainer.checkpoints.checkpoint import Position
from bert_trainer.optim.optimizer import StepResult
from bert_trainer.parallel.reduction import ReductionTimes
from bert_trainer.training.finetuning.data import StepReader
from bert_trainer.training.finetuning.results import Run
from bert_trainer.training.finetuning.run_plan import RunPlan
from bert_trainer.training.finetuning.task_learner import TaskLearner
from bert_trainer.training.interval import PausedTime, rank_costs
from bert_trainer.training.run_writer import RunWriter
from bert_trainer.training.stragglers import Stragglers


@dataclass(slots=True)
class RunProgress:
    """Where a run is."""

    index: int
    """Of the stage."""
    stage: str
    run: Run
    step: int
    """Taken in this run."""
    sample_hash: str
    """Chained SHA-256 of the run's rows so far; on rank 0, elsewhere empty."""

    def advance(self, writer: RunWriter, reader: StepReader, *, skipped: str | None = None) -> None:
        """Count a step; rank 0 also hashes the numbers of its rows. skipped: as ``RunWriter.chain_samples``."""
        step, number = self.step, self.stage_step(reader.plan)
        self.sample_hash = writer.chain_samples(
            self.stage, number, self.sample_hash, lambda: reader.numbers_of(step), skipped=skipped
        )
        self.step += 1

    def stage_step(self, plan: RunPlan) -> int:
        """Return the steps of the stage that are behind this one, those included that earlier runs saved."""
        return self.run.number * plan.steps_per_run + self.step

    def position(self, learner: TaskLearner, plan: RunPlan, *, at_end: bool = False) -> Position:
        """Return what a checkpoint records. at_end: the run is over, whatever its length was meant to be."""
        optimizer, scaler = learner.optimizer, learner.scaler
        return Position(
            stage_index=self.index,
            stage=self.stage,
            # A run that is stopped early jumps to the first step of the next one.
            step=(self.run.number + 1) * plan.steps_per_run if at_end else self.stage_step(plan),
            total_steps=plan.total_steps,
            num_applied=optimizer.num_applied,
            samples_seen=plan.rows_before(self.step),
            sample_hash=self.sample_hash,
            loss_scale=scaler.scale,
            finite_steps=scaler.finite_steps,
        )


class RunInterval:
    """Losses, counts and times of one logging interval on this rank; tensors stay on the device until ``publish``."""

    def __init__(self, hosts: Sequence[str], paused_time: PausedTime) -> None:
        """Begin with a run. hosts: of all ranks. paused_time: of the stage, which may have several runs."""
        self.learning_rate = 0.0
        self._paused_time = paused_time
        self._stragglers = Stragglers(hosts)
        self._clear()

    def _clear(self) -> None:
        self._losses: list[Tensor] = []
        self._rows = self._tokens = self._most_tokens = self._steps = 0
        self._reductions: list[ReductionTimes] = []
        self._started_at_s = time.monotonic()

    def add(self, loss: Tensor, *, rows: int, tokens: int) -> None:
        """Add one micro-batch. rows, tokens: how many real ones it has."""
        # Detached, or it would keep the micro-batch's graph and activations alive until the report.
        self._losses.append(loss.detach())
        self._rows += rows
        self._tokens += tokens

    def add_step(self, most_tokens: int, times: ReductionTimes) -> None:
        """Add what a step cost. most_tokens: of its busiest rank."""
        self._steps += 1
        self._most_tokens += most_tokens
        self._reductions.append(times)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave an evaluation's time out of the interval, whose throughput is that of training, and add it up."""
        began_at_s = time.monotonic()
        yield
        took_s = time.monotonic() - began_at_s
        self._started_at_s += took_s
        self._paused_time.evaluation_s += took_s

    def publish(
        self,
        learner: TaskLearner,
        progress: RunProgress,
        plan: RunPlan,
        result: StepResult | None,
        writer: RunWriter,
        figures: Mapping[str, int],
        *,
        started_at_s: float,
        evaluations_s: float,
    ) -> None:
        """Sum over the ranks and report; collective.

        Args:
            learner: What is trained.
            progress: Where.
            plan: Of the stage.
            result: Of the last step; None on a rank whose own run is over.
            writer: Of the run.
            figures: Of the health of this rank's run.
            started_at_s: When this attempt began the stage.
            evaluations_s: What evaluations still to come are expected to take.
        """
        world = learner.all_ranks
        now_s = time.monotonic()  # before anything that waits for the device or for other ranks
        costs, of_ranks = rank_costs(world, learner, self._reductions, self._tokens, self._stragglers)
        loss = float(torch.stack(self._losses).double().sum()) if self._losses else 0.0
        # One model, one count; ranks with models of their own add theirs.
        counted = figures.values() if learner.is_split_by_rank or world.rank == 0 else (0 for _ in figures)
        own = [loss, self._rows, self._tokens, time.process_time(), *counted]
        loss, rows, tokens, cpu_s, *totals = world.sum_numbers(own)
        elapsed_s = max(now_s - self._started_at_s, 1e-9)
        step, single_rank = progress.stage_step(plan), learner.world.size == 1
        steps_left = plan.total_steps - step
        writer.progress(
            {
                "stage": progress.stage,
                "step": step,
                "steps": plan.total_steps,
                # Without synchronized gradients the figures are those of several seeds together.
                "seed": None if learner.is_split_by_rank else progress.run.seed,
                "epoch": plan.epochs_after(progress.step),
                "loss": loss / max(rows, 1),
                "learning_rate": self.learning_rate,
                "micro_batch_size": learner.stage.micro_batch_size,
                "gradient_norm": None if result is None else result.gradient_norm,
                "loss_scale": learner.scaler.scale if learner.scaler.enabled else None,
                "sequences_per_s": rows / elapsed_s,
                "real_tokens_per_s": tokens / elapsed_s,
                "step_s": elapsed_s / max(self._steps, 1),
                "sample_hash": progress.sample_hash[:16],
                "elapsed_s": now_s - started_at_s,
                **self._paused_time.figures(),
                "remaining_s": steps_left * elapsed_s / max(self._steps, 1) + evaluations_s,
                "interval_s": elapsed_s,
                "interval_sequences": int(rows),
                "interval_tokens": int(tokens),
                "cpu_s": cpu_s,
                "token_imbalance": None if single_rank else self._most_tokens * learner.world.size / tokens,
                **costs,
                **{name: int(total) for name, total in zip(figures, totals, strict=True)},
            },
            of_ranks,
        )
        self._clear()
