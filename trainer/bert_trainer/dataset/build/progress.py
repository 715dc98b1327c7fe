"""Progress of a build and the time it takes, reported as records of ``output.progress``."""

from __future__ import annotations

import os
import time
from typing import Protocol

from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.shards.dataset_info import DatasetInfo

_TICK_S = 10.0


class ProgressSink(Protocol):
    """Receives progress records: ``output.progress.Reporter``, or the progress bar of ``bert-data``."""

    def report(self, event: str, **fields: str | int | float | None) -> None:
        """Take one record; fields as in ``output.progress``."""


# A block of text is a unit of work when it is read, and again when it is encoded.
_PASSES_OVER_BLOCKS = 2
# Near-duplicates and vocabulary: one unit each, however long they take.
_OTHER_PASSES = 2


class BuildProgress:
    """Units of work done and time spent: blocks read, blocks encoded, passes in between, shards."""

    def __init__(self, stage: PrepareStage, reporter: ProgressSink, *, blocks: int, shards: int) -> None:
        """blocks, shards: as many as are expected."""
        self._stage, self._reporter = stage, reporter
        self._blocks, self._shards = blocks, shards
        self._done = self._kept = self._saved = 0
        self._started_at_s = time.monotonic()
        self._reported_at_s = self._started_at_s
        self._cpu_before_s = _cpu_s()

    def start(self, info: DatasetInfo) -> None:
        """Report the start of the stage. info: holds the time of earlier attempts."""
        self._earlier = info
        self._reporter.report("stage_started", stage=self._stage.name, kind=self._stage.kind, steps=self._steps)

    @property
    def _steps(self) -> int:
        # Blocks and shards are estimates at first: never report fewer units in all than are done.
        return max(self._done, _PASSES_OVER_BLOCKS * self._blocks + _OTHER_PASSES + self._shards)

    def set_blocks(self, blocks: int) -> None:
        """Set the number of blocks of text, once all are read."""
        self._blocks = self._done = blocks
        self._report()

    def set_shards(self, *, blocks: int, shards: int, done: int) -> None:
        """Set the number of shards, once the text is encoded. done: shards that an earlier attempt finished."""
        self._blocks, self._shards = blocks, shards
        self._done = _PASSES_OVER_BLOCKS * blocks + _OTHER_PASSES + done
        self.keep(done)
        self._report()

    def advance(self) -> None:
        """Count one more unit of work."""
        self._done += 1
        self._report()

    def keep(self, parts: int = 1) -> None:
        """Count parts finished by an earlier attempt: the encoded text, or shards."""
        self._kept += parts
        self._saved += parts

    def save(self) -> None:
        """Count a part that is finished and durable, so that the next attempt finds it."""
        self._saved += 1

    def finish(self) -> None:
        """Report the end of the stage."""
        elapsed_s = self._elapsed_s()
        if self._done < self._steps:  # nothing was left to build
            self._done = self._steps
            self._report()
        self._reporter.report("stage_finished", stage=self._stage.name, seconds=elapsed_s)

    def time_spent(self) -> dict[str, float]:
        """Return the time fields of ``dataset.json``: earlier attempts and this one up to now."""
        return {
            "seconds": round(self._earlier.seconds + self._elapsed_s(), 3),
            "cpu_seconds": round(self._earlier.cpu_seconds + _cpu_s() - self._cpu_before_s, 3),
        }

    def tick(self) -> None:
        """Repeat the last record if it is old, so that a long pass is not taken for a hang."""
        if time.monotonic() - self._reported_at_s >= _TICK_S:
            self._report()

    def _report(self) -> None:
        self._reported_at_s = time.monotonic()
        elapsed_s = self._elapsed_s()
        remaining_s = elapsed_s / self._done * (self._steps - self._done) if self._done else None
        self._reporter.report(
            "progress",
            stage=self._stage.name,
            step=self._done,
            steps=self._steps,
            elapsed_s=elapsed_s,
            remaining_s=remaining_s,
            # Whoever retries a build has to know whether attempts get on. 0 is left out, as most attempts begin.
            kept=self._kept or None,
            saved=self._saved or None,
        )

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_at_s


def _cpu_s() -> float:
    """Processor time of this process and of the workers that have ended."""
    # Children count once they have been waited for: workers that still run are missing from an interim figure.
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
