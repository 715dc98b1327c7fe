"""The status of a ``BertPretrainJob``: what the operator reports. Types only; ``state.status`` fills them.

Older and newer releases read it too. New fields are free; whatever an older release would misread raises
``OLDEST_OPERATOR``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from bert_job.foreign_text import visible

Phase = Literal["Invalid", "Pending", "Queued", "Running", "Stopping", "Stopped", "Succeeded", "Failed"]
TERMINAL_PHASES: frozenset[Phase] = frozenset({"Succeeded", "Failed"})
"""Phases that a job never leaves."""

FailureKind = Literal["InvalidInput", "Application", "Infrastructure"]

ChildKind = Literal["Job", "MPIJob", "Process"]

MAX_MESSAGE = 1024
"""Characters of any message in the status; longer ones are cut."""
MAX_IMAGE = 512
"""Characters of an image's name."""
MAX_RESULTS = 32
"""As many as a job may have stages."""
MAX_FIGURES = 64
"""Of one progress line; the trainer has fewer than 40."""
MAX_METRICS = 16
"""Of one result."""
MAX_FAILURES = 512
"""The newest are kept: a job that makes progress between its failures may have any number of them."""
MAX_PHASE_TIMES = 32
"""Eight phases, each with no run, with the preparation or with the training."""
MAX_ATTEMPT_RUNS = 1_000_000
"""More than any queue brings about; a larger number was invented by whatever wrote the log."""
MAX_SAVE_SECONDS = 1_000_000
"""Eleven days: no checkpoint takes as long."""
MAX_AVOIDED_NODES = 16
"""With more bad nodes than that, it is not the nodes."""
MAX_FLAVORS = 16
"""Of one job in a queue; few clusters have as many."""

OLDEST_OPERATOR = "0.2.0"
"""Oldest release that can continue a job whose status this release has written, and would report it alike. Raise it
with every change that an older release would misread, undo or report otherwise."""


def _fit(limit: int) -> Callable[[Any], Any]:
    """Return a validator that cuts and cleans text: what pods and programs print is quoted in the status.

    The API server refuses a status that breaks its schema, and a job whose status cannot be written is stuck.
    """

    def fit(text: Any) -> Any:
        return visible(text[:limit]) if isinstance(text, str) else text

    return fit


Message = Annotated[str, BeforeValidator(_fit(MAX_MESSAGE)), Field(max_length=MAX_MESSAGE)]
Word = Annotated[str, Field(max_length=63)]
Quoted = Annotated[str, BeforeValidator(_fit(63)), Field(max_length=63)]
"""A word that comes from a program's output."""
Name = Annotated[str, BeforeValidator(_fit(253)), Field(max_length=253)]
Time = Annotated[str, Field(max_length=32)]


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

    type: Word
    """Name from ``ConditionType``."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    reason: Word
    """Name from ``Reason``; while a blocker is reported, from ``BlockerReason``."""
    message: Message
    """A sentence for people."""
    last_transition_time: Time
    """When ``status`` last changed, RFC 3339."""
    observed_generation: int | None = None
    """Generation of the spec that this describes."""


class CheckpointStatus(_Part):
    """The newest checkpoint that was reported."""

    stage: Quoted
    """Stage in which it was written."""
    step: Annotated[int, Field(ge=0)]
    """Optimizer step of that stage."""
    seconds: Annotated[int, Field(ge=0, le=MAX_SAVE_SECONDS)] | None = None
    """Write time in seconds, rounded up, of the newest checkpoint that reported one."""
    stop_seconds: Annotated[int, Field(ge=0, le=MAX_SAVE_SECONDS)] | None = None
    """Estimated seconds that a stop needs: one step and the longest of the last five checkpoints. Compared with the
    pods' grace period (``GraceTooShort``). Does not include an evaluation that a stop has to wait for."""


class Failure(_Part):
    """How one attempt failed."""

    run: Word
    """``prepare`` or ``training``."""
    attempt: int
    """Number of the attempt."""
    kind: FailureKind
    """Retry budget that the failure counts against; bad input has none."""
    reason: Annotated[str, BeforeValidator(_fit(80)), Field(max_length=80)]
    """The reason that the child reported, else a name from ``FailureReason``."""
    pod: Name | None = None
    """The pod that failed first."""
    node: Name | None = None
    """The node that it ran on."""
    exit_code: int | None = None
    """Exit code of the launcher, or of the pod that failed first."""
    signal: int | None = None
    """Number of the signal that ended the process."""
    message: Message = ""
    """A sentence for people."""
    checkpoint: CheckpointStatus | None = None
    """Newest checkpoint at that time; of a data build, the number of finished parts. Consecutive failures with the same
    one made no progress."""
    resumed: CheckpointStatus | None = None
    """What the attempt resumed from, as it reported: a checkpoint that it has read, or the finished parts that a data
    build has found. Empty: it started from the beginning. Confirms that what an earlier attempt reported was really
    saved."""
    ran_seconds: Annotated[int, Field(ge=0)] | None = None
    """Whole seconds during which all pods of the attempt ran. Empty: unknown."""
    finished_at: Time
    """When the attempt ended, RFC 3339."""


class ChildRef(_Part):
    """The object that runs an attempt. Written once it was observed, not when it is created."""

    kind: ChildKind
    """``Job`` for a single pod, ``MPIJob`` otherwise; ``Process`` without a cluster."""
    name: Annotated[str, Field(max_length=253)]
    """Name of the object, in the job's namespace."""
    uid: Word
    """UID of the object."""
    attempt: Annotated[int, Field(ge=0)]
    """Attempt that it runs."""


class QueueStatus(_Part):
    """State of the newest child in Kueue."""

    name: Name
    """LocalQueue that the child is submitted to."""
    workload: Name | None = None
    """Its Workload, in the job's namespace; empty until Kueue has created one, or if the operator may not read it."""
    cluster_queue: Name | None = None
    """ClusterQueue that has reserved quota for it; empty while it waits."""
    flavors: Annotated[tuple[Name, ...], Field(max_length=MAX_FLAVORS)] = ()
    """ResourceFlavors assigned to it."""


class Metric(_Part):
    """One metric of the newest report."""

    name: Word
    """Name as in the trainer's records."""
    value: Word
    """Value as text, as in Kubeflow Trainer."""


class Progress(_Part):
    """Progress of the current stage; names as in Kubeflow Trainer's status where it has them."""

    step: Annotated[int, Field(ge=0)] | None = None
    """Optimizer steps completed."""
    total_steps: Annotated[int, Field(ge=0)] | None = None
    """Optimizer steps of the stage."""
    progress_percentage: Annotated[int, Field(ge=0, le=100)] | None = None
    """Completed steps in percent of the stage's steps."""
    estimated_remaining_seconds: Annotated[int, Field(ge=0)] | None = None
    """Estimated seconds until the stage is completed, at its current rate."""
    eta: Word | None = None
    """Remaining time in words."""
    loss: Word | None = None
    """Training loss over the last interval, as text."""
    sequences_per_second: Word | None = None
    """Sequences per second over all ranks, as text."""
    metrics: Annotated[tuple[Metric, ...], Field(max_length=MAX_FIGURES)] = ()
    """All metrics of the newest report."""
    last_updated_time: Time | None = None
    """When the newest report was read, RFC 3339."""


class StageResult(_Part):
    """Result of the latest evaluation of a stage."""

    stage: Quoted
    """The stage: one that was evaluated while it trained, a finetune stage, or an evaluate stage."""
    step: Annotated[int, Field(ge=0)] | None = None
    """Optimizer step of the stage that was evaluated, counted on over the runs of a finetune stage; empty for an
    evaluate stage and once a finetune stage has ended."""
    metrics: Annotated[tuple[Metric, ...], Field(max_length=MAX_METRICS)] = ()
    """The figures. Of pretraining: accuracies as fractions, losses in nats, ``samples`` that were measured on,
    ``trained_samples`` of the stage before, and the ``target`` if there is one. Of fine-tuning: the metrics of the task
    as fractions, the one that decides first, and with ``_mismatched`` those of MNLI's second validation set;
    ``majority_`` and a metric: the same for always the most frequent class. While it trains they are those of the
    latest evaluation, with its ``seed`` and ``epoch``; at the end those of the best one, with ``best_seed``,
    ``best_epoch``, the number of ``runs``, and ``mean`` and ``std`` (sample standard deviation) of the deciding metric
    over them; ``rank`` and ``best_rank`` where every rank trained a model of its own."""
    target_met: bool | None = None
    """Whether the accuracy reaches the stage's target; empty without one."""
    message: Annotated[str, BeforeValidator(_fit(256)), Field(max_length=256)] | None = None
    """Outcome of the target, once decided: the step that met it, or the best one when the stage reached its length. For
    a finetune stage: its metrics in a sentence."""


class PhaseTime(_Part):
    """Total time that a job has spent in one phase with one run."""

    phase: Phase
    """The phase."""
    run: Word | None = None
    """``prepare`` or ``training``; empty before the first attempt."""
    seconds: Annotated[int, Field(ge=0)]
    """Whole seconds, without the current phase."""


class JobStatus(_Part):
    """Everything that the operator knows about a job. Empty: the operator has not seen the job yet."""

    observed_generation: int | None = None
    """Generation of the spec that this status describes."""
    min_operator_version: Word | None = None
    """Oldest release of the operator that can continue this job; older ones leave it alone. Empty: any."""
    phase: Phase = "Pending"
    """Current phase of the job."""
    reason: Word | None = None
    """Reason for the phase, a name from ``Reason``."""
    message: Message | None = None
    """Reason for the phase, as a sentence."""
    frozen_hash: Annotated[str, Field(max_length=64)] | None = None
    """SHA-256 of the content of ConfigMap ``<job>-frozen``, written before that is created; attempts run nothing
    else."""
    image: Annotated[str, Field(max_length=MAX_IMAGE)] | None = None
    """Trainer image by digest, as the first pods pulled it: later attempts run it even if the tag has moved. Empty if
    nodes report no digest that can be pulled, and with imagePullPolicy: Never."""
    run: Word | None = None
    """``prepare`` or ``training``: the run of the newest attempt."""
    stage: Quoted | None = None
    """Stage that the newest attempt reported last; empty once the job has succeeded."""
    attempt: Annotated[int, Field(ge=0)] = 0
    """Number of the newest attempt, counted over all runs; written before its child is created."""
    attempt_run: Annotated[int, Field(ge=2, le=MAX_ATTEMPT_RUNS)] | None = None
    """How many times the newest attempt has started, counted by the trainer when it claims the output folder; empty the
    first time. A queue such as Kueue that preempts an attempt suspends its child and later resumes the same child in
    new pods: the attempt stays the same, this number grows. Not in the labels of children and pods, since a child is
    never changed."""
    child: ChildRef | None = None
    """The newest child that was observed."""
    queue: QueueStatus | None = None
    """Queue in which the newest child waits, or that has admitted it; empty without a queue."""
    logs: Annotated[str, Field(max_length=512)] | None = None
    """The command that follows the log of the newest attempt."""
    completed_runs: Annotated[tuple[Word, ...], Field(max_length=8)] = ()
    """Runs that have succeeded."""
    progress: Progress | None = None
    """Progress of the newest attempt in its stage; empty until its first report. While a queue holds an attempt that
    has run, only how far it got, without rate, remaining time, metrics and time of a report."""
    checkpoint: CheckpointStatus | None = None
    """The newest checkpoint that was reported."""
    stop_grace_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    """Minimum grace period in seconds of the newest and later attempts, if checkpoints have taken too long for
    runPolicy.stopGraceSeconds: twice what a stop needs, within the settings' limits.stopGraceSeconds. Never decreases.
    Empty: as in runPolicy."""
    results: Annotated[tuple[StageResult, ...], Field(max_length=MAX_RESULTS)] = ()
    """The latest evaluation of every stage that has been evaluated; the newest is last."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=32)] = ()
    """Statements about the job, in Kubernetes' standard form."""
    failures: Annotated[tuple[Failure, ...], Field(max_length=MAX_FAILURES)] = ()
    """Failed attempts, oldest first."""
    avoided_nodes: Annotated[tuple[Name, ...], Field(max_length=MAX_AVOIDED_NODES)] = ()
    """Nodes that later attempts avoid if others are free: pods on them failed first twice, or the node was unhealthy or
    refused a pod."""
    start_time: Time | None = None
    """When the first child was created, RFC 3339; the deadline counts from here."""
    completion_time: Time | None = None
    """When the job ended, RFC 3339; its TTL counts from here."""
    phase_since: Time | None = None
    """When the job entered its current phase and run, RFC 3339."""
    phase_times: Annotated[tuple[PhaseTime, ...], Field(max_length=MAX_PHASE_TIMES)] = ()
    """Time spent in earlier phases, over all attempts. Counted by the operator's clock from the first status on, or
    from the first change that this release has seen."""


def needs_newer_operator(status: Mapping[str, Any], *, own: str) -> str | None:
    """Return the operator release that a job needs; None if this one, ``own``, can continue it."""
    wanted = status.get("minOperatorVersion")
    if wanted is None or _numbers(str(wanted)) <= max(_numbers(own), _numbers(OLDEST_OPERATOR)):
        return None
    return str(wanted)


def _numbers(version: str) -> tuple[float, ...]:
    """Return a version as numbers. A word, which no release uses yet, counts as newer than any number."""
    return tuple(int(part) if part.isdecimal() else math.inf for part in version.split("."))
