"""Checks between set-up and the first step, by all ranks: what would otherwise fail hours later, or only be slow.

Shards that one host sees otherwise than rank 0, and no room for two checkpoints, end the run with a name; clocks that
differ, hosts that compute more slowly than rank 0's, memory and the speed of the network between ranks are measured.
No shard is read: one rank of each host asks the file system for its size. What cannot work at all (a folder that cannot
be written, GPUs or instructions that are missing) was refused before: ``run_folder``, ``device``.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from bert_job.run_config import RunConfig
from bert_trainer.checkpoints.checkpoint import list_checkpoints
from bert_trainer.checkpoints.store import num_left_on_full_disk
from bert_trainer.errors import EXIT_INFRASTRUCTURE, DataUnreadable, InputError, StorageFailed
from bert_trainer.model.backends.cpu.capability import check_flags
from bert_trainer.model.backends.cpu.library import processor_flags
from bert_trainer.model.bert import Bert
from bert_trainer.parallel.world import BUCKET_ELEMENTS, World, gather_numbers
from bert_trainer.system.available_memory import available_bytes, total_bytes
from bert_trainer.training.learner import Learner
from bert_trainer.training.run_data import RunData
from bert_trainer.training.run_writer import RunWriter

CLOCK_SKEW_S = 5.0
"""More is worth a word: whoever compares logs of two nodes would be misled."""
_ROUNDS = 5
_NOWHERE = -1
# In place of a file's size.
_GONE, _UNREADABLE, _OUT_OF_REACH = -1, -2, -3


class Finding(NamedTuple):
    """A possible performance problem or late failure; the run continues."""

    name: Literal["ClockSkew", "LittleMemory", "SlowProcessors"]
    """For programs; docs/concepts/hangs.md lists them."""
    text: str
    """For people, with what to do."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """Measured network properties."""

    latency_s: float
    """Of an all-reduce of one number, the median."""
    bandwidth_bytes_per_s: float
    """Of an all-reduce of one bucket: its bytes over the median time."""
    clock_skew_s: float
    """Between the clocks of the ranks that differ most."""


def check_before_training(
    config: RunConfig,
    data: RunData,
    learner: Learner[Bert],
    device: torch.device,
    world: World,
    writer: RunWriter,
    *,
    first_stage: int,
) -> None:
    """Run all checks of what is left from a stage on, and report what was found; collective.

    Raises:
        InputError, DataUnreadable, StorageFailed: as ``check_same_shards``; the last also where there is no room for
            two checkpoints.
    """
    needed = checkpoint_bytes(learner)
    free = writer.on_rank_0(lambda: check_room(writer.folder.path, needed, config.checkpoint.keep))
    compared = _compared(data, first_stage, skips=config.dataset.on_unreadable_shard == "Skip")
    check_same_shards(world, compared, has_begun=any(it.is_begun for it in data.training.values()))
    hosts = compare_hosts(world, config.precision if device.type == "cpu" else None)
    network = measure(world, device)
    findings = [*hosts.findings(needed)]
    if network is not None and network.clock_skew_s > CLOCK_SKEW_S:
        findings.append(Finding("ClockSkew", "the clocks of these hosts differ: set up time servers"))
    writer.event(
        "preflight",
        latency_us=None if network is None else network.latency_s * 1e6,
        bandwidth_mb_per_s=None if network is None else network.bandwidth_bytes_per_s / 1e6,
        clock_skew_s=None if network is None else network.clock_skew_s,
        output_free_gb=None if free is None else free / 1e9,
        memory_gb=min(hosts.memory_bytes) / 1e9,
        memory_available_gb=min(hosts.available_bytes) / 1e9,
        findings=",".join(finding.name for finding in findings) or None,
        message="; ".join(finding.text for finding in findings) or None,
    )


@dataclass(frozen=True, slots=True)
class Hosts:
    """Memory and processors of the ranks' hosts, by rank."""

    memory_bytes: list[float]
    """The machine's, or the container's limit."""
    available_bytes: list[float]
    """Of it, with the model loaded."""
    slow_ranks: list[int]
    """Those whose processor lacks the instructions that make the run's precision fast."""
    precision: str | None

    def findings(self, checkpoint: int) -> Iterator[Finding]:
        """Yield performance problems and late failures to expect. checkpoint: bytes of one."""
        if 0 < len(self.slow_ranks) < len(self.memory_bytes):
            ranks = ", ".join(map(str, self.slow_ranks))
            yield Finding(
                "SlowProcessors",
                f"the processors of ranks {ranks} lack instructions for {self.precision} that the others have: all "
                "wait for them; choose nodes alike with spec.scheduling.nodeSelector",
            )
        # It is copied before it is written in the background, on rank 0 alone.
        if self.available_bytes[0] < checkpoint:
            yield Finding(
                "LittleMemory",
                f"rank 0 has {self.available_bytes[0] / 1e9:.1f} GB of memory left, and copies {checkpoint / 1e9:.1f} "
                "GB for each checkpoint: raise resources.memory",
            )


def compare_hosts(world: World, precision: str | None) -> Hosts:
    """Compare the ranks' hosts; collective. precision: of a run on CPUs, else None."""
    is_slow = precision is not None and check_flags(precision, processor_flags()) is not None
    found = gather_numbers(world, [total_bytes(), available_bytes(), is_slow])
    slow = [rank for rank, (*_, is_slow_there) in enumerate(found) if is_slow_there]
    return Hosts([total for total, *_ in found], [free for _, free, _ in found], slow, precision)


def checkpoint_bytes(learner: Learner[Bert]) -> int:
    """Return what one checkpoint takes: weights and two moments of each."""
    values = learner.parameters.values
    return 3 * values.numel() * values.element_size()


def check_room(folder: Path, bytes_of_one: int, keep: int) -> int | None:
    """Check that the output folder has room for the next two checkpoints.

    On a full disk those behind the newest ``num_left_on_full_disk`` give way to the next, but for the last of a
    finished stage: these are room, and others are not.

    Args:
        folder: The run's.
        bytes_of_one: What a checkpoint takes.
        keep: ``checkpoint.keep``.

    Returns:
        Free bytes; None where the file system does not tell, as those of object stores: then nothing is refused.

    Raises:
        StorageFailed: they don't.
    """
    listed, _ = list_checkpoints(folder / "checkpoints")
    num_left, newest_first = num_left_on_full_disk(keep), list(listed.items())
    leaves = [path for path, position in newest_first[num_left:] if not position.stage_finished]
    there = sum(file.stat().st_size for path in leaves for file in path.iterdir())
    one_will_leave = any(not position.stage_finished for _, position in newest_first[num_left - 1 :])
    # One is complete before an older one is deleted; where one that is there gives way to the second, one has to fit.
    needed = bytes_of_one if one_will_leave else 2 * bytes_of_one
    usage = shutil.disk_usage(folder)
    if usage.total == 0:
        return None
    free = usage.free
    if free + there < needed:
        raise StorageFailed(
            f"{folder}: {free / 1e9:.2f} GB are free; the next checkpoints take {needed / 1e9:.2f} GB, and one is "
            "complete before an older one is deleted",
            hint="free space, or use a larger volume for output",
        )
    return free


def _compared(data: RunData, first_stage: int, *, skips: bool) -> list[Path]:
    """Return what all hosts have to see alike, of the stages that are left.

    skips: what a host has lost of the shards to train on since the run began is left out by all.
    """
    stages = [it for index, it in data.training.items() if index >= first_stage and not (skips and it.is_begun)]
    sets = [it for index, it in data.evaluation.items() if index >= first_stage]
    paths = [path for it in stages for path in it.folder.paths] + [path for it in sets for path in it.paths]
    return list(dict.fromkeys(paths))


def check_same_shards(world: World, paths: Sequence[Path], *, has_begun: bool = False) -> None:
    """Check that every host has rank 0's shards, by names and sizes; collective. has_begun: hosts had them before.

    Raises:
        StorageFailed: a rank cannot reach them, or all of a folder are gone with which the run has begun; exit code 4.
        DataUnreadable: rank 0 has lost some.
        InputError: another host sees others, or none. Every rank raises the same, about one rank and path.
    """
    # Of one host the ranks see the same, and file servers are asked for thousands of files by each that looks.
    looks = world.local_rank == 0
    # Rank 0 has opened them a moment ago, or has begun with them.
    mine = _describe_all(paths, may_be_absent=world.rank > 0 and not has_begun) if looks else []
    theirs = world.broadcast_object(mine)
    differ = ((place, own) for place, (own, other) in enumerate(zip(mine, theirs, strict=looks)) if own != other)
    # With rank 0's own all are equal; what is wrong with one of them is wrong with it alone.
    lacks = ((place, own) for place, own in enumerate(mine) if own < 0)
    place, own = next(lacks if world.rank == 0 else differ, (_NOWHERE, 0))
    found = gather_numbers(world, [place, own == _OUT_OF_REACH])
    wrong = [(bool(is_out), rank, paths[int(place)]) for rank, (place, is_out) in enumerate(found) if place >= 0]
    if not wrong:
        return
    is_out, rank, path = max(wrong, key=lambda it: (it[0], -it[1]))
    if is_out:
        raise StorageFailed(
            f"{path}: rank {rank} cannot reach it",
            hint="check that the dataset's volume is mounted on its node and that its server answers",
            exit_code=EXIT_INFRASTRUCTURE,
        )
    if rank == 0:
        raise DataUnreadable(
            f"{path}: is gone",
            hint="restore it and resume; what a run is evaluated on is never left out",
        )
    raise InputError(
        f"{path}: rank {rank} sees another file than rank 0, or none",
        hint="mount the same data set on every node, read-only, and wait until copies of it are complete",
    )


def _describe_all(paths: Sequence[Path], *, may_be_absent: bool) -> list[int]:
    """Return the size of each file, or what is wrong with it. may_be_absent: a folder that was never mounted."""
    found = {path: _describe(path) for path in paths}
    if may_be_absent:
        return list(found.values())
    folders = {path.parent for path, size in found.items() if size == _GONE}
    unmounted = {folder for folder in folders if _is_empty(folder)}
    return [_OUT_OF_REACH if size == _GONE and path.parent in unmounted else size for path, size in found.items()]


def _is_empty(folder: Path) -> bool:
    """Tell whether a folder is gone, or empty as a mount point is."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except OSError:
        return True


def _describe(path: Path) -> int:
    try:
        status = path.stat()
    except FileNotFoundError:
        return _GONE
    except OSError:
        return _OUT_OF_REACH
    return status.st_size if os.access(path, os.R_OK) else _UNREADABLE


def measure(world: World, device: torch.device) -> Preflight | None:
    """Measure latency and bandwidth of all-reduces, and how far the ranks' clocks are apart; collective.

    None for a single rank.
    """
    if world.size == 1:
        return None
    # All leave the barrier together, to within its latency, and then look at their clocks.
    world.sum_numbers([0.0])
    clocks = [clock_s for (clock_s,) in gather_numbers(world, [time.time()])]
    bucket = torch.zeros(BUCKET_ELEMENTS, device=device)
    latencies_s, times_s = [], []
    for _ in range(_ROUNDS):
        began_at_s = time.perf_counter()
        world.sum_numbers([0.0])
        latencies_s.append(time.perf_counter() - began_at_s)
        began_at_s = time.perf_counter()
        world.all_reduce_(bucket)
        times_s.append(time.perf_counter() - began_at_s)
    median_s = sorted(times_s)[_ROUNDS // 2]
    return Preflight(
        latency_s=sorted(latencies_s)[_ROUNDS // 2],
        bandwidth_bytes_per_s=bucket.numel() * bucket.element_size() / median_s,
        clock_skew_s=max(clocks) - min(clocks),
    )
