"""Checkpoints: folders written aside, verified by sums, renamed into place.

``checkpoints/<stage>-<step>/`` holds ``model.safetensors``, ``optimizer.safetensors`` and ``manifest.json``
with the SHA-256 of both, the position in the run and what the numbers were computed with. A folder with that
name is complete: it gets it by a rename, after everything in it has reached the disk and after the fence was
checked. Nothing else is needed to go on: sample order and dropout are functions of seed and position.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import platform
import re
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bert_trainer.config import CONTRACT_VERSION
from bert_trainer.errors import TrainerError
from bert_trainer.kernels import library
from bert_trainer.run_folder import RunFolder, remove_folder

logger = logging.getLogger(__name__)

_MANIFEST = "manifest.json"
_MODEL = "model.safetensors"
_OPTIMIZER = "optimizer.safetensors"


@dataclass(frozen=True, slots=True)
class Position:
    """Where in the run a checkpoint was taken."""

    stage_index: int
    stage: str
    step: int
    """Steps taken in this stage; skipped ones (fp16 overflow) count, since their samples are used up."""
    total_steps: int
    num_applied: int
    """Optimizer updates applied in this stage; the schedule and bias correction count these."""
    samples_seen: int
    """Samples of this stage's order that are behind it."""
    sample_hash: str
    """Chained SHA-256 of every sample number of the stage so far, in order."""
    loss_scale: float
    finite_steps: int
    """Steps since the loss scale last changed."""

    @property
    def stage_finished(self) -> bool:
        """True for the checkpoint at a stage's end."""
        return self.step >= self.total_steps


@dataclass(frozen=True, slots=True)
class Environment:
    """What a bit-identical continuation needs to be the same."""

    world_size: int
    precision: str
    device: str
    threads: int
    instruction_set: str
    versions: dict[str, str]
    partitioning: str = "none"
    compression: str = "none"
    kernels: str = "none"

    @classmethod
    def current(
        cls,
        *,
        world_size: int,
        precision: str,
        device: torch.device,
        partitioning: str = "none",
        compression: str = "none",
    ) -> Environment:
        """Describe this process."""
        on_gpu = device.type == "cuda"
        return cls(
            world_size=world_size,
            precision=precision,
            device=torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
            threads=torch.get_num_threads(),
            instruction_set=torch.backends.cpu.get_cpu_capability(),
            versions={name: _version(name) for name in ("torch", "numpy", "horovod")},
            partitioning=partitioning,
            compression=compression,
            kernels="none" if on_gpu else library.identity(),
        )

    def differences(self, other: Environment) -> list[str]:
        """Return ``name before -> now`` for everything that differs; self is the earlier one."""
        before, now = asdict(self), asdict(other)
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

    def load(self) -> dict[str, dict[str, Tensor]]:
        """Return ``model``, ``first_moment`` and ``second_moment``, each by parameter name."""
        moments = load_file(self.path / _OPTIMIZER)
        return {
            "model": load_file(self.path / _MODEL),
            "first_moment": _strip(moments, "first_moment."),
            "second_moment": _strip(moments, "second_moment."),
        }


def _strip(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@dataclass(slots=True)
class CheckpointStore:
    """Writes, finds and prunes the checkpoints of one run. For rank 0 only."""

    folder: RunFolder
    environment: Environment
    keep: int
    on_saved: Callable[[Position, Path], None]
    """Called from the writing thread once a checkpoint is in place."""
    _thread: threading.Thread | None = field(default=None, init=False)
    _error: BaseException | None = field(default=None, init=False)

    @property
    def root(self) -> Path:
        """Where checkpoints lie."""
        return self.folder.path / "checkpoints"

    def path_of(self, position: Position) -> Path:
        """Return where the checkpoint of a position is, or will be."""
        return self.root / f"{position.stage}-{position.step:08d}"

    def save(
        self,
        position: Position,
        tensors: dict[str, dict[str, Tensor]],
        *,
        handed_over: frozenset[str] = frozenset(),
    ) -> None:
        """Copy the state now and write it in the background; waits for an earlier one still being written.

        tensors: as ``Checkpoint.load`` returns them. handed_over: parts that nobody will change, taken uncopied.

        Raises:
            TrainerError: the write before this one failed.
        """
        self.wait()
        copies = {
            part: {
                name: tensor.detach().to("cpu", copy=part not in handed_over).contiguous()
                for name, tensor in named.items()
            }
            for part, named in tensors.items()
        }
        self._thread = threading.Thread(target=self._write, args=(position, copies), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the checkpoint being written.

        Raises:
            TrainerError: it could not be written, or the folder is no longer ours.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.raise_if_failed()

    def raise_if_failed(self) -> None:
        """Raise what a background write ended with; costs nothing otherwise."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, position: Position, tensors: dict[str, dict[str, Tensor]]) -> None:
        target = self.path_of(position)
        aside = self.root / f".{target.name}.{os.getpid()}"
        try:
            if _is_whole(target, position):
                return  # a stop right after a resume or a save; there is always a good one on disk
            self._write_aside(aside, position, tensors)
            self.folder.check_fence()
            # Only a damaged checkpoint can be in the way.
            remove_folder(target)
            aside.rename(target)
            _sync_folder(self.root)
            self._prune()
            self.on_saved(position, target)
        except OSError as error:
            remove_folder(aside)
            self._error = _write_error(target, error)
        except BaseException as error:  # noqa: BLE001 - raised in the training thread by raise_if_failed
            remove_folder(aside)
            self._error = error

    def _write_aside(self, aside: Path, position: Position, tensors: dict[str, dict[str, Tensor]]) -> None:
        remove_folder(aside)
        aside.mkdir(parents=True)
        moments = {
            f"{part}.{name}": tensor
            for part in ("first_moment", "second_moment")
            for name, tensor in tensors[part].items()
        }
        save_tensors(tensors["model"], aside / _MODEL)
        save_tensors(moments, aside / _OPTIMIZER)
        manifest = {
            "contract_version": CONTRACT_VERSION,
            "run": json.loads(self.folder.claim_record),
            "position": asdict(position),
            "environment": asdict(self.environment),
            "sha256": {name: _sha256(aside / name) for name in (_MODEL, _OPTIMIZER)},
        }
        with (aside / _MANIFEST).open("w") as file:
            json.dump(manifest, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(aside)

    def remove_leftovers(self) -> None:
        """Delete what earlier attempts had begun to write when they were killed."""
        self.folder.check_fence()
        for path in self.root.glob(".*"):
            remove_folder(path)

    def remove_all(self) -> None:
        """Delete every checkpoint; for a run that has written its results."""
        self.wait()
        self.folder.check_fence()
        remove_folder(self.root)

    def newest_good(self) -> Checkpoint | None:
        """Return the newest checkpoint whose sums agree; damaged ones are named in a warning and passed over."""
        return find_newest_good(self.root)

    def _prune(self) -> None:
        """Delete what is older than the newest ``keep``, but never the last one of a finished stage."""
        self.folder.check_fence()
        for path in _newest_first(self.root)[self.keep :]:
            position = json.loads((path / _MANIFEST).read_text())["position"]
            if position["step"] < position["total_steps"]:
                remove_folder(path)


def find_newest_good(root: Path) -> Checkpoint | None:
    """Return the newest checkpoint below a folder whose sums agree; damaged ones are named and passed over."""
    for path in _newest_first(root):
        try:
            return read_checkpoint(path)
        except TrainerError as error:
            logger.warning("Skipped a checkpoint: %s", error)
    return None


def _newest_first(root: Path) -> list[Path]:
    found = []
    for manifest in root.glob(f"*/{_MANIFEST}"):
        if manifest.parent.name.startswith("."):
            continue
        try:
            position = json.loads(manifest.read_text())["position"]
            found.append(((position["stage_index"], position["step"]), manifest.parent))
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("Skipped a checkpoint: %s: unreadable manifest (%s)", manifest, error)
    return [path for _, path in sorted(found, reverse=True)]


def _is_whole(path: Path, position: Position) -> bool:
    if not path.exists():
        return False
    try:
        return read_checkpoint(path).position == position
    except TrainerError:
        return False


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint's manifest and verify its files against it.

    Raises:
        TrainerError: a file is missing, damaged or of another contract version.
    """
    try:
        manifest: dict[str, Any] = json.loads((path / _MANIFEST).read_text())
        if manifest["contract_version"] != CONTRACT_VERSION:
            raise TrainerError(
                f"{path}: written by contract version {manifest['contract_version']}, this is {CONTRACT_VERSION}"
            )
        for name, wanted in manifest["sha256"].items():
            if _sha256(path / name) != wanted:
                raise TrainerError(f"{path / name}: its SHA-256 is not the one in {_MANIFEST}")
        return Checkpoint(path, Position(**manifest["position"]), Environment(**manifest["environment"]))
    except OSError as error:
        raise TrainerError(f"{path}: cannot be read ({error})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TrainerError(f"{path / _MANIFEST}: not a manifest ({error})") from error


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
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_error(target: Path, error: OSError) -> TrainerError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "free space on the output volume or lower checkpoint.keep; the earlier checkpoints are unharmed"
    else:
        hint = "check the output volume; the earlier checkpoints are unharmed"
    return TrainerError(f"{target}: the checkpoint could not be written ({error})", hint=hint)
