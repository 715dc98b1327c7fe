"""``microBatchSize: auto``: finds a size that is fast and fits, once per run, by timing candidates for a few seconds.

Rank 0 times sizes on rows of a stage's full length, the most that a pass may meet; the other ranks wait and receive the
chosen size. On GPUs the peak is that of PyTorch's allocator; on CPUs it is the resident memory of the process between
forward and backward pass, when all activations are alive. Weights don't change.

What was measured is kept in the output folder by its circumstances: a resumed run sums in the same order, and one that
starts over (``ifExists: New``) measures nothing again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from bert_job.run_config import RunConfig
from bert_job.run_stages import EvaluateStage, FinetuneStage, PretrainStage, Stage
from bert_trainer.checkpoints.checkpoint import Environment
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.errors import OutOfDeviceMemory
from bert_trainer.model.batch import Batch, make_batch
from bert_trainer.model.bert import Bert
from bert_trainer.output.run_folder import AUTOTUNE_FOLDER
from bert_trainer.parallel.row_balancing import rank_slice
from bert_trainer.parallel.world import World, on_rank_0
from bert_trainer.system.available_memory import available_bytes, total_bytes
from bert_trainer.system.processor import release_freed_memory
from bert_trainer.training.device import Compute
from bert_trainer.training.learner import Learner
from bert_trainer.training.out_of_memory import suggest_less_memory
from bert_trainer.training.profiling import print_table
from bert_trainer.training.run_writer import RunWriter

MEASURED_FILE = f"{AUTOTUNE_FOLDER}/cache.json"
"""By circumstances: the size that was chosen, all that were tried, and the stages that it was last taken for."""
BUDGET_S = 20.0
"""For all sizes of one stage together."""
_ENOUGH_S = 0.5  # of passes at one size; at least two passes, unless one alone takes four times as long
GOOD_ENOUGH = 0.97
"""Share of the best speed above which the smaller size is taken: it leaves memory, and noise decides less often."""
HEADROOM = 0.9
"""Share of the memory that passes may fill: allocators fragment, and the optimizer works beside them."""

Document = dict[str, Any]


def configured_micro_batch_sizes(stages: Sequence[Stage]) -> dict[int, int]:
    """Return the sizes that a configuration holds, by index of the stage."""
    return {
        index: stage.micro_batch_size
        for index, stage in enumerate(stages)
        if isinstance(stage, PretrainStage | EvaluateStage | FinetuneStage) and stage.micro_batch_size != "auto"
    }


def choose_micro_batch_sizes(
    stages: Sequence[Stage], trials: Trials, world: World, writer: RunWriter, *, first_stage: int = 0
) -> dict[int, int]:
    """Choose a size for every ``auto`` of the stages from ``first_stage`` on, the same on all ranks; collective.

    Returns:
        The chosen sizes by index of the stage.

    Raises:
        OutOfDeviceMemory: not even one sequence fits.
    """
    return {
        index: on_rank_0(world, partial(_find_size, trials, stage, writer))
        for index, stage in enumerate(stages)
        if isinstance(stage, PretrainStage) and stage.micro_batch_size == "auto" and index >= first_stage
    }


def _find_size(trials: Trials, stage: PretrainStage, writer: RunWriter) -> int:
    """Return the size that was measured in these circumstances before, else measure; rank 0 only."""
    folder = writer.folder
    circumstances = trials.describe_circumstances(stage)
    key = hashlib.sha256(json.dumps(circumstances, sort_keys=True).encode()).hexdigest()[:16]
    measured = _read(folder.path / MEASURED_FILE)
    # What a run that resumes took so far: it has to sum in the same order. Of one that begins they are another's.
    taken = [entry for entry in measured.values() if stage.name in entry["stages"]]
    before = taken[0] if taken and writer.has_trained else None
    entry = measured.get(key)
    source = "recorded" if entry is before else "cached"
    if entry is None:
        source, trial = "measured", trials.try_sizes(stage)
        print_table(trials.render(stage, trial))
        tried = [asdict(measurement) for measurement in trial.measurements]
        entry = {"size": trial.chosen, "circumstances": circumstances, "tried": tried, "stages": []}
    size: int = entry["size"]
    if taken != [entry]:
        for other in taken:
            other["stages"].remove(stage.name)
        entry["stages"].append(stage.name)
        measured[key] = entry
        folder.write_json(folder.path / MEASURED_FILE, measured)
    message = f"microBatchSize: auto is {size}, {source}"
    if before is not None and before["size"] != size:
        message += f"; it was {before['size']} on other hardware or settings, from here on not bit-identical"
    writer.event("micro_batch_size", stage=stage.name, micro_batch_size=size, source=source, message=message)
    return size


def _read(path: Path) -> dict[str, Document]:
    """Return what was measured, by circumstances; a missing or damaged file counts as empty and is written again."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    entries = content.items() if isinstance(content, dict) else ()
    return {
        key: {**entry, "stages": entry.get("stages", [])}
        for key, entry in entries
        if isinstance(entry, dict) and type(entry.get("size")) is int and isinstance(entry.get("stages", []), list)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Speed and memory of one size, on rows of full length."""

    size: int
    """Sequences of one forward and backward pass on one rank."""
    sequences_per_s: float | None = None
    """Of one rank; None: it was not run, or did not fit."""
    peak_bytes: int | None = None
    """Memory of the rank while it ran."""
    note: str = ""
    """Why it has no speed."""


def candidate_sizes(rows: int) -> list[int]:
    """Return the sizes worth a try, ascending. rows: of one step on the rank that has most of them.

    About one for every power of two: the largest divisor of ``rows`` in each octave, so that every pass is full;
    where an octave has none, the size that cuts ``rows`` into the fewest, nearly equal passes.
    """
    divisors = [size for size in range(1, rows + 1) if rows % size == 0]
    sizes = {rows}
    target = 1
    while target <= rows:
        fitting = [size for size in divisors if target // 2 < size <= target]
        passes = -(-rows // target)
        sizes.add(fitting[-1] if fitting else -(-rows // passes))
        target *= 2
    return sorted(sizes)


def fits(peak_bytes: float, limit_bytes: int | None) -> bool:
    """Return whether a peak leaves enough headroom below a limit."""
    return limit_bytes is None or peak_bytes <= HEADROOM * limit_bytes


def expected_peak(base_bytes: int, last: Measurement, size: int) -> float:
    """Return the extrapolated peak memory of a larger size: activations grow with the number of sequences."""
    assert last.peak_bytes is not None, "only a size that ran predicts others"
    return base_bytes + max(0, last.peak_bytes - base_bytes) * size / last.size


def choose_size(measurements: Sequence[Measurement], limit_bytes: int | None) -> int | None:
    """Return the smallest size that is nearly as fast as the fastest that fits; None if none fits."""
    speeds = {
        entry.size: entry.sequences_per_s
        for entry in measurements
        if entry.sequences_per_s is not None and fits(entry.peak_bytes or 0, limit_bytes)
    }
    if not speeds:
        return None
    best = max(speeds.values())
    return min(size for size, speed in speeds.items() if speed >= GOOD_ENOUGH * best)


def is_getting_slower(measurements: Sequence[Measurement]) -> bool:
    """Return whether the last two sizes were clearly slower than the best one, so that larger ones won't help."""
    speeds = [entry.sequences_per_s for entry in measurements if entry.sequences_per_s is not None]
    return len(speeds) > 2 and max(speeds[-2:]) < 0.9 * max(speeds)


def render_measurements(title: str, measurements: Sequence[Measurement], chosen: int | None) -> str:
    """Return a table for people."""
    lines = [title, f"  {'size':>6} {'sequences/s':>12} {'peak GiB':>9}"]
    for entry in measurements:
        speed = "-" if entry.sequences_per_s is None else f"{entry.sequences_per_s:.1f}"
        peak = "-" if entry.peak_bytes is None else f"{entry.peak_bytes / 2**30:.2f}"
        remark = "chosen" if entry.size == chosen else entry.note
        lines.append(f"  {entry.size:>6} {speed:>12} {peak:>9}  {remark}".rstrip())
    return "\n".join(lines)


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
