"""``microBatchSize: auto``: finds a size that is fast and fits, once per run, by timing candidates for a few seconds.

Rank 0 times candidates (``micro_batch_trials``); the other ranks wait and receive the chosen size. It is kept in the
run folder, so that a resumed run sums in the same order, and in a cache beside it that outlives ``ifExists: New``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bert_job.run_stages import EvaluateStage, FinetuneStage, PretrainStage, Stage
from bert_trainer.output.run_folder import AUTOTUNE_FOLDER
from bert_trainer.parallel.world import World, on_rank_0
from bert_trainer.system.atomic_files import disk_errors, write_json_atomically
from bert_trainer.training.micro_batch_trials import Document, Trials
from bert_trainer.training.profiling import print_table
from bert_trainer.training.run_writer import RunWriter

RECORD_FILE = "micro-batch-sizes.json"
CACHE_FILE = f"{AUTOTUNE_FOLDER}/cache.json"


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
    """Return the recorded size, else the cached one, else a measured one. Rank 0 only."""
    folder = writer.folder
    circumstances = trials.describe_circumstances(stage)
    key = hashlib.sha256(json.dumps(circumstances, sort_keys=True).encode()).hexdigest()[:16]
    # The record is this run's own: once resumed it has to sum in the same order, whatever the cache has learnt since.
    recorded = _read(folder.path / RECORD_FILE)
    cached = _read(folder.path / CACHE_FILE)
    source, before = "recorded", recorded.get(stage.name, {})
    size = before["size"] if before.get("key") == key else None
    if size is None and key in cached:
        source, size = "cached", cached[key]["size"]
    if size is None:
        source, trial = "measured", trials.try_sizes(stage)
        size = trial.chosen
        print_table(trials.render(stage, trial))
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
    writer.event("micro_batch_size", stage=stage.name, micro_batch_size=size, source=source, message=message)
    return int(size)


def _read(path: Path) -> Document:
    """Return a file's content; a missing or damaged one counts as empty and will be written again."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
