"""How far a build is and what it costs, as the records that every child of a job reports itself with."""

from __future__ import annotations

import os
import time
from typing import Protocol

from bert_trainer.config.stages import PrepareStage
from bert_trainer.dataset.shards.dataset_info import DatasetRecord

_TICK_S = 10.0


class Reports(Protocol):
    """Whoever is told how far a build is; ``progress.Reporter`` is one."""

    def report(self, event: str, **fields: str | int | float | None) -> None:
        """Take one record, as in ``progress``."""


_PASSES_OVER_BLOCKS = 2
_OTHER_PASSES = 2
"""Near-duplicates, vocabulary."""


class BuildProgress:
    """Units of work done and time spent: a block of text read, one encoded, a pass in between, a shard."""

    def __init__(self, stage: PrepareStage, reporter: Reports, *, blocks: int, shards: int) -> None:
        """blocks, shards: as many as are expected."""
        self._stage, self._reporter = stage, reporter
        self._blocks, self._shards = blocks, shards
        self._done = 0
        self._started_at_s = time.monotonic()
        self._told_at_s = self._started_at_s
        self._cpu_before_s = _cpu_s()

    def start(self, record: DatasetRecord) -> None:
        """Say that the stage begins. record: what earlier attempts took."""
        self._before = record
        self._reporter.report("stage_started", stage=self._stage.name, kind=self._stage.kind, steps=self._steps)

    @property
    def _steps(self) -> int:
        return max(self._done, _PASSES_OVER_BLOCKS * self._blocks + _OTHER_PASSES + self._shards)

    def set_blocks(self, blocks: int) -> None:
        """Say how many blocks of text there are, once all are read."""
        self._blocks = self._done = blocks
        self._tell()

    def set_shards(self, *, blocks: int, shards: int, done: int) -> None:
        """Say how many shards there are, now that the text is encoded, and how many an earlier attempt made."""
        self._blocks, self._shards = blocks, shards
        self._done = _PASSES_OVER_BLOCKS * blocks + _OTHER_PASSES + done
        self._tell()

    def advance(self) -> None:
        """Say that one more unit is done."""
        self._done += 1
        self._tell()

    def finish(self) -> None:
        """Say that the stage is over."""
        elapsed_s = self._elapsed_s()
        if self._done < self._steps:  # there was nothing to do
            self._done = self._steps
            self._tell()
        self._reporter.report("stage_finished", stage=self._stage.name, seconds=elapsed_s)

    def time_spent(self) -> dict[str, float]:
        """Return the times for the record: of earlier attempts and of this one up to now."""
        return {
            "seconds": round(self._before.seconds + self._elapsed_s(), 3),
            "cpu_seconds": round(self._before.cpu_seconds + _cpu_s() - self._cpu_before_s, 3),
        }

    def tick(self) -> None:
        """Repeat the last word where it is some time ago, so that a long pass does not look like a hang."""
        if time.monotonic() - self._told_at_s >= _TICK_S:
            self._tell()

    def _tell(self) -> None:
        self._told_at_s = time.monotonic()
        elapsed_s = self._elapsed_s()
        remaining_s = elapsed_s / self._done * (self._steps - self._done) if self._done else None
        self._reporter.report(
            "progress",
            stage=self._stage.name,
            step=self._done,
            steps=self._steps,
            elapsed_s=elapsed_s,
            remaining_s=remaining_s,
        )

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_at_s


def _cpu_s() -> float:
    """Processor time of this process and of the workers that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
