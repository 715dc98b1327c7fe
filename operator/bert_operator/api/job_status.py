"""The status of a ``BertPretrainJob``: what the operator answers. Types only; ``status`` fills them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Phase = Literal["Pending", "Running", "Stopping", "Stopped", "Succeeded", "Failed"]
TERMINAL_PHASES: frozenset[Phase] = frozenset({"Succeeded", "Failed"})
"""Once there, a job never leaves."""

FailureKind = Literal["InvalidInput", "Application", "Infrastructure"]

MAX_MESSAGE = 1024
"""Characters of any message in the status; longer ones are cut."""
MAX_FAILURES = 512
"""More than all retry budgets together allow."""

Message = Annotated[str, Field(max_length=MAX_MESSAGE)]


class _Part(BaseModel):
    """A part of the status. Fields that a newer release wrote are ignored, so that a downgrade works."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )


class Condition(_Part):
    """One statement about the job, in Kubernetes' standard form."""

    type: str
    """Name from ``ConditionType``."""
    status: Literal["True", "False", "Unknown"]
    reason: str
    """Name from ``Reason``."""
    message: Message
    """A sentence for people."""
    last_transition_time: str
    """When ``status`` last changed, RFC 3339."""
    observed_generation: int | None = None
    """The spec that this was said of."""


class Failure(_Part):
    """How one attempt failed."""

    run: str
    """``prepare`` or ``training``."""
    attempt: int
    kind: FailureKind
    """Which budget it counts against; bad input has none."""
    reason: str
    """What the child said, else a name from ``FailureReason``."""
    exit_code: int | None = None
    signal: int | None = None
    """Number of the signal that ended it."""
    message: Message = ""
    """A sentence for people."""
    finished_at: str
    """RFC 3339."""


class JobStatus(_Part):
    """Everything that is remembered of a job. An empty one is a job that nobody has looked at."""

    observed_generation: int | None = None
    """The spec that this status belongs to."""
    phase: Phase = "Pending"
    run: str | None = None
    """``prepare`` or ``training``: what the newest attempt does."""
    stage: str | None = None
    """The stage that the newest attempt reported last."""
    attempt: Annotated[int, Field(ge=0)] = 0
    """Number of the newest attempt, counted over all runs; written before its child is created."""
    completed_runs: Annotated[tuple[str, ...], Field(max_length=8)] = ()
    """Runs that ended with success."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=32)] = ()
    failures: Annotated[tuple[Failure, ...], Field(max_length=MAX_FAILURES)] = ()
    """Failed attempts, oldest first."""
    start_time: str | None = None
    """When the first child was created, RFC 3339; the deadline counts from here."""
    completion_time: str | None = None
    """When the job ended, RFC 3339."""
