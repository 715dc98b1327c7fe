"""``microBatchSize: auto``: finds a size that is fast and fits, once per run, by timing candidates for a few seconds.

Rank 0 times candidates on rows of the stage's full length, the most that a pass may meet; the other ranks wait and
receive the chosen size. It is kept in the run folder, so that a resumed run sums in the same order, and in a cache
beside it that outlives ``ifExists: New``. On GPUs the peak is that of PyTorch's allocator; on CPUs it is the resident
memory of the process between forward and backward pass, when all activations are alive.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from bert_trainer.checkpoints.checkpoint import Environment
from bert_trainer.config.run_config import RunConfig, WorldConfig
from bert_trainer.config.stages import PrepareStage, PretrainStage
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.errors import InputError, OutOfDeviceMemory
from bert_trainer.model.batch import Batch, make_batch
from bert_trainer.output.run_folder import AUTOTUNE_FOLDER
from bert_trainer.parallel.row_balancing import rank_slice
from bert_trainer.parallel.world import Alone, on_rank_0
from bert_trainer.system.atomic_files import disk_errors, write_json_atomically
from bert_trainer.system.available_memory import available_bytes, total_bytes
from bert_trainer.system.processor import release_freed_memory
from bert_trainer.training.out_of_memory import propose
from bert_trainer.training.profiling import print_table
from bert_trainer.training.session import Session

RECORD_FILE = "micro-batch-sizes.json"
CACHE_FILE = f"{AUTOTUNE_FOLDER}/cache.json"
BUDGET_S = 20.0
"""For all sizes of one stage together."""
_ENOUGH_S = 0.5  # of passes at one size; at least two passes, unless one alone takes four times as long

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """The sizes that were measured for one stage."""

    measurements: tuple[Measurement, ...]
    limit_bytes: int
    chosen: int


def resolve_micro_batch_sizes(session: Session) -> None:
    """Choose a size for every ``auto`` of the remaining stages, the same on all ranks; collective.

    Raises:
        OutOfDeviceMemory: not even one sequence fits.
    """
    first_index = 0 if session.resumed_at is None else session.resumed_at.stage_index
    for index, stage in enumerate(session.config.stages):
        if isinstance(stage, PretrainStage) and stage.micro_batch_size == "auto" and index >= first_index:
            size = on_rank_0(session.world, partial(_find_size, session, index, stage))
            session.micro_batch_sizes[index] = size


def _find_size(session: Session, index: int, stage: PretrainStage) -> int:
    """Return the recorded size, else the cached one, else a measured one. Rank 0 only."""
    assert session.writer is not None, "runs on rank 0"
    folder, metrics = session.writer.folder, session.writer.metrics
    ranks = session.world.size
    circumstances = describe_circumstances(session, stage, ranks)
    key = hashlib.sha256(json.dumps(circumstances, sort_keys=True).encode()).hexdigest()[:16]
    # The record is this run's own: once resumed it has to sum in the same order, whatever the cache has learnt since.
    recorded = _read(folder.path / RECORD_FILE)
    cached = _read(folder.path / CACHE_FILE)
    source, before = "recorded", recorded.get(stage.name, {})
    size = before["size"] if before.get("key") == key else None
    if size is None and key in cached:
        source, size = "cached", cached[key]["size"]
    if size is None:
        source, trial = "measured", try_sizes(session, index, stage, ranks=ranks, hosts=session.world.num_hosts)
        size = trial.chosen
        print_table(render_trial(session, stage, ranks, trial))
        found = {"size": size, "circumstances": circumstances, "tried": [asdict(one) for one in trial.measurements]}
        folder.check_fence()
        with disk_errors(folder.path / CACHE_FILE):
            (folder.path / AUTOTUNE_FOLDER).mkdir(exist_ok=True)
        write_json_atomically(folder.path / CACHE_FILE, {**cached, key: found})
    if before.get("size") != size or before.get("key") != key:
        folder.check_fence()
        write_json_atomically(folder.path / RECORD_FILE, {**recorded, stage.name: {"size": size, "key": key}})
    message = f"microBatchSize: auto is {size}, {source}"
    if before and before["size"] != size:
        message += f"; it was {before['size']} on other hardware or settings, from here on not bit-identical"
    metrics.event("micro_batch_size", stage=stage.name, micro_batch_size=size, source=source, message=message)
    return int(size)


def _read(path: Path) -> Document:
    """Return a file's content; a missing or damaged one counts as empty and will be written again."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def describe_circumstances(session: Session, stage: PretrainStage, ranks: int) -> Document:
    """Return everything that the choice depends on: a size is only reused where all of it is the same."""
    config = session.config
    environment = Environment.current(
        world_size=ranks,
        precision=config.precision,
        device=session.device,
        partitioning=config.optimizer.partitioning,
        compression=config.reduction.compression,
        engine=config.engine,
    )
    # On CPUs the memory of the machine or the container; a GPU's name implies its memory.
    total_gib = None if session.device.type == "cuda" else total_bytes() // 2**30
    return {
        "model": config.sizes.model_dump(mode="json", exclude={"config_file"}),
        "vocabulary_size": session.model.vocabulary_size,
        "sequence_length": stage.sequence_length,
        "max_predictions_per_sequence": stage.max_predictions_per_sequence,
        "rows": rows_per_rank(stage, ranks),
        "activation_checkpointing": config.activation_checkpointing,
        "gpu_memory_limit_gib": config.gpu_memory_limit_gib,
        "memory_gib": total_gib,
        "hosts": session.world.num_hosts,
        "environment": asdict(environment),
    }


def rows_per_rank(stage: PretrainStage, ranks: int) -> int:
    """Return the sequences per step of rank 0, which has the most."""
    start, stop = rank_slice(stage.global_batch_size, 0, ranks)
    return stop - start


def try_sizes(
    session: Session, index: int, stage: PretrainStage, *, ranks: int, hosts: int, budget_s: float = BUDGET_S
) -> Trial:
    """Time passes of growing size until time or memory runs out or larger sizes stop helping; weights don't change.

    Raises:
        OutOfDeviceMemory: not even one sequence fits.
    """
    limit_bytes = find_limit(session.device, session.config, ranks_of_host=-(-ranks // hosts))
    if session.device.type == "cuda":
        # Compiles the step, which may take longer than all sizes together: not part of the budget.
        measure(session, index, stage, 1, warm_up=True)
    base_bytes = _used_bytes(session.device)
    ends_at_s = time.monotonic() + budget_s
    done: list[Measurement] = []
    for size in candidate_sizes(rows_per_rank(stage, ranks)):
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
        measurement = measure(session, index, stage, size, warm_up=last is None)
        done.append(measurement)
        if measurement.sequences_per_s is None or is_past_its_best(done):
            break
    session.parameters.gradients.zero_()
    release_trial_memory(session.device)
    chosen = choose_size(done, limit_bytes)
    if chosen is None and done[0].sequences_per_s is not None:
        chosen = done[0].size  # it exceeds the headroom, but it ran
    if chosen is None:
        raise OutOfDeviceMemory(
            f"{stage.name}: not even one sequence of {stage.sequence_length} tokens fits in the "
            f"{limit_bytes / 2**30:.2f} GiB of {session.device}",
            hint=propose(session.config, micro_batch_size=1),
        )
    return Trial(tuple(done), limit_bytes, chosen)


def release_trial_memory(device: torch.device) -> None:
    """Release what the largest size took, so that the run's metrics show its own use of memory."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        release_freed_memory()


def measure(session: Session, index: int, stage: PretrainStage, size: int, *, warm_up: bool) -> Measurement:
    """Run a few passes of one size. warm_up: whether one pass goes before them, uncounted."""
    on_gpu = session.device.type == "cuda"
    fits_in = True
    fastest_s, spent_s, passes, peak_bytes = float("inf"), 0.0, 0, 0
    try:
        batch = full_batch(size, stage, session.model.vocabulary_size)
        backend = session.model.backend
        batch = backend.stage_batch(batch, sequence_length=stage.sequence_length, micro_batch_size=size)
        batch = batch.to(session.device)
        if warm_up:
            _run_pass(session, index, batch)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(session.device)
        while passes == 0 or (spent_s < _ENOUGH_S or passes == 1 and spent_s < 4 * _ENOUGH_S):
            started_at_s = time.monotonic()
            peak_bytes = max(peak_bytes, _run_pass(session, index, batch))
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


def _run_pass(session: Session, index: int, batch: Batch) -> int:
    """Run one forward and backward pass to its end and return the peak memory, in bytes."""
    with session.autocast():
        sums = session.model(batch, batch.dropout_keys(session.config.seed, index << 32))
    # Between forward and backward pass all activations are alive: the peak on a CPU, which keeps no record of its own.
    used_bytes = _used_bytes(session.device)
    (sums.masked_lm / batch.num_masked + sums.next_sentence / batch.num_rows).backward()
    if session.device.type == "cuda":
        torch.cuda.synchronize(session.device)
        return int(torch.cuda.max_memory_allocated(session.device))
    return max(used_bytes, _used_bytes(session.device))


def _used_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return int(psutil.Process().memory_info().rss)


def find_limit(device: torch.device, config: RunConfig, *, ranks_of_host: int) -> int:
    """Return the bytes that one rank may fill: of its GPU, or its share of what the machine or container has left."""
    if device.type != "cuda":
        return _used_bytes(device) + available_bytes() // ranks_of_host
    # mem_get_info counts what PyTorch's caching allocator holds as used.
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device)
    given = config.gpu_memory_limit_gib
    return int(free if given is None else min(free, given * 2**30))


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


def render_trial(session: Session, stage: PretrainStage, ranks: int, trial: Trial) -> str:
    """Return the table of a stage's sizes."""
    title = (
        f"{stage.name}: {rows_per_rank(stage, ranks)} sequences of {stage.sequence_length} tokens per rank and step, "
        f"{session.config.precision} on {session.device}, {trial.limit_bytes / 2**30:.2f} GiB"
    )
    return render_measurements(title, trial.measurements, trial.chosen)


def show_sizes(config: RunConfig) -> list[str]:
    """Try the sizes of every pretraining stage as one rank of the run would, and return the lines to print.

    One process, whatever the run's ranks; nothing is written into the output folder.

    Raises:
        InputError: there is nothing to tune, or what ``Session.open`` raises.
    """
    if not any(isinstance(stage, PretrainStage) for stage in config.stages):
        raise InputError("stages: got no pretrain stage; allowed: at least one to tune")
    lines = []
    with tempfile.TemporaryDirectory(prefix="bert-autotune-") as folder:
        alone = config.model_copy(
            update={
                "output_folder": folder,
                "world": WorldConfig(ranks=1, hosts=1),
                "initial_checkpoint": None,
                "profile_steps": None,
                "logging": config.logging.model_copy(update={"tensorboard": False, "prometheus_port": None}),
                "stages": tuple(stage for stage in config.stages if not isinstance(stage, PrepareStage)),
            }
        )
        session = Session.open(alone, Alone(), attempt=1)
        try:
            for index, stage in enumerate(alone.stages):
                if isinstance(stage, PretrainStage):
                    ranks, hosts = config.world.ranks, config.world.hosts
                    trial = try_sizes(session, index, stage, ranks=ranks, hosts=hosts)
                    lines += [render_trial(session, stage, ranks, trial), f"microBatchSize: {trial.chosen}"]
        finally:
            session.close()
    return lines


GOOD_ENOUGH = 0.97
"""Share of the best speed above which the smaller size is taken: it leaves memory, and noise decides less often."""
HEADROOM = 0.9
"""Share of the memory that passes may fill: allocators fragment, and the optimizer works beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one size was found to cost, on rows of the full length."""

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
    """Return whether a peak leaves the headroom below a limit."""
    return limit_bytes is None or peak_bytes <= HEADROOM * limit_bytes


def expected_peak(base_bytes: int, last: Measurement, size: int) -> float:
    """Return the peak that a larger size is expected to have: activations grow with the number of sequences."""
    assert last.peak_bytes is not None, "only a size that ran predicts others"
    return base_bytes + max(0, last.peak_bytes - base_bytes) * size / last.size


def choose_size(measurements: Sequence[Measurement], limit_bytes: int | None) -> int | None:
    """Return the smallest size that is nearly as fast as the fastest one that fits; None where none fits."""
    speeds = {
        entry.size: entry.sequences_per_s
        for entry in measurements
        if entry.sequences_per_s is not None and fits(entry.peak_bytes or 0, limit_bytes)
    }
    if not speeds:
        return None
    best = max(speeds.values())
    return min(size for size, speed in speeds.items() if speed >= GOOD_ENOUGH * best)


def is_past_its_best(measurements: Sequence[Measurement]) -> bool:
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
