"""Faults of what a job reads and writes: its volume, its newest checkpoint, its shards."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from fault import Fault, NotInEffect, Scene, newest_ranks
from faulty_volume import FaultyVolume, Trouble
from node_processes import signal_pod
from real_jobs import DATA_JOB

HELD_S = 20.0


def _trouble(how: Trouble) -> tuple[Callable[[Scene], None], Callable[[Scene], None]]:
    """Return what begins a trouble of the job's own files, and what ends it."""

    def begin(scene: Scene) -> None:
        volume = FaultyVolume.at(scene.volume)
        scene.after.callback(volume.set_trouble, scene.job.name, None)
        volume.set_trouble(scene.job.name, how)

    def end(scene: Scene) -> None:
        FaultyVolume.at(scene.volume).set_trouble(scene.job.name, None)

    return begin, end


def _after(change: Callable[[Scene, Path], None]) -> Callable[[Scene], None]:
    """Return a fault that changes the newest checkpoint, and kills the pod that writes them before it writes another.

    Stopped first: a checkpoint that appeared in between would be resumed from instead.
    """

    def inject(scene: Scene) -> None:
        writer = newest_ranks(scene)[0]
        signal_pod(writer, signal.SIGSTOP)
        try:
            checkpoints = sorted((scene.folder / "checkpoints").glob("[!.]*/manifest.json"))
            if not checkpoints:
                raise NotInEffect("there was no checkpoint yet")
            change(scene, checkpoints[-1].parent)
        finally:
            signal_pod(writer, signal.SIGKILL)

    return inject


def _damage(scene: Scene, checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    place = scene.random.randrange(path.stat().st_size // 2, path.stat().st_size)
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << scene.random.randrange(8)]))
    scene.notes.append(f"one bit of {path.parent.name}/{path.name} changed")


def _truncate(scene: Scene, checkpoint: Path) -> None:
    path = checkpoint / "optimizer.safetensors"
    os.truncate(path, scene.random.randrange(path.stat().st_size))


def _replace_by_another_job_s(scene: Scene, checkpoint: Path) -> None:
    # That of the very end: whoever takes it for its own has nothing left to do.
    other = sorted((scene.volume / scene.undisturbed.name / "checkpoints").glob("[!.]*/manifest.json"))[-1].parent
    shutil.copytree(other, checkpoint.parent / other.name)
    for path in (checkpoint.parent / other.name, *(checkpoint.parent / other.name).iterdir()):
        os.chown(path, checkpoint.stat().st_uid, checkpoint.stat().st_gid)


def _was_refused(scene: Scene) -> str:
    refused = scene.folder / "checkpoints/refused"
    return "" if refused.is_dir() and any(refused.iterdir()) else "no checkpoint was refused"


def _remove_a_shard(scene: Scene) -> None:
    """Remove a shard that is trained on, and kill a pod: ranks that have read it may not need it again."""
    shards = sorted((scene.volume / DATA_JOB).rglob("training_*.hdf5"))
    if not shards:
        raise NotInEffect(f"no shards below {DATA_JOB}/")
    shard = scene.random.choice(shards)
    shard.unlink()
    scene.notes.append(f"{shard.relative_to(scene.volume)} removed")
    signal_pod(scene.random.choice(newest_ranks(scene)), signal.SIGKILL)


def _volume_fault(name: str, how: Trouble, *, steps_interrupted: bool = True) -> Fault:
    begin, end = _trouble(how)
    return Fault(
        name=name,
        group="training",
        inject=begin,
        heal=end,
        hold_s=HELD_S,
        steps_interrupted=steps_interrupted,
        faulty_volume=True,
    )


def _checkpoint_fault(name: str, change: Callable[[Scene, Path], None], *, lost_intervals: int = 2) -> Fault:
    return Fault(
        name=name,
        group="training",
        inject=_after(change),
        lost_intervals=lost_intervals,
        in_effect=_was_refused,
    )


FAULTS = (
    _volume_fault("volume full for 20 s", "full"),
    _volume_fault("volume read-only for 20 s", "read-only"),
    _volume_fault("volume slow for 20 s", "slow", steps_interrupted=False),
    _checkpoint_fault("newest checkpoint damaged", _damage),
    _checkpoint_fault("newest checkpoint truncated", _truncate),
    _checkpoint_fault("newest checkpoint from another job", _replace_by_another_job_s, lost_intervals=1),
    Fault(
        name="a shard removed",
        group="training",
        inject=_remove_a_shard,
        ends="Failed",
        reason="DataUnreadable",
        own_namespace=True,
    ),
)
