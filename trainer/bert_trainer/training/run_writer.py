"""What a run writes: checkpoints, metrics, its end. Rank 0 writes; on every other rank the same calls do nothing.

Whether a rank writes is decided by ``rank_0_alone``, so that all ranks run the same lines. Nothing here is collective
but ``on_rank_0``; what has to be gathered first (``Learner.gather_state``) is gathered by the caller, on every rank.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from bert_job.progress import Value
from bert_job.run_config import RunConfig
from bert_trainer.checkpoints.checkpoint import Checkpoint, Environment, Position
from bert_trainer.checkpoints.store import CheckpointStore
from bert_trainer.errors import FencedError, Stopped, TrainerError
from bert_trainer.output.inputs import release
from bert_trainer.output.metrics import METRICS_FILE, NO_RANK_FIGURES, MetricsWriter, RankFigures, Record, free_share
from bert_trainer.output.progress import Reporter
from bert_trainer.output.report import write_report
from bert_trainer.output.report_page import write_page
from bert_trainer.output.run_facts import write_environment
from bert_trainer.output.run_folder import RunFolder
from bert_trainer.output.termination import write_termination
from bert_trainer.parallel.world import World, on_rank_0
from bert_trainer.system.atomic_files import disk_errors, open_no_link
from bert_trainer.system.processor import read_model_name, read_text
from bert_trainer.training.learner import LearnerState

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

LEDGER_FILE = "ledger.jsonl"
SAVE_AGAIN_AFTER_S = (2.0, 8.0, 30.0)
"""Waits between attempts at a checkpoint: somebody deletes a file, a server comes back. What lasts longer ends the
attempt, and the next one waits without holding nodes."""
MAX_METRICS_BYTES = 64 << 20
"""Of records that a report is made from while ranks wait: reading them takes 2 s, and 250 MB beside the model."""
_SAVES_KEPT = 5
"""Checkpoints of which the longest counts for what a stop needs: a volume that was slow yesterday may be so no more."""
SLOW_WRITE_S = 60.0
"""A checkpoint that takes longer is worth a word: the next one has to wait for it."""


def rank_0_alone(method: Callable[Concatenate[RunWriter, P], T]) -> Callable[Concatenate[RunWriter, P], T | None]:
    """Decorator: on every other rank the method does nothing, and returns None."""

    @wraps(method)
    def run(self: RunWriter, /, *arguments: P.args, **named: P.kwargs) -> T | None:
        return method(self, *arguments, **named) if self.world.rank == 0 else None

    return run


class RunWriter:
    """Writes a run's output folder; on other ranks than 0 nothing."""

    def __init__(self, world: World, folder: RunFolder, environment: Environment, *, attempt: int) -> None:
        """Clean up behind an attempt that was killed, then open the metrics.

        Args:
            world: The ranks.
            folder: Claimed by rank 0; the others only read its path.
            environment: Of this attempt, as checkpoints record it.
            attempt: Of the run.
        """
        self.world, self.folder, self.environment = world, folder, environment
        self.has_trained = False
        """A step was taken, by this attempt or before the checkpoint that it resumed: from there on trouble with files
        is no mistake in the configuration."""
        self._open(attempt)

    @rank_0_alone
    def _open(self, attempt: int) -> None:
        config = self.folder.config
        self.store = CheckpointStore(
            self.folder, self.environment, config.checkpoint.keep, self._announce, SAVE_AGAIN_AFTER_S
        )
        self.store.remove_leftovers()
        self.folder.remove_leftovers()
        # Before anything is written: on a full disk, a lower keep frees space.
        self.store.prune(self.store.keep)
        write_environment(self.folder.path, _describe_environment(self.environment, self.world, config))
        reporter = Reporter(config.job.uid, attempt, attempt_run=self.folder.attempt_run)
        self._metrics = MetricsWriter(self.folder.path, config.logging, reporter)
        self._saved_at_s = time.monotonic()
        self._took_s: deque[float] = deque(maxlen=_SAVES_KEPT)
        self._step_s = 0.0
        self._resumed: dict[str, Value] = {}

    def on_rank_0(self, action: Callable[[], T]) -> T:
        """Run an action on rank 0 alone and return its result on every rank. Collective.

        Raises:
            TrainerError: as ``parallel.world.on_rank_0``.
        """
        return on_rank_0(self.world, action, has_trained=self.has_trained)

    def _announce(self, position: Position, path: Path, seconds: float) -> None:
        num_bytes = sum(file.stat().st_size for file in path.iterdir())
        is_slow = seconds >= SLOW_WRITE_S
        self._saved_at_s = time.monotonic()
        self._took_s.append(seconds)
        self._metrics.saved(
            stage=position.stage,
            step=position.step,
            path=str(path),
            seconds=seconds,
            # What a stop has to wait for, before it has saved: the operator compares it with the pods' grace period.
            stop_s=self._step_s + max(self._took_s),
            # Once more: whoever reads only the end of the log would else not know that the run has gone on from there.
            **self._resumed,
            message=f"slow volume: {num_bytes / 1e6:.1f} MB took {seconds:.0f} s" if is_slow else None,
        )

    @rank_0_alone
    def write(self, action: Callable[[], None]) -> None:
        """Run an action on rank 0 without waiting for it elsewhere. Not collective; its outcome is not shared."""
        action()

    @rank_0_alone
    def event(self, event: str, /, **fields: Value) -> None:
        """Append a record to ``metrics.jsonl`` and print its line."""
        self._metrics.event(event, **fields)
        if event == "resumed":
            self._resumed = {"resumed_stage": fields["stage"], "resumed_step": fields["step"]}
        if event == "stage_finished":
            self._write_page()

    def _write_page(self, *, is_done: bool = False) -> None:
        """Write the report of what there is so far. A run is worth more than its page, so none ends for it."""
        path = self.folder.path / METRICS_FILE
        try:
            self.folder.check_fence()
            if path.exists() and path.stat().st_size > MAX_METRICS_BYTES:
                logger.warning("%s is long; 'bert-train report' makes the report when the run is over", path)
                return
            write_page(self.folder.path, is_done=is_done)
        except FencedError:
            pass  # the page is another attempt's now; whatever is committed next says so
        except Exception as error:  # whatever is wrong with what a page is made of
            logger.warning("The report was not written: %s", (str(error).splitlines() or [type(error).__name__])[0])

    @rank_0_alone
    def progress(self, record: Record, of_ranks: RankFigures = NO_RANK_FIGURES) -> None:
        """Publish one logging interval, as ``MetricsWriter.progress``."""
        self._step_s = float(record.get("step_s") or 0.0)
        # What a crash would lose by now: before the first checkpoint, all since the attempt began.
        figures: Record = {
            "checkpoint_seconds": self._took_s[-1] if self._took_s else None,
            "checkpoint_age_s": time.monotonic() - self._saved_at_s,
            "volume_free_share": free_share(self.folder.path),
        }
        self._metrics.progress({**record, **figures}, of_ranks)

    @rank_0_alone
    def evaluated(self, /, **fields: Value) -> None:
        """Publish an evaluation, as ``MetricsWriter.evaluated``, as one record: a kill leaves all of it or nothing."""
        # An attempt that was declared dead must not report what its successor will report as well.
        self.folder.check_fence()
        self._metrics.evaluated(**fields)

    def chain_samples(
        self,
        stage: str,
        step: int,
        before: str,
        numbers: Callable[[], NDArray[np.int64]],
        *,
        skipped: str | None = None,
    ) -> str:
        """Return the hash of a stage's samples after one more step, and write the ledger if there is one.

        Args:
            stage: Its name.
            step: Of the stage, counted from 0.
            before: The hash so far; returned unchanged on other ranks than 0.
            numbers: Called on rank 0 alone: the step's samples, in order.
            skipped: Why the step's update was not applied; None if it was.
        """
        if self.world.rank != 0:
            return before
        samples = numbers()
        if self.folder.config.logging.sample_ledger:
            entry: dict[str, Any] = {"stage": stage, "step": step, "samples": samples.tolist()}
            if skipped is not None:
                entry["skipped"] = skipped
            self._note(entry)
        return hashlib.sha256(bytes.fromhex(before) + samples.astype("<i8").tobytes()).hexdigest()

    @rank_0_alone
    def left_out(self, stage: str, step: int, path: Path, *, message: str) -> None:
        """Report that a stage continues without a shard, in the metrics and the ledger, if there is one.

        Args:
            stage: Its name.
            step: The first without it, counted from 0.
            path: The shard.
            message: Why.
        """
        self.event("shard_left_out", stage=stage, step=step, path=str(path), message=message)
        if self.folder.config.logging.sample_ledger:
            self._note({"stage": stage, "step": step, "samples": [], "shard_left_out": path.name})

    def _note(self, entry: dict[str, Any]) -> None:
        path = self.folder.path / LEDGER_FILE
        # The ledger says what was trained on: a line of a run that has lost the folder would be somebody else's.
        self.folder.check_fence()
        with disk_errors(path), open_no_link(path, "a") as file:
            file.write(json.dumps(entry) + "\n")

    @rank_0_alone
    def latest_checkpoint(self) -> Checkpoint | None:
        """Return the latest checkpoint that verifies."""
        return self.store.latest_valid()

    @rank_0_alone
    def save(self, position: Position, state: LearnerState, health: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint in the background.

        Args:
            position: Where in the run.
            state: From ``Learner.gather_state``, which is collective.
            health: Of the stage, as ``Health.state`` returns it; None: nothing is judged that a resume needs.
        """
        more = {} if health is None else {"health": health}
        self.store.save(position, state.tensors, owned=state.owned, more=more)

    @rank_0_alone
    def raise_if_failed(self) -> None:
        """Raise the error of a checkpoint that could not be written in the background."""
        self.store.raise_if_failed()

    @rank_0_alone
    def wait(self) -> None:
        """Wait for the checkpoint that is being written; raises if it failed."""
        self.store.wait()

    def leave(self, position: Position) -> NoReturn:
        """End the attempt at a position that was saved, once its checkpoint is in place; for ``on_rank_0``.

        Raises:
            Stopped: always.
        """
        assert self.world.rank == 0, "for on_rank_0"
        self.store.wait()
        message = f"{position.stage}: stopped on request at step {position.step}, a checkpoint is saved"
        self.event("stopped", stage=position.stage, step=position.step, message=message)
        self._write_page()
        path = self.store.path_of(position)
        raise Stopped(message, stage=position.stage, step=position.step, checkpoint=str(path))

    @rank_0_alone
    def finish(self) -> None:
        """Report what was trained, once every stage is done."""
        config = self.folder.config
        self.store.wait()
        # A successor may have claimed the folder while the last checkpoint was written.
        self.folder.check_fence()
        write_report(config, self.folder.path, ranks=self.world.size)
        self._write_page(is_done=True)
        self._metrics.repeat_results()
        # After the report: a run that is killed in between still has its checkpoints, and finishes again.
        if config.checkpoint.delete_after_success:
            self.store.remove_all()
        write_termination("Succeeded", 0, "")
        self.event("succeeded", message=f"{config.job.name} is trained")

    @rank_0_alone
    def fail(self, error: TrainerError) -> None:
        """Record why the attempt ended."""
        self.event("failed", reason=type(error).__name__, exit_code=error.exit_code, message=str(error))
        self._write_page()

    @rank_0_alone
    def close(self) -> None:
        """Close everything, after the checkpoint that is being written is in place."""
        self.store.hurry()
        try:
            self.store.wait()
        finally:
            self._metrics.close()


def _describe_environment(environment: Environment, world: World, config: RunConfig) -> dict[str, Any]:
    """Return what the report says of an attempt: more than a resume compares."""
    return {
        "processor": read_model_name(read_text("/proc/cpuinfo")),
        **asdict(environment),
        "hosts": config.world.hosts,
        "versions": {**environment.versions, "python": platform.python_version(), "bert-trainer": release()},
    }
