"""Where a pretraining stage is, and what its last steps were like.

``Progress`` is what a checkpoint stores of a stage; ``Interval`` collects sums between two reports without waiting
for the device. Neither decides anything.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from bert_trainer.checkpoints.store import Position
from bert_trainer.config.stages import PretrainStage
from bert_trainer.model.batch import Batch
from bert_trainer.model.bert import LossSums
from bert_trainer.optim.optimizer import StepResult
from bert_trainer.parallel.reduction import ReductionTimes
from bert_trainer.training.session import Session, StageData


@dataclass(slots=True)
class Progress:
    """Where a stage is."""

    stage_index: int
    step: int
    sample_hash: str

    def advance(self, session: Session, stage: PretrainStage, data: StageData) -> None:
        """Count a step; rank 0 also takes note of its samples."""
        if session.keeper is not None:
            first = self.step * stage.global_batch_size
            numbers = data.order.sample_numbers(first, first + stage.global_batch_size)
            chained = bytes.fromhex(self.sample_hash) + numbers.astype("<i8").tobytes()
            self.sample_hash = hashlib.sha256(chained).hexdigest()
            if session.config.logging.sample_ledger:
                _append_to_ledger(session, stage, self.step, numbers)
        self.step += 1

    def position(self, session: Session, data: StageData) -> Position:
        """Return what a checkpoint records."""
        stage = session.config.stages[self.stage_index]
        assert isinstance(stage, PretrainStage), "only pretraining stages have positions"
        optimizer = session.optimizer
        return Position(
            stage_index=self.stage_index,
            stage=stage.name,
            step=self.step,
            total_steps=data.total_steps,
            num_applied=optimizer.num_applied,
            samples_seen=self.step * stage.global_batch_size,
            sample_hash=self.sample_hash,
            loss_scale=session.scaler.scale,
            finite_steps=session.scaler.finite_steps,
            moment_steps=None if optimizer.moment_steps == optimizer.num_applied else optimizer.moment_steps,
        )


class Interval:
    """Sums of one logging interval on this rank, read from the device only when they are published."""

    def __init__(self) -> None:
        """Start empty."""
        self.learning_rate = 0.0
        self._waited_s = self._waited_before_s = 0.0
        self._clear()

    def _clear(self) -> None:
        self._waited_before_s = self._waited_s
        self._sums: list[LossSums] = []
        self._masked = self._rows = self._tokens = self._most_tokens = 0
        self._reductions: list[ReductionTimes] = []
        self._started_at_s = time.monotonic()

    def add(self, batch: Batch, sums: LossSums) -> None:
        """Take one micro-batch in."""
        detached = (
            sums.masked_lm.detach(), sums.next_sentence.detach(), sums.masked_lm_correct, sums.next_sentence_correct
        )  # fmt: skip
        self._sums.append(LossSums(*detached))
        self._masked += batch.num_masked
        self._rows += batch.num_rows
        self._tokens += batch.num_tokens

    def add_balance(self, most_tokens: int) -> None:
        """Take the tokens of a step's busiest rank in."""
        self._most_tokens += most_tokens

    def add_reduction(self, times: ReductionTimes) -> None:
        """Take one step's reduction in."""
        self._reductions.append(times)

    def _costs_of_ranks(self, session: Session) -> dict[str, float]:
        """Return what ranks cost one another in the interval, all ranks taken together; collective.

        Seconds and bytes are means over its steps: the bytes are every rank's, seconds and memory those of the
        rank that has most of them.
        """
        world, steps = session.world, max(len(self._reductions), 1)
        own = [
            sum(times.total_s for times in self._reductions) / steps,
            sum(times.exposed_s for times in self._reductions) / steps,
            memory_bytes(session.device),
            session.optimizer.state_bytes,
        ]
        # Every rank's numbers in a place of their own: a sum over ranks that loses nothing.
        places = [0.0] * (len(own) * world.size)
        places[world.rank * len(own) : (world.rank + 1) * len(own)] = own
        by_rank = world.sum_numbers(places)
        total_s, exposed_s, memory, state = (max(by_rank[place :: len(own)]) for place in range(len(own)))
        costs = {"memory_bytes": memory, "optimizer_state_bytes": state}
        if world.size == 1:
            return costs
        sent_bytes = sum(times.sent_bytes for times in self._reductions) / steps
        return {
            "reduction_s": total_s,
            "reduction_exposed_s": exposed_s,
            "reduction_bytes": sent_bytes,
            **costs,
        }

    def note_wait(self, waited_s: float) -> None:
        """Take note of how long this rank has waited for batches since the stage began."""
        self._waited_s = waited_s

    def publish(
        self,
        session: Session,
        stage: PretrainStage,
        progress: Progress,
        result: StepResult,
        started_at_s: float,
    ) -> None:
        """Sum over the ranks and report; collective."""
        now_s = time.monotonic()
        costs = self._costs_of_ranks(session)
        totals = session.world.sum_numbers(
            [
                *read_sums(self._sums),
                self._masked,
                self._rows,
                self._tokens,
                time.process_time(),
                self._waited_s - self._waited_before_s,
            ]
        )
        masked_lm, next_sentence, masked_right, pairs_right, masked, rows, tokens, cpu_s, waited_s = totals
        masked = max(masked, 1)  # rows without any prediction are allowed
        elapsed_s = max(now_s - self._started_at_s, 1e-9)
        total_steps = session.training_data[progress.stage_index].total_steps
        steps_per_s = rows / stage.global_batch_size / elapsed_s
        alone = session.world.size == 1
        has_pairs = session.model.nsp is not None
        if session.keeper is not None:
            session.keeper.metrics.progress(
                {
                    "stage": stage.name,
                    "step": progress.step,
                    "steps": total_steps,
                    "loss": masked_lm / masked + next_sentence / rows,
                    "mlm_loss": masked_lm / masked,
                    "nsp_loss": next_sentence / rows if has_pairs else None,
                    "mlm_accuracy": masked_right / masked,
                    "nsp_accuracy": pairs_right / rows if has_pairs else None,
                    "learning_rate": self.learning_rate,
                    "micro_batch_size": session.micro_batch_sizes[progress.stage_index],
                    "gradient_norm": result.gradient_norm,
                    "loss_scale": session.scaler.scale if session.scaler.enabled else None,
                    "sequences_per_s": rows / elapsed_s,
                    "real_tokens_per_s": tokens / elapsed_s,
                    "sample_hash": progress.sample_hash[:16],
                    "elapsed_s": now_s - started_at_s,
                    "remaining_s": (total_steps - progress.step) / steps_per_s,
                    "interval_s": elapsed_s,
                    "interval_sequences": int(rows),
                    "interval_tokens": int(tokens),
                    "cpu_s": cpu_s,
                    "token_imbalance": None if alone else self._most_tokens * session.world.size / tokens,
                    **costs,
                    "data_wait_share": waited_s / session.world.size / elapsed_s,
                }
            )
        self._clear()


def read_sums(sums: Sequence[LossSums]) -> list[float]:
    """Return the sums of every field over some micro-batches, in fp64; the device is waited for once."""
    names = LossSums.__slots__
    if not sums:
        return [0.0] * len(names)
    # Counts and half-precision sums fit fp64 exactly.
    stacked = torch.stack([getattr(one, name).double() for name in names for one in sums]).tolist()
    return [sum(stacked[at : at + len(sums)]) for at in range(0, len(stacked), len(sums))]


def memory_bytes(device: torch.device) -> int:
    """Return what this process holds: on a GPU the most that tensors took so far, elsewhere its resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    resident: int = psutil.Process().memory_info().rss
    return resident


def _append_to_ledger(session: Session, stage: PretrainStage, step: int, numbers: NDArray[np.int64]) -> None:
    assert session.keeper is not None, "runs on rank 0"
    with (session.keeper.folder.path / "ledger.jsonl").open("a") as file:
        file.write(json.dumps({"stage": stage.name, "step": step, "samples": numbers.tolist()}) + "\n")
