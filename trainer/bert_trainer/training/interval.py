"""The metrics of the steps between two reports, gathered without synchronizing with the device. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch

from bert_trainer.model.bert import Bert
from bert_trainer.model.losses import LossSums
from bert_trainer.optim.optimizer import StepResult
from bert_trainer.output.metrics import RankFigures, Record
from bert_trainer.parallel.reduction import ReductionTimes
from bert_trainer.parallel.world import World, gather_numbers
from bert_trainer.training.flop import count_flop
from bert_trainer.training.learner import Learner, ModelT
from bert_trainer.training.run_writer import RunWriter
from bert_trainer.training.stage_progress import StageProgress
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
    """Losses, counts and times of one logging interval on this rank.

    Tensors stay on the device until ``publish``: reading one earlier would make the host wait for the step.
    """

    def __init__(
        self, learner: Learner[Bert], world: World, writer: RunWriter, hosts: Sequence[str], *, micro_batch_size: int
    ) -> None:
        """Begin with a stage: reports count their time from here. hosts: of all ranks."""
        self.learning_rate = 0.0
        self._learner, self._world, self._writer, self._micro_batch_size = learner, world, writer, micro_batch_size
        self._stage_started_at_s = time.monotonic()
        self._stragglers = Stragglers(hosts)
        learner.compute_timer.take_s()  # what it did before is no part of this stage
        self._waited_s = self._all_waited_s = 0.0
        self.paused_time = PausedTime()
        self._clear()

    def _clear(self) -> None:
        self._sums: list[LossSums] = []
        self._masked = self._rows = self._tokens = self._most_tokens = 0
        self._pairs = 0.0
        self._reductions: list[ReductionTimes] = []
        self._started_at_s = time.monotonic()

    def add(self, sums: LossSums, *, rows: int, tokens: int, masked: int) -> None:
        """Add one micro-batch. rows, tokens, masked: how many real ones it has."""
        # Detached, or the sums would keep every micro-batch's graph and activations alive until the report.
        detached = (
            sums.masked_lm.detach(), sums.next_sentence.detach(), sums.masked_lm_correct, sums.next_sentence_correct
        )  # fmt: skip
        self._sums.append(LossSums(*detached))
        self._masked += masked
        self._rows += rows
        self._tokens += tokens
        # As if its rows were equally long, which is the least that it can be: their lengths lie on the device.
        self._pairs += tokens**2 / max(rows, 1)

    def _count_flop(self) -> float:
        model = self._learner.model
        counts = {"tokens": self._tokens, "pairs": self._pairs, "masked": self._masked}
        return count_flop(model.config, model.vocabulary_size, **counts)

    def add_busiest_rank(self, most_tokens: int) -> None:
        """Add the real tokens of a step's busiest rank."""
        self._most_tokens += most_tokens

    def add_reduction(self, times: ReductionTimes) -> None:
        """Add the times of one step's gradient reduction."""
        self._reductions.append(times)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave an evaluation's time out of the interval, whose throughput is that of training, and add it up."""
        began_at_s = time.monotonic()
        yield
        took_s = time.monotonic() - began_at_s
        self._started_at_s += took_s
        self.paused_time.evaluation_s += took_s

    def set_data_wait(self, waited_s: float) -> None:
        """Set how long this rank has waited for batches since the stage began."""
        self._waited_s = waited_s

    def publish(
        self,
        progress: StageProgress,
        result: StepResult | None,
        figures: Mapping[str, int],
        evaluations_s: float = 0.0,
    ) -> None:
        """Sum over the ranks and report, unless every step since the last report was left out; collective.

        Args:
            progress: Of the stage.
            result: Of the last step; None where it was left out.
            figures: Of the stage's health.
            evaluations_s: What evaluations still to come are expected to take.
        """
        learner, world = self._learner, self._world
        if not self._reductions:
            return
        # Before anything that waits, for the device or for other ranks: the interval ends here.
        now_s = time.monotonic()
        costs, of_ranks = rank_costs(world, learner, self._reductions, self._tokens, self._stragglers)
        own = [self._masked, self._rows, self._tokens, time.process_time(), self._waited_s, self._count_flop()]
        totals = world.sum_numbers([*read_sums(self._sums), *own])
        masked_lm, next_sentence, masked_correct, pairs_correct, masked, rows, tokens, cpu_s, all_waited_s, flop = (
            totals
        )
        waited_s, self._all_waited_s = all_waited_s - self._all_waited_s, all_waited_s
        masked = max(masked, 1)  # rows without any prediction are allowed
        elapsed_s = max(now_s - self._started_at_s, 1e-9)
        total_steps = progress.data.total_steps
        steps_per_s = rows / progress.stage.global_batch_size / elapsed_s
        has_nsp = learner.model.nsp is not None
        self._writer.progress(
            {
                "stage": progress.stage.name,
                "step": progress.step,
                "steps": total_steps,
                "loss": masked_lm / masked + next_sentence / rows,
                "mlm_loss": masked_lm / masked,
                "nsp_loss": next_sentence / rows if has_nsp else None,
                "mlm_accuracy": masked_correct / masked,
                "nsp_accuracy": pairs_correct / rows if has_nsp else None,
                "learning_rate": self.learning_rate,
                "micro_batch_size": self._micro_batch_size,
                "gradient_norm": None if result is None else result.gradient_norm,
                "loss_scale": learner.scaler.scale if learner.scaler.enabled else None,
                "sequences_per_s": rows / elapsed_s,
                "real_tokens_per_s": tokens / elapsed_s,
                "step_s": elapsed_s / len(self._reductions),
                "model_flop_per_s": flop / elapsed_s,
                # For people to compare two runs; the checkpoint's manifest has all 64 digits.
                "sample_hash": progress.sample_hash[:16],
                "elapsed_s": now_s - self._stage_started_at_s,
                # Where it went, added up like it: a reader of one line knows of all the lines before.
                "data_wait_s": all_waited_s / world.size,
                **self.paused_time.figures(),
                "remaining_s": (total_steps - progress.step) / steps_per_s + evaluations_s,
                "interval_s": elapsed_s,
                "interval_sequences": int(rows),
                "interval_tokens": int(tokens),
                "cpu_s": cpu_s,
                "token_imbalance": None if world.size == 1 else self._most_tokens * world.size / tokens,
                **costs,
                "data_wait_share": waited_s / world.size / elapsed_s,
                **figures,
                "shards_left_out": len(progress.data.order.left_out) or None,
            },
            of_ranks,
        )
        self._clear()


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


def read_sums(sums: Sequence[LossSums]) -> list[float]:
    """Return the sum of every field over some micro-batches, in fp64; synchronizes with the device once."""
    names = LossSums.__slots__
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
