"""Atomic checkpoints: written to a staging folder, synced, renamed into place, verified by checksum before use.

``checkpoints/<stage>-<step>/`` holds ``model.safetensors``, ``optimizer.safetensors`` and ``manifest.json``
with the SHA-256 of both and of itself, the position in the run and the environment. A folder of that name is complete:
the rename comes after everything in it has reached the disk and after the fence was checked. Resuming needs nothing
else: sample order and dropout are functions of seed and position.

A checkpoint that does not verify (damaged, of another contract version, of another job) is ignored: it is moved to
``checkpoints/refused/`` with a warning, and no valid checkpoint is ever deleted in its favour.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bert_trainer.checkpoints.checkpoint import (
    FORMAT_KEY,
    FORMAT_VERSION,
    MANIFEST_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    OWN_SUM_KEY,
    Checkpoint,
    Environment,
    Position,
    files_stamp,
    list_checkpoints,
    manifest_sum,
    read_checkpoint,
    save_tensors,
    sha256_of,
)
from bert_trainer.errors import TrainerError, TrainingUnhealthy
from bert_trainer.output.run_folder import RunFolder, remove_folder
from bert_trainer.system.atomic_files import describe_free, disk_errors, is_full, is_storage_error, random_suffix

logger = logging.getLogger(__name__)

CHECKPOINTS_FOLDER = "checkpoints"
"""In the output folder."""
_REFUSED = "refused"

# Errors that an intact checkpoint cannot cause. Others (a server that does not answer, missing rights) may be
# transient: falling back to an older checkpoint would then silently throw training away.
_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


def num_left_on_full_disk(keep: int) -> int:
    """Return how many checkpoints to keep when a full disk is pruned before the next write.

    At least one valid checkpoint stays throughout. keep: ``checkpoint.keep``.
    """
    return max(keep - 1, 1)


@dataclass(slots=True)
class CheckpointStore:
    """Writes, finds and prunes the checkpoints of one run. For rank 0 only."""

    folder: RunFolder
    environment: Environment
    keep: int
    on_saved: Callable[[Position, Path, float], None]
    """Called from the writing thread once a checkpoint is in place; the last argument is how many seconds it took."""
    again_after_s: tuple[float, ...] = ()
    """Waits between attempts to write one, where the volume is in trouble."""
    _hurries: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _error: BaseException | None = field(default=None, init=False)
    _verified: dict[Path, object] = field(default_factory=dict, init=False)
    """Stamps of the files that this process has written or verified. Checksums of gigabytes are computed once."""

    @property
    def root(self) -> Path:
        """Where checkpoints lie."""
        return self.folder.path / CHECKPOINTS_FOLDER

    def path_of(self, position: Position) -> Path:
        """Return where the checkpoint of a position is, or will be."""
        return self.root / position.folder_name

    def save(
        self,
        position: Position,
        tensors: dict[str, dict[str, Tensor]],
        *,
        owned: frozenset[str] = frozenset(),
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Copy the state now and write it in the background; waits for an earlier write first.

        Args:
            position: Where in the run the state was taken.
            tensors: As ``Checkpoint.load`` returns them.
            owned: Parts that the caller hands over and no longer changes: they are written without a copy.
            more: What else its manifest holds, by names that releases before pass over; not changed any more.

        Raises:
            TrainerError: the write before this one failed.
        """
        # One write at a time: a second copy of the state would not fit where one only just does.
        self.wait()
        # Copied before this returns: the next step updates these tensors in place while the thread writes.
        copies = {
            part: {
                name: tensor.detach().to("cpu", copy=part not in owned).contiguous() for name, tensor in named.items()
            }
            for part, named in tensors.items()
        }
        # Not a daemon: an interpreter that exits in between would wait for the write instead of cutting it.
        self._thread = threading.Thread(target=self._write, args=(position, copies, more or {}), name="checkpoint")
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

    def hurry(self) -> None:
        """Stop retrying on volume errors: the attempt is ending."""
        self._hurries.set()

    def raise_if_failed(self) -> None:
        """Raise the error of the background write, if it failed."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, position: Position, tensors: dict[str, dict[str, Tensor]], more: Mapping[str, Any]) -> None:
        target = self.path_of(position)
        staging = self.root / f".{target.name}.{random_suffix()}"
        began_at_s = time.monotonic()
        try:
            # Before anything is made: where a volume was mounted, a folder may be left that is not ours.
            self.folder.check_fence()
            # In this thread, which no step waits for.
            _check_finite(position, tensors)
            if target.exists() and (found := self._verify(target)) is not None:
                if found.position == position:
                    return  # a stop right after a resume or a save: this step is on disk already
                self._set_aside(target, f"{target}: holds another state of this step")
            self._write_patiently(staging, position, tensors, more)
            # Order matters. The files and their folder are synced (_write_files), so the rename cannot expose a
            # checkpoint whose content a power failure would lose. The fence comes last before the rename: an attempt
            # that was declared dead and comes back must not publish into its successor's folder. In the gap between
            # the two it still can; what appears then is a valid checkpoint of the same job.
            self.folder.check_fence()
            staging.rename(target)
            # Without it the new name itself may be lost, after pruning has deleted the checkpoint before.
            _sync_folder(self.root)
            self._verified[target] = files_stamp(target)
            self.prune(self.keep)
            self.on_saved(position, target, time.monotonic() - began_at_s)
        except OSError as error:
            remove_folder(staging)
            self._error = self._write_error(target, tensors, error)
            self._error.__cause__ = error
            if error.errno == errno.ENOENT:
                # In the middle of a write the folder may go, or become another run's: that is why, then.
                try:
                    self.folder.check_fence()
                except TrainerError as lost:
                    self._error = lost
        except BaseException as error:  # noqa: BLE001 - raised in the training thread by raise_if_failed
            remove_folder(staging)
            self._error = error

    def _write_patiently(
        self, staging: Path, position: Position, tensors: dict[str, dict[str, Tensor]], more: Mapping[str, Any]
    ) -> None:
        """Write the files; again after a while where the volume is in trouble that may pass. Training goes on."""
        for wait_s in (*self.again_after_s, None):
            try:
                self._write_or_prune(staging, position, tensors, more)
            except OSError as error:
                remove_folder(staging)
                # Nobody mounts a volume for writing again under a running pod.
                if (
                    wait_s is None
                    or error.errno == errno.EROFS
                    or not is_storage_error(error)
                    or self._hurries.is_set()
                ):
                    raise
                again = f"trying again in {wait_s:.0f} s"
                logger.warning("%s: could not be written (%s); %s", self.path_of(position), error.strerror, again)
                self._hurries.wait(wait_s)
            else:
                return

    def _write_or_prune(
        self, staging: Path, position: Position, tensors: dict[str, dict[str, Tensor]], more: Mapping[str, Any]
    ) -> None:
        try:
            self._write_files(staging, position, tensors, more)
        except OSError as error:
            remove_folder(staging)
            if not is_full(error) or not self.prune(num_left_on_full_disk(self.keep)):
                raise
            self._write_files(staging, position, tensors, more)

    def _write_files(
        self, staging: Path, position: Position, tensors: dict[str, dict[str, Tensor]], more: Mapping[str, Any]
    ) -> None:
        remove_folder(staging)
        staging.mkdir(parents=True)
        moments = {
            f"{part}.{name}": tensor
            for part in ("first_moment", "second_moment")
            for name, tensor in tensors[part].items()
        }
        # The manifest comes last: where it exists, everything that it names was written.
        save_tensors(tensors["model"], staging / MODEL_FILE)
        save_tensors(moments, staging / OPTIMIZER_FILE)
        manifest = {
            **more,
            FORMAT_KEY: FORMAT_VERSION,
            "run": json.loads(self.folder.claim_record),
            "position": {name: value for name, value in asdict(position).items() if value is not None},
            "environment": asdict(self.environment),
            "sha256": {name: sha256_of(staging / name) for name in (MODEL_FILE, OPTIMIZER_FILE)},
        }
        with (staging / MANIFEST_FILE).open("w") as file:
            json.dump({**manifest, OWN_SUM_KEY: manifest_sum(manifest)}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(staging)

    def remove_leftovers(self) -> None:
        """Delete the staging folders of attempts that were killed while they wrote or deleted a checkpoint."""
        self.folder.check_fence()
        for path in self.root.glob(".*"):
            remove_folder(path)

    def remove_all(self) -> None:
        """Delete every checkpoint but those in ``refused/``; for a run that has written its results."""
        self.wait()
        self.folder.check_fence()
        for path in self.root.glob("*"):
            if path.name != _REFUSED:
                remove_folder(path)
        with contextlib.suppress(OSError):
            # It stays where refused/ is in it.
            self.root.rmdir()

    def latest_valid(self) -> Checkpoint | None:
        """Return the latest checkpoint that verifies; later ones that do not are moved to ``refused/``.

        Raises:
            TrainerError: one cannot be read for a reason that may be transient; an older one must not replace it.
        """
        listed, unreadable = list_checkpoints(self.root)
        for path, error in unreadable:
            self._refuse(path, error)
        return next((found for path in listed if (found := self._verify(path)) is not None), None)

    def prune(self, keep: int) -> int:
        """Delete checkpoints older than the latest ``keep`` that verify, except the last one of a finished stage.

        Returns:
            How many were deleted.

        Raises:
            TrainerError: the folder is no longer ours, or one cannot be read or deleted.
        """
        # A predecessor that wakes up here would delete what its successor resumes from.
        self.folder.check_fence()
        listed, _ = list_checkpoints(self.root)
        if all(position.stage_finished for position in list(listed.values())[keep:]):
            return 0
        num_kept = num_gone = 0
        for path, position in listed.items():
            if num_kept < keep:
                # Only those that verify count: otherwise damaged ones would push out the last good one.
                num_kept += self._verify(path) is not None
            elif not position.stage_finished:
                # Renamed first: a kill in the middle of the deletion would leave what looks like a damaged checkpoint.
                doomed = self.root / f".{path.name}.{random_suffix()}"
                with disk_errors(path):
                    path.rename(doomed)
                remove_folder(doomed)
                num_gone += 1
        return num_gone

    def _verify(self, path: Path) -> Checkpoint | None:
        """Return a checkpoint of this run that verifies; any other is moved to ``refused/``."""
        try:
            # Before the files are read: one that changes meanwhile has another stamp next time, and is read again.
            stamp = files_stamp(path)
            found = read_checkpoint(path, with_sums=self._verified.get(path) != stamp)
            own = json.loads(self.folder.claim_record)["job"]
            if found.job != own:
                raise TrainerError(f"{path}: was written by the job {found.job}, this is {own}")
            if found.position.folder_name != path.name:
                raise TrainerError(f"{path}: its {MANIFEST_FILE} is that of {found.position.folder_name}")
        except (OSError, TrainerError) as error:
            self._refuse(path, error)
            return None
        self._verified[path] = stamp
        return found

    def _refuse(self, path: Path, error: OSError | TrainerError) -> None:
        """Move a checkpoint to ``refused/``, or raise where it may be intact."""
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and cause.errno not in _DAMAGE:
            raise TrainerError(
                f"{path}: cannot be read ({cause})",
                hint="check that the output volume responds and that this user may read it, or move that folder out of "
                "checkpoints/ to resume from the one before it",
            ) from cause
        self._set_aside(path, error)

    def _set_aside(self, path: Path, why: object) -> None:
        """Move a checkpoint to ``refused/``, for people to look at, and log a warning."""
        self.folder.check_fence()
        refused = self.root / _REFUSED
        numbered = (refused / f"{path.name}{suffix}" for suffix in ("", *(f".{number}" for number in range(2, 1000))))
        try:
            refused.mkdir(exist_ok=True)
            target = next(place for place in numbered if not place.exists())
            path.rename(target)
        except OSError as error:
            logger.warning("Ignored a checkpoint: %s (it could not be moved to %s: %s)", why, refused, error)
        else:
            logger.warning("Set a checkpoint aside: %s; it is now %s", why, target)

    def _write_error(self, target: Path, tensors: dict[str, dict[str, Tensor]], error: OSError) -> TrainerError:
        hint = "check the output volume; earlier checkpoints are intact"
        if is_full(error):
            needed = sum(tensor.nbytes for named in tensors.values() for tensor in named.values()) / 1e6
            free = describe_free(self.root)
            room = f"{needed:.1f} MB at least{f' ({free})' if free else ''}"
            hint = f"free space on the output volume, {room}; earlier checkpoints are intact"
            if self.keep > 2:
                hint += (
                    ". Or start the job again with a lower checkpoint.keep and output.ifExists: Resume: surplus "
                    "checkpoints are deleted before it writes"
                )
        return TrainerError(f"{target}: the checkpoint could not be written ({error})", hint=hint)


def _check_finite(position: Position, tensors: dict[str, dict[str, Tensor]]) -> None:
    """Refuse a state that nobody can go on from: the checkpoint before it would make room for it."""
    for part, named in tensors.items():
        for name, tensor in named.items():
            # A sum first, which shows it at a twentieth of the cost (BERT-large with moments: 0.4 s of one core).
            if not math.isfinite(float(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
                raise TrainingUnhealthy(
                    f"{position.stage}: {name} ({part}) is not finite after step {position.step}, so its checkpoint is "
                    "not written",
                    hint="gradients were finite: where another attempt gets further from the checkpoint before, look "
                    "at this machine's memory and devices",
                )


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
