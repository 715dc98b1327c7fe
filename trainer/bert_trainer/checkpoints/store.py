"""Checkpoints: folders written aside, verified by sums, renamed into place.

``checkpoints/<stage>-<step>/`` holds ``model.safetensors``, ``optimizer.safetensors`` and ``manifest.json``
with the SHA-256 of both and of itself, the position in the run and what the numbers were computed with. A folder with
that name is complete: it gets it by a rename, after everything in it has reached the disk and after the fence was
checked. Nothing else is needed to go on: sample order and dropout are functions of seed and position.

What does not verify (damaged, of another contract version, of another job) counts for nothing: it is moved to
``checkpoints/refused/`` and named in a warning, and what verifies is never deleted on its account.
"""

from __future__ import annotations

import contextlib
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

from bert_trainer.config.run_config import CONTRACT_VERSION
from bert_trainer.errors import TrainerError
from bert_trainer.model.backends.cpu import library
from bert_trainer.output.run_folder import RunFolder, remove_folder
from bert_trainer.system.atomic_files import disk_errors, is_full

logger = logging.getLogger(__name__)

_MANIFEST = "manifest.json"
_MODEL = "model.safetensors"
_OPTIMIZER = "optimizer.safetensors"
_OWN_SUM = "manifest_sha256"
_REFUSED = "refused"

# What no path of a whole checkpoint answers with. Other errors may pass: then it would be wrong to go on without it.
_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


@dataclass(frozen=True, slots=True)
class Position:
    """Where in the run a checkpoint was taken."""

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
    """Updates that bias correction counts, where they are not ``num_applied``. Only then it is in the manifest, which
    releases up to 0.1 would otherwise refuse."""

    @property
    def stage_finished(self) -> bool:
        """True for the checkpoint at a stage's end."""
        return self.step >= self.total_steps

    @property
    def folder_name(self) -> str:
        """What the checkpoint's folder is called."""
        return f"{self.stage}-{self.step:08d}"


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
    job: str
    """Whose run wrote it, as ``namespace/name``."""

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
    _verified: dict[Path, object] = field(default_factory=dict, init=False)
    """Stamps of the files whose sums were found, or made, right by this process."""

    @property
    def root(self) -> Path:
        """Where checkpoints lie."""
        return self.folder.path / "checkpoints"

    def path_of(self, position: Position) -> Path:
        """Return where the checkpoint of a position is, or will be."""
        return self.root / position.folder_name

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
            if target.exists() and (found := self._verify(target)) is not None:
                if found.position == position:
                    return  # a stop right after a resume or a save; there is always a good one on disk
                self._set_aside(target, f"{target}: holds another state of this step")
            try:
                self._write_aside(aside, position, tensors)
            except OSError as error:
                remove_folder(aside)
                # What this write would push out, or a lower keep has made surplus, may go first if others are whole.
                if not is_full(error) or not self.prune(max(self.keep - 1, 1)):
                    raise
                self._write_aside(aside, position, tensors)
            self.folder.check_fence()
            aside.rename(target)
            _sync_folder(self.root)
            self._verified[target] = _stamp(target)
            self.prune(self.keep)
            self.on_saved(position, target)
        except OSError as error:
            remove_folder(aside)
            self._error = self._write_error(target, tensors, error)
            self._error.__cause__ = error
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
            "position": {name: value for name, value in asdict(position).items() if value is not None},
            "environment": asdict(self.environment),
            "sha256": {name: _sha256(aside / name) for name in (_MODEL, _OPTIMIZER)},
        }
        with (aside / _MANIFEST).open("w") as file:
            json.dump({**manifest, _OWN_SUM: _sum_of(manifest)}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(aside)

    def remove_leftovers(self) -> None:
        """Delete what earlier attempts had begun to write or to delete when they were killed."""
        self.folder.check_fence()
        for path in self.root.glob(".*"):
            remove_folder(path)

    def remove_all(self) -> None:
        """Delete every checkpoint but those that were set aside; for a run that has written its results."""
        self.wait()
        self.folder.check_fence()
        for path in self.root.glob("*"):
            if path.name != _REFUSED:
                remove_folder(path)
        with contextlib.suppress(OSError):
            self.root.rmdir()

    def newest_good(self) -> Checkpoint | None:
        """Return the newest checkpoint that verifies; what is newer and does not is named and set aside.

        Raises:
            TrainerError: one cannot be read for a reason that may pass, so going on without it would lose it.
        """
        listed, unreadable = _newest_first(self.root)
        for path, error in unreadable:
            self._refuse(path, error)
        return next((found for path in listed if (found := self._verify(path)) is not None), None)

    def prune(self, keep: int) -> int:
        """Delete what is older than the newest ``keep`` that verify, but never the last one of a finished stage.

        Returns how many have gone. Each is verified once in the life of a process, unless its files change.

        Raises:
            TrainerError: the folder is no longer ours, or one cannot be read or deleted.
        """
        self.folder.check_fence()
        listed, _ = _newest_first(self.root)
        if all(position.stage_finished for position in list(listed.values())[keep:]):
            return 0
        num_kept = num_gone = 0
        for path, position in listed.items():
            if num_kept < keep:
                num_kept += self._verify(path) is not None
            elif not position.stage_finished:
                # Renamed first: one that is deleted in part would look damaged.
                doomed = self.root / f".{path.name}.{os.getpid()}"
                with disk_errors(path):
                    path.rename(doomed)
                remove_folder(doomed)
                num_gone += 1
        return num_gone

    def _verify(self, path: Path) -> Checkpoint | None:
        """Return a checkpoint of this run that is whole; anything else is set aside."""
        try:
            stamp = _stamp(path)
            found = read_checkpoint(path, with_sums=self._verified.get(path) != stamp)
            own = json.loads(self.folder.claim_record)["job"]
            if found.job != own:
                raise TrainerError(f"{path}: was written by the job {found.job}, this is {own}")
            if found.position.folder_name != path.name:
                raise TrainerError(f"{path}: its {_MANIFEST} is that of {found.position.folder_name}")
        except (OSError, TrainerError) as error:
            self._refuse(path, error)
            return None
        self._verified[path] = stamp
        return found

    def _refuse(self, path: Path, error: OSError | TrainerError) -> None:
        """Set a checkpoint aside, or raise where it may be whole."""
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and cause.errno not in _DAMAGE:
            raise TrainerError(
                f"{path}: cannot be read ({cause})",
                hint="see that the output volume answers and that this user may read it, or move that folder out of "
                "checkpoints/ to go on from the one before it",
            ) from cause
        self._set_aside(path, error)

    def _set_aside(self, path: Path, why: object) -> None:
        """Move a checkpoint out of the way, to be looked at by people, and say so."""
        self.folder.check_fence()
        refused = self.root / _REFUSED
        numbered = (refused / f"{path.name}{suffix}" for suffix in ("", *(f".{number}" for number in range(2, 1000))))
        try:
            refused.mkdir(exist_ok=True)
            target = next(place for place in numbered if not place.exists())
            path.rename(target)
        except OSError as error:
            logger.warning("Passed over a checkpoint: %s (it could not be moved to %s: %s)", why, refused, error)
        else:
            logger.warning("Set a checkpoint aside: %s; it is now %s", why, target)

    def _write_error(self, target: Path, tensors: dict[str, dict[str, Tensor]], error: OSError) -> TrainerError:
        hint = "check the output volume; the earlier checkpoints are unharmed"
        if is_full(error):
            needed = sum(tensor.nbytes for named in tensors.values() for tensor in named.values()) / 1e6
            hint = f"free space on the output volume, {needed:.1f} MB at least; the earlier checkpoints are unharmed"
            if self.keep > 2:
                hint += (
                    ". Or start the job again with a lower checkpoint.keep and output.ifExists: Resume: it deletes "
                    "surplus ones before it writes"
                )
        return TrainerError(f"{target}: the checkpoint could not be written ({error})", hint=hint)


def find_newest_good(root: Path) -> Checkpoint | None:
    """Return the newest whole checkpoint below a folder, whosever it is; damaged ones are named and passed over."""
    listed, unreadable = _newest_first(root)
    for _, error in unreadable:
        logger.warning("Skipped a checkpoint: %s", error)
    for path in listed:
        try:
            return read_checkpoint(path)
        except TrainerError as error:
            logger.warning("Skipped a checkpoint: %s", error)
    return None


def _newest_first(root: Path) -> tuple[dict[Path, Position], list[tuple[Path, TrainerError]]]:
    """Return checkpoints by their manifests, which may lie, and those whose manifests cannot be used."""
    found, unreadable = {}, []
    for path in [manifest.parent for manifest in root.glob(f"*/{_MANIFEST}")]:
        if path.name.startswith("."):
            continue
        try:
            found[path] = read_checkpoint(path, with_sums=False).position
        except TrainerError as error:
            unreadable.append((path, error))
    newest = sorted(found, key=lambda path: (found[path].stage_index, found[path].step), reverse=True)
    return {path: found[path] for path in newest}, unreadable


def read_checkpoint(path: Path, *, with_sums: bool = True) -> Checkpoint:
    """Read a checkpoint's manifest and verify its files against it. with_sums: read the large files as well.

    Raises:
        TrainerError: a file is missing, damaged or of another contract version.
    """
    try:
        manifest: dict[str, Any] = json.loads((path / _MANIFEST).read_text())
        if manifest["contract_version"] != CONTRACT_VERSION:
            raise TrainerError(
                f"{path}: written by contract version {manifest['contract_version']}, this is {CONTRACT_VERSION}"
            )
        own_sum = manifest.pop(_OWN_SUM, None)  # releases up to 0.1 wrote none
        if own_sum is not None and own_sum != _sum_of(manifest):
            raise TrainerError(f"{path / _MANIFEST}: its SHA-256 is not the one in it")
        for name in (_MODEL, _OPTIMIZER):
            wanted = manifest["sha256"][name]
            if with_sums and _sha256(path / name) != wanted:
                raise TrainerError(f"{path / name}: its SHA-256 is not the one in {_MANIFEST}")
        position = Position(**manifest["position"])
        if not all(type(number) is int for number in (position.stage_index, position.step, position.total_steps)):
            raise TypeError("a position is counted in whole numbers")
        return Checkpoint(path, position, Environment(**manifest["environment"]), manifest["run"]["job"])
    except OSError as error:
        raise TrainerError(f"{path}: cannot be read ({error})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TrainerError(f"{path / _MANIFEST}: not a manifest ({type(error).__name__}: {error})") from error


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


def _sum_of(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _stamp(path: Path) -> object:
    """Return what changes when one of a checkpoint's files is written or replaced."""
    stats = [(path / name).stat() for name in (_MANIFEST, _MODEL, _OPTIMIZER)]
    return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
