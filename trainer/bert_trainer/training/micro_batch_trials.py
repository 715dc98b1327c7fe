"""Times micro-batch sizes on rows of a stage's full length, the most that a pass may meet.

On GPUs the peak is that of PyTorch's allocator; on CPUs it is the resident memory of the process between forward and
backward pass, when all activations are alive. Weights don't change.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import psutil
import torch

from bert_job.run_config import RunConfig
from bert_job.run_stages import PretrainStage
from bert_trainer.checkpoints.checkpoint import Environment
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.errors import OutOfDeviceMemory
from bert_trainer.model.batch import Batch, make_batch
from bert_trainer.model.bert import Bert
from bert_trainer.parallel.row_balancing import rank_slice
from bert_trainer.system.available_memory import available_bytes, total_bytes
from bert_trainer.system.processor import release_freed_memory
from bert_trainer.training.device import Compute
from bert_trainer.training.learner import Learner
from bert_trainer.training.micro_batch_choice import (
    Measurement,
    candidate_sizes,
    choose_size,
    expected_peak,
    fits,
    is_getting_slower,
    render_measurements,
)
from bert_trainer.training.out_of_memory import suggest_less_memory

BUDGET_S = 20.0
"""For all sizes of one stage together."""
_ENOUGH_S = 0.5  # of passes at one size; at least two passes, unless one alone takes four times as long

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """Measured sizes of one stage."""

    measurements: tuple[Measurement, ...]
    limit_bytes: int
    chosen: int


@dataclass(frozen=True, slots=True)
class Trials:
    """Measures sizes on rank 0, which has the most rows."""

    config: RunConfig
    learner: Learner[Bert]
    compute: Compute
    ranks: int
    """Of the run, which need not be there."""
    hosts: int

    def describe_circumstances(self, stage: PretrainStage) -> Document:
        """Return everything that the choice depends on; a cached size is reused only if all is equal."""
        config, device = self.config, self.compute.device
        environment = Environment.current(
            world_size=self.ranks,
            precision=config.precision,
            device=device,
            partitioning=config.optimizer.partitioning,
            compression=config.reduction.compression,
            engine=config.engine,
        )
        # On CPUs the memory of the machine or the container; a GPU's name implies its memory.
        total_gib = None if device.type == "cuda" else total_bytes() // 2**30
        return {
            "model": config.sizes.model_dump(mode="json", exclude={"config_file"}),
            "vocabulary_size": self.learner.model.vocabulary_size,
            "sequence_length": stage.sequence_length,
            "max_predictions_per_sequence": stage.max_predictions_per_sequence,
            "rows": self.rows_per_rank(stage),
            "activation_checkpointing": config.activation_checkpointing,
            "gpu_memory_limit_gib": config.gpu_memory_limit_gib,
            "memory_gib": total_gib,
            "hosts": self.hosts,
            "environment": asdict(environment),
        }

    def rows_per_rank(self, stage: PretrainStage) -> int:
        """Return the sequences per step of rank 0, which has the most."""
        start, stop = rank_slice(stage.global_batch_size, 0, self.ranks)
        return stop - start

    def try_sizes(self, stage: PretrainStage, *, budget_s: float = BUDGET_S) -> Trial:
        """Time passes of growing size until time or memory runs out or larger sizes stop helping; weights don't change.

        Raises:
            OutOfDeviceMemory: not even one sequence fits.
        """
        device, model = self.compute.device, self.learner.model
        ranks_of_host = -(-self.ranks // self.hosts)
        limit_bytes = find_limit(device, self.config.gpu_memory_limit_gib, ranks_of_host=ranks_of_host)
        if device.type == "cuda":
            # Compiles the step, which may take longer than all sizes together: not part of the budget.
            measure(model, self.compute, stage, 1, warm_up=True)
        base_bytes = _used_bytes(device)
        ends_at_s = time.monotonic() + budget_s
        done: list[Measurement] = []
        for size in candidate_sizes(self.rows_per_rank(stage)):
            last = done[-1] if done else None
            if last is not None and last.sequences_per_s is not None:
                expected = expected_peak(base_bytes, last, size)
                if not fits(expected, limit_bytes):
                    note = f"expected to need {expected / 2**30:.2f} of {limit_bytes / 2**30:.2f} GiB"
                    done.append(Measurement(size=size, note=note))
                    break
                if time.monotonic() + 2 * size / last.sequences_per_s > ends_at_s:
                    done.append(Measurement(size=size, note="not tried: it would take too long"))
                    break
            measurement = measure(model, self.compute, stage, size, warm_up=last is None)
            done.append(measurement)
            if measurement.sequences_per_s is None or is_getting_slower(done):
                break
        self.learner.parameters.gradients.zero_()
        release_trial_memory(device)
        chosen = choose_size(done, limit_bytes)
        if chosen is None and done[0].sequences_per_s is not None:
            chosen = done[0].size  # it exceeds the headroom, but it ran
        if chosen is None:
            raise OutOfDeviceMemory(
                f"{stage.name}: not even one sequence of {stage.sequence_length} tokens fits in the "
                f"{limit_bytes / 2**30:.2f} GiB of {device}",
                hint=suggest_less_memory(self.config, micro_batch_size=1),
            )
        return Trial(tuple(done), limit_bytes, chosen)

    def render(self, stage: PretrainStage, trial: Trial) -> str:
        """Return the table of a stage's sizes."""
        title = (
            f"{stage.name}: {self.rows_per_rank(stage)} sequences of {stage.sequence_length} tokens per rank and step, "
            f"{self.compute.precision} on {self.compute.device}, {trial.limit_bytes / 2**30:.2f} GiB"
        )
        return render_measurements(title, trial.measurements, trial.chosen)


def release_trial_memory(device: torch.device) -> None:
    """Release what the largest size took, so that the run's metrics show its own use of memory."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        release_freed_memory()


def measure(model: Bert, compute: Compute, stage: PretrainStage, size: int, *, warm_up: bool) -> Measurement:
    """Run a few passes of one size. warm_up: whether one pass goes before them, uncounted."""
    device = compute.device
    on_gpu = device.type == "cuda"
    fits_in = True
    fastest_s, spent_s, passes, peak_bytes = float("inf"), 0.0, 0, 0
    try:
        batch = full_batch(size, stage, model.vocabulary_size)
        batch = model.backend.stage_batch(batch, sequence_length=stage.sequence_length, micro_batch_size=size)
        batch = batch.to(device)
        if warm_up:
            _run_pass(model, compute, batch)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
        while passes == 0 or (spent_s < _ENOUGH_S or passes == 1 and spent_s < 4 * _ENOUGH_S):
            started_at_s = time.monotonic()
            peak_bytes = max(peak_bytes, _run_pass(model, compute, batch))
            pass_s = time.monotonic() - started_at_s
            # The fastest one: whatever disturbs a pass makes it slower.
            fastest_s, spent_s, passes = min(fastest_s, pass_s), spent_s + pass_s, passes + 1
    except torch.OutOfMemoryError:
        fits_in = False
    if not fits_in:
        # Not in the except block: until it ends, the traceback's frames hold all tensors of the pass.
        torch.cuda.empty_cache()
        return Measurement(size=size, note="out of memory")
    return Measurement(size=size, sequences_per_s=size / max(fastest_s, 1e-9), peak_bytes=peak_bytes)


def _run_pass(model: Bert, compute: Compute, batch: Batch) -> int:
    """Run one forward and backward pass to its end and return the peak memory, in bytes."""
    # Which elements are dropped makes no difference to time and memory.
    with compute.autocast():
        sums = model(batch, batch.dropout_keys(0, 0))
    # Between forward and backward pass all activations are alive: the peak on a CPU, which keeps no record of its own.
    used_bytes = _used_bytes(compute.device)
    (sums.masked_lm / batch.num_masked + sums.next_sentence / batch.num_rows).backward()
    if compute.device.type == "cuda":
        torch.cuda.synchronize(compute.device)
        return int(torch.cuda.max_memory_allocated(compute.device))
    return max(used_bytes, _used_bytes(compute.device))


def _used_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return int(psutil.Process().memory_info().rss)


def find_limit(device: torch.device, limit_gib: float | None, *, ranks_of_host: int) -> int:
    """Return the memory that one rank may use: of its GPU, or its share of the machine's or container's free memory."""
    if device.type != "cuda":
        return _used_bytes(device) + available_bytes() // ranks_of_host
    # mem_get_info counts what PyTorch's caching allocator holds as used.
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device)
    return int(free if limit_gib is None else min(free, limit_gib * 2**30))


def full_batch(size: int, stage: PretrainStage, vocabulary_size: int) -> Batch:
    """Return rows of the full length with all predictions, made of random tokens."""
    rng = np.random.default_rng(0)
    length, predictions = stage.sequence_length, stage.max_predictions_per_sequence
    shape = (size, length)
    # From 1: position 0 marks an unused prediction.
    positions = np.tile(np.arange(1, predictions + 1, dtype=np.int32), (size, 1))
    samples = Samples(
        rng.integers(0, vocabulary_size, shape, dtype=np.int32),
        np.ones(shape, np.int8),
        np.tile((np.arange(length) >= length // 2).astype(np.int8), (size, 1)),
        positions,
        rng.integers(0, vocabulary_size, positions.shape, dtype=np.int32),
        np.zeros(size, np.int8),
    )
    return make_batch(samples, np.arange(size))
