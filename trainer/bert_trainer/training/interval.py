"""The metrics of the steps between two reports, gathered without synchronizing with the device. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from bert_trainer.model.batch import Batch
from bert_trainer.model.losses import LossSums
from bert_trainer.optim.optimizer import StepResult
from bert_trainer.output.metrics import RankFigures, Record
from bert_trainer.parallel.reduction import ReductionTimes
from bert_trainer.parallel.world import World, gather_numbers
from bert_trainer.training.learner import Learner, ModelT
from bert_trainer.training.objective import Objective
from bert_trainer.training.session import Session
from bert_trainer.training.stragglers import Stragglers, Work


@dataclass(slots=True)
class PausedTime:
    """Seconds for which training has paused in a stage of this attempt, on this rank."""

    evaluation_s: float = 0.0
    checkpoint_s: float = 0.0
    """Without what is written in the background while steps go on."""

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Time the block, in which training waits for a checkpoint."""
        began_at_s = time.monotonic()
        yield
        self.checkpoint_s += time.monotonic() - began_at_s

    def figures(self) -> Record:
        """Return the fields for a record."""
        return {"evaluation_s": self.evaluation_s, "checkpoint_s": self.checkpoint_s}


class Interval:
    """Sums, counts and times of one logging interval on this rank.

    Tensors stay on the device until ``publish``: reading one earlier would make the host wait for the step.
    """

    def __init__(self, session: Session, learner: Learner[Any]) -> None:
        """Begin with a stage: reports count their time from here."""
        self._session, self._learner = session, learner
        self._stage_started_at_s = time.monotonic()
        self._stragglers = Stragglers(session.hosts)
        learner.compute_timer.take_s()  # what it did before is no part of this stage
        self.learning_rate = 0.0
        """Of the last step that this rank has taken."""
        self._all_waited_s = 0.0
        """Of all ranks since the stage began."""
        self.paused_time = PausedTime()
        self.restart()

    def restart(self) -> None:
        """Begin the next interval."""
        self._sums: list[Any] = []
        self._masked = self._rows = self._tokens = self._pairs = self._most_tokens = 0
        self._waited_s = 0.0
        self._reductions: list[ReductionTimes] = []
        self._started_at_s = time.monotonic()

    def add(self, sums: Any, batch: Batch) -> None:
        """Add one micro-batch. sums: of ``Objective.loss``."""
        # Detached, or the sums would keep every micro-batch's graph and activations alive until the report.
        self._sums.append(type(sums)(*(getattr(sums, name).detach() for name in sums.__slots__)))
        self._masked += batch.num_masked
        self._rows += batch.num_rows
        self._tokens += batch.num_tokens
        self._pairs += batch.num_pairs

    def add_step(self, most_tokens: int, times: ReductionTimes) -> None:
        """Add what a step cost. most_tokens: real tokens of its busiest rank."""
        self._most_tokens += most_tokens
        self._reductions.append(times)

    def add_wait(self, seconds: float) -> None:
        """Add the time that this rank has waited for a step's batches."""
        self._waited_s += seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave an evaluation's time out of the interval, whose throughput is that of training, and add it up."""
        began_at_s = time.monotonic()
        yield
        took_s = time.monotonic() - began_at_s
        self._started_at_s += took_s
        self.paused_time.evaluation_s += took_s

    def publish(self, objective: Objective[Any], result: StepResult | None) -> None:
        """Sum over the ranks and report; collective.

        Args:
            objective: Where it is.
            result: Of the last step; None on a rank that took none.
        """
        learner, world = self._learner, self._session.world
        # Before anything that waits, for the device or for other ranks: the interval ends here.
        now_s = time.monotonic()
        costs, of_ranks = rank_costs(world, learner, self._reductions, self._tokens, self._stragglers)
        # One model, one count; ranks with models of their own add theirs.
        health, counts = objective.health.figures(), world.rank == 0 or objective.is_split_by_rank
        flop = objective.flop(self._tokens, self._pairs, self._masked)
        own = [self._masked, self._rows, self._tokens, time.process_time(), self._waited_s, flop]
        own += [number * counts for number in health.values()]
        of_loss = read_sums(self._sums, objective.sums)
        totals = world.sum_numbers([*of_loss, *own])
        sums, (masked, rows, tokens, cpu_s, waited_s, flop, *found) = totals[: len(of_loss)], totals[len(of_loss) :]
        self._all_waited_s += waited_s
        elapsed_s = max(now_s - self._started_at_s, 1e-9)
        step_s = elapsed_s / max(len(self._reductions), 1)
        ranks = 1 if objective.is_split_by_rank else world.size
        self._session.writer.progress(
            {
                "stage": objective.stage.name,
                "step": objective.step,
                "steps": objective.total_steps,
                **objective.losses(sums, rows, masked),
                "learning_rate": self.learning_rate,
                "micro_batch_size": objective.micro_batch_size,
                "gradient_norm": None if result is None else result.gradient_norm,
                "loss_scale": learner.scaler.scale if learner.scaler.enabled else None,
                "sequences_per_s": rows / elapsed_s,
                "real_tokens_per_s": tokens / elapsed_s,
                "step_s": step_s,
                "model_flop_per_s": flop / elapsed_s or None,
                # For people to compare two runs; the checkpoint's manifest has all 64 digits.
                "sample_hash": objective.sample_hash[:16],
                "elapsed_s": now_s - self._stage_started_at_s,
                # Where it went, added up like it: a reader of one line knows of all the lines before.
                "data_wait_s": self._all_waited_s / world.size,
                **self.paused_time.figures(),
                "remaining_s": (objective.total_steps - objective.step) * step_s + objective.evaluations_left_s,
                "interval_s": elapsed_s,
                "interval_sequences": int(rows),
                "interval_tokens": int(tokens),
                "cpu_s": cpu_s,
                "token_imbalance": None if ranks == 1 else self._most_tokens * ranks / tokens,
                **costs,
                "data_wait_share": waited_s / world.size / elapsed_s,
                **{name: int(total) for name, total in zip(health, found, strict=True)},
                **objective.figures(),
            },
            of_ranks,
        )
        self.restart()


def rank_costs(
    world: World,
    learner: Learner[ModelT],
    reductions: Sequence[ReductionTimes],
    tokens: int,
    stragglers: Stragglers,
) -> tuple[Record, RankFigures]:
    """Return compute time, reduction times, memory and slow ranks of an interval over all ranks; collective.

    Seconds and bytes are means over its steps: bytes are those that every rank sends, seconds and memory are
    those of the rank with the largest value.

    Args:
        world: The ranks.
        learner: What is trained.
        reductions: Of this rank's steps.
        tokens: Real ones of this rank in them.
        stragglers: Scores the ranks.
    """
    steps = max(len(reductions), 1)
    own = [
        sum(times.total_s for times in reductions) / steps,
        sum(times.exposed_s for times in reductions) / steps,
        memory_bytes(learner.device),
        learner.optimizer.state_bytes,
        learner.compute_timer.take_s() / steps,
        tokens / steps,
    ]
    by_rank = gather_numbers(world, own)
    total_s, exposed_s, memory, state, work_s, _ = map(max, zip(*by_rank, strict=True))
    costs: Record = {"work_s": work_s, "memory_bytes": memory, "optimizer_state_bytes": state}
    if world.size == 1:
        return costs, {}
    sent_bytes = sum(times.sent_bytes for times in reductions) / steps
    slow, scores = stragglers.add([Work(seconds, tokens) for *_, seconds, tokens in by_rank])
    reduction: Record = {
        "reduction_s": total_s,
        "reduction_exposed_s": exposed_s,
        "reduction_bytes": sent_bytes,
    }
    return reduction | costs | slow, scores


def read_sums(sums: Sequence[Any], kind: type[Any] = LossSums) -> list[float]:
    """Return the sum of every field over some micro-batches, in fp64; waits for the device once.

    kind: of the sums, whose fields are scalars.
    """
    names = kind.__slots__
    if not sums:
        return [0.0] * len(names)
    # One tensor, so one copy to the host. Counts and sums of every precision fit fp64 exactly; fp32 would start to
    # lose counts of tokens at 2**24.
    stacked = torch.stack([getattr(one, name).double() for name in names for one in sums]).tolist()
    return [sum(stacked[at : at + len(sums)]) for at in range(0, len(stacked), len(sums))]


def memory_bytes(device: torch.device) -> int:
    """Return the memory of this process: on a GPU peak tensor memory, elsewhere its resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    resident: int = psutil.Process().memory_info().rss
    return resident
