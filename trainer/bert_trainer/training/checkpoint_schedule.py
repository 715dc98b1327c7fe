"""When a stage's periodic checkpoints are due. What asks for one besides is in the loop: a stop, a stage's end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from bert_job.run_config import CheckpointConfig
from bert_job.run_stages import CheckpointTimes


@dataclass(slots=True)
class CheckpointSchedule:
    """Schedule of a stage's periodic checkpoints, asked after every step."""

    times: CheckpointTimes | CheckpointConfig
    rank: int
    min_samples: int = 0
    """Sequences of the stage before which none is due."""
    _saved_at_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Count the interval from here, where a stage begins."""
        self.restart()

    def interval_is_over(self) -> bool:
        """Return whether everySeconds have passed; on rank 0 only, since ranks' clocks differ."""
        every_s = self.times.every_seconds
        return self.rank == 0 and every_s is not None and time.monotonic() - self._saved_at_s >= every_s

    def is_due(self, step: int, samples_before: int, samples: int, *, in_time: bool) -> bool:
        """Return whether a checkpoint is due after a step.

        Args:
            step: Of the stage, counted from 1.
            samples_before: Sequences of the stage before the step.
            samples: With it.
            in_time: Rank 0's ``interval_is_over``, on every rank.
        """
        when = self.times
        if not when.periodic or samples < self.min_samples:
            return False
        by_steps = when.every_steps is not None and step % when.every_steps == 0
        by_samples = (
            when.every_samples is not None and samples_before // when.every_samples < samples // when.every_samples
        )
        return by_steps or by_samples or in_time

    def restart(self) -> None:
        """Restart the time interval: a checkpoint was taken."""
        self._saved_at_s = time.monotonic()
