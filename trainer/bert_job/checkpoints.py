"""When checkpoints are written, for the whole job and for single stages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from bert_job.section import Count, Section

INTERVALS: Mapping[str, str] = MappingProxyType(
    {"every_seconds": "s", "every_steps": "steps", "every_samples": "sequences"}
)
"""The fields that say how often, with their units. In a stage they are one setting: its own replace the job's."""


class CheckpointSpec(Section):
    """When checkpoints are written; one is always written at the end of a stage and at a graceful stop."""

    every_steps: Count | None = None
    """Optimizer steps between checkpoints. Empty: not by steps."""
    every_seconds: Annotated[int, Field(ge=1, le=604_800)] | None = None
    """Seconds between checkpoints. Empty: 600 if everySteps and everySamples are empty too, so that a crash loses at
    most ten minutes."""
    every_samples: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Sequences between checkpoints. Empty: not by sequences."""
    min_samples_to_start: Annotated[int, Field(ge=0, le=2**53)] = 0
    """Sequences, counted over all stages, before the first checkpoint. Default: 0."""
    periodic: bool = True
    """false: checkpoints only at the end of a stage and at a graceful stop."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """Number of the newest complete checkpoints to keep; the last one of every finished stage is kept as well. Leave
    room for one more: on a full disk the oldest is removed before the next is written."""


class StageCheckpointSpec(Section):
    """When checkpoints are written in one stage; empty fields are taken from spec.checkpoint."""

    every_steps: Count | None = None
    """Optimizer steps between checkpoints. If everySteps, everySeconds or everySamples is set here, none of them is
    taken from spec.checkpoint."""
    every_seconds: Annotated[int, Field(ge=1, le=604_800)] | None = None
    """Seconds between checkpoints."""
    every_samples: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Sequences of the stage between checkpoints."""
    min_samples_to_start: Annotated[int, Field(ge=0, le=2**53)] | None = None
    """Sequences, counted over all stages, before the first checkpoint of this stage."""
    periodic: bool | None = None
    """false: only at the end of this stage and at a graceful stop."""
