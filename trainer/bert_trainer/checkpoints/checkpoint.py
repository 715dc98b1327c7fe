"""A checkpoint on disk: its position and environment, its manifest and checksums, and how it is read and verified.

``model.safetensors``, ``optimizer.safetensors``, and ``manifest.json`` with the SHA-256 of both and of itself. Nothing
here deletes or moves a checkpoint; ``store`` does.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import platform
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bert_job.foreign_text import printable
from bert_trainer.errors import InputError, TrainerError
from bert_trainer.model.backends.cpu import library
from bert_trainer.system.files import bytes_in_holes

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
FORMAT_KEY, FORMAT_VERSION = "contract_version", 1
"""Of checkpoints alone; once it was that of run configurations, whose name the key still has."""
OWN_SUM_KEY = "manifest_sha256"
_MAX_HOLES_BYTES = 64 << 20
"""Bytes that a sparse copy may leave out of another run's file."""
_MAX_MANIFEST_BYTES = 1 << 20
"""Ours have 2 kB; of a larger one the beginning is read, which is no JSON."""

_MAX_COUNT = 1 << 53
"""Up to which every number is one that floating point holds as well."""


@dataclass(frozen=True, slots=True)
class Position:
    """Position in the run at which a checkpoint was taken."""

    stage_index: int
    stage: str
    step: int
    """Steps taken in this stage; skipped ones (fp16 overflow) count, since their samples are used up."""
    total_steps: int
    num_applied: int
    """Optimizer updates applied in this stage; the schedule counts these."""
    samples_seen: int
    """Samples of this stage's order that are behind it."""
    sample_hash: str
    """Chained SHA-256 of every sample number of the stage so far, in order."""
    loss_scale: float
    finite_steps: int
    """Steps since the loss scale last changed."""
    moment_steps: int | None = None
    """Updates that bias correction counts, where they are not ``num_applied``; None: they are."""

    left_out: dict[str, int] | None = None
    """Shards that are left out of the stage's order, by name, and from which place on; None: none. Releases that do not
    know it refuse such a manifest: they would go on with other samples."""

    @property
    def stage_finished(self) -> bool:
        """Whether the checkpoint is the one at a stage's end."""
        return self.step >= self.total_steps

    @property
    def folder_name(self) -> str:
        """Name of the checkpoint's folder."""
        return f"{self.stage}-{self.step:08d}"


@dataclass(frozen=True, slots=True)
class Environment:
    """Properties that must be equal for a bit-identical resume."""

    world_size: int
    precision: str
    device: str
    threads: int
    instruction_set: str
    versions: dict[str, str]
    # With defaults, since manifests of earlier releases may lack them.
    partitioning: str = "none"
    compression: str = "none"
    kernels: str = "none"
    collectives: str = "horovod"

    @classmethod
    def current(
        cls,
        *,
        world_size: int,
        precision: str,
        device: torch.device,
        partitioning: str = "none",
        compression: str = "none",
        collectives: str = "horovod",
        engine: str = "eager",
    ) -> Environment:
        """Return the environment of this process."""
        on_gpu, by_horovod = device.type == "cuda", collectives == "horovod"
        kernels = "none" if on_gpu else library.identity()
        if engine == "ort":
            kernels = f"ort-{_version('onnxruntime-training')}"
        return cls(
            world_size=world_size,
            precision=precision,
            device=torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
            threads=torch.get_num_threads(),
            instruction_set=torch.backends.cpu.get_cpu_capability(),
            # torch.distributed's version is torch's own.
            versions={
                name: _version(name) for name in ("torch", "numpy", "horovod") if name != "horovod" or by_horovod
            },
            partitioning=partitioning,
            compression=compression,
            kernels=kernels,
            collectives=collectives,
        )

    def differences(self, other: Environment) -> list[str]:
        """Return ``name before -> now`` for everything that differs; self is the earlier one."""
        before, now = asdict(self), asdict(other)
        if self.world_size == other.world_size == 1:
            # One rank sums with nobody.
            now["collectives"] = before["collectives"]
            for versions in (before["versions"], now["versions"]):
                versions.pop("horovod", None)
        return [f"{name} {before[name]} -> {now[name]}" for name in before if before[name] != now[name]]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    position: Position
    environment: Environment
    job: str
    """Whose run wrote it, as ``namespace/name``."""
    model_sha256: str
    """Of the file with the weights, as the manifest says."""
    health: Mapping[str, Any] = field(default_factory=dict)
    """What was known of the stage's health (``training.health``). Beside the position, where releases that know nothing
    of it pass over it."""

    def load(self) -> dict[str, dict[str, Tensor]]:
        """Return ``model``, ``first_moment`` and ``second_moment``, each by parameter name.

        Raises:
            InputError: a file is no safetensors file although its checksum is right: whoever wrote it wrote both.
        """
        moments = _load_file(self.path / OPTIMIZER_FILE)
        return {
            "model": _load_file(self.path / MODEL_FILE),
            "first_moment": _strip(moments, "first_moment."),
            "second_moment": _strip(moments, "second_moment."),
        }


def _load_file(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        # Its words quote the file, which may hold anything.
        raise InputError(
            f"{printable(path)}: cannot be read ({printable(str(error)[:200])}); allowed: a safetensors file",
            hint="name another checkpoint, or copy this one again from the run that wrote it",
        ) from error


def _strip(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def find_latest_valid(root: Path, is_wanted: Callable[[Path], bool] = lambda _: True) -> Checkpoint | None:
    """Return the latest valid checkpoint below a folder, of any job; damaged ones are logged and skipped.

    Nothing is moved or deleted: the folder may belong to another run. Only those that ``is_wanted`` are looked at.
    """
    listed, unreadable = list_checkpoints(root)
    for _, error in unreadable:
        logger.warning("Skipped a checkpoint: %s", error)
    for path in filter(is_wanted, listed):
        try:
            return read_checkpoint(path, is_own=False)
        except TrainerError as error:
            logger.warning("Skipped a checkpoint: %s", error)
    return None


def list_checkpoints(root: Path) -> tuple[dict[Path, Position], list[tuple[Path, TrainerError]]]:
    """Return checkpoints by what their manifests claim, latest first, and those without a usable manifest."""
    found, unreadable = {}, []
    for path in [manifest.parent for manifest in root.glob(f"*/{MANIFEST_FILE}")]:
        # pathlib's * also matches staging folders and those that are being deleted. What lies in refused/ is a level
        # deeper.
        if path.name.startswith("."):
            continue
        try:
            found[path] = read_checkpoint(path, with_sums=False).position
        except TrainerError as error:
            unreadable.append((path, error))
    newest = sorted(found, key=lambda path: (found[path].stage_index, found[path].step), reverse=True)
    return {path: found[path] for path in newest}, unreadable


def read_checkpoint(path: Path, *, with_sums: bool = True, is_own: bool = True) -> Checkpoint:
    """Read a checkpoint's manifest and verify its files against it.

    Args:
        path: The checkpoint.
        with_sums: Read the large files as well.
        is_own: Whether the run that reads it has written it. The size of another's files is no more than a claim.

    Raises:
        TrainerError: a file is missing, damaged or of another format.
    """
    try:
        _check_regular(path / MANIFEST_FILE)
        with (path / MANIFEST_FILE).open("rb") as file:
            manifest: dict[str, Any] = json.loads(file.read(_MAX_MANIFEST_BYTES))
        if manifest[FORMAT_KEY] != FORMAT_VERSION:
            version = printable(str(manifest[FORMAT_KEY])[:100])
            raise TrainerError(f"{path}: written in format {version}, this trainer reads {FORMAT_VERSION}")
        if manifest.pop(OWN_SUM_KEY) != manifest_sum(manifest):
            raise TrainerError(f"{path / MANIFEST_FILE}: its SHA-256 is not the one in it")
        for name in (MODEL_FILE, OPTIMIZER_FILE):
            wanted = manifest["sha256"][name]
            if with_sums:
                _check_regular(path / name)
            if with_sums and not is_own and bytes_in_holes(path / name, _MAX_HOLES_BYTES) > _MAX_HOLES_BYTES:
                raise TrainerError(f"{path / name}: got bytes that were never written; allowed: a whole file")
            if with_sums and sha256_of(path / name) != wanted:
                raise TrainerError(f"{path / name}: its SHA-256 is not the one in {MANIFEST_FILE}")
        # How often a run of an earlier release had gone back to a checkpoint: from this one it goes on like any other.
        manifest["position"].pop("num_rollbacks", None)
        position = Position(**manifest["position"])
        counts = [position.stage_index, position.step, position.total_steps, position.num_applied]
        if position.moment_steps is not None:
            counts.append(position.moment_steps)
        counts.extend((position.left_out or {}).values())
        # Not isinstance: true is an int, too.
        if not all(type(number) is int and 0 <= number <= _MAX_COUNT for number in counts):
            raise TypeError(f"a position is counted in whole numbers from 0 to {_MAX_COUNT}")
        environment, job = Environment(**manifest["environment"]), manifest["run"]["job"]
        health = manifest.get("health", {})
        if not isinstance(health, dict):
            raise TypeError("health is an object")
        model_sha256 = manifest["sha256"][MODEL_FILE]
        return Checkpoint(path, position, environment, job, model_sha256, health)
    except OSError as error:
        raise TrainerError(f"{path}: cannot be read ({error})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # It quotes names of fields as they are.
        found = f"{type(error).__name__}: {printable(str(error)[:500])}"
        raise TrainerError(f"{path / MANIFEST_FILE}: not a manifest ({found})") from error


def _check_regular(path: Path) -> None:
    """Raise TrainerError where a file could not be read to its end, OSError where there is none."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise TrainerError(f"{path}: got a folder, a pipe or a device; allowed: a file, as it was written")


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file and wait until it has reached the disk; raises OSError and nothing else."""
    try:
        # The metadata is what transformers asks for.
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        # It wraps the operating system's error in words; the number in them is all that is left of it.
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error
    # save_file gives no descriptor to sync; fsync of another one flushes the same file.
    with path.open("rb") as file:
        os.fsync(file.fileno())


def manifest_sum(manifest: dict[str, Any]) -> str:
    """Return the SHA-256 of a manifest without its own sum, independent of the order of keys and of white space."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def files_stamp(path: Path) -> object:
    """Return a stamp that changes when one of a checkpoint's files is written or replaced."""
    stats = [(path / name).stat() for name in (MANIFEST_FILE, MODEL_FILE, OPTIMIZER_FILE)]
    return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
