"""What to change where attempts end before they have saved anything. Pure."""

from __future__ import annotations

from bert_operator.api.schema.bert_pretrain_job import JobSpec
from bert_operator.api.schema.checkpoints import CheckpointSpec, StageCheckpointSpec
from bert_operator.names import PREPARE_RUN

_DEFAULT_SECONDS = 600
_UNITS = (
    ("every_seconds", "everySeconds", "s"),
    ("every_steps", "everySteps", "steps"),
    ("every_samples", "everySamples", "sequences"),
)


def describe_unsaved(spec: JobSpec, run: str, stage: str | None, ran_s: int) -> str:
    """Return why an ended attempt had saved nothing, and what to change; empty if unknown.

    Args:
        spec: The job's.
        run: What the attempt did.
        stage: In which stage it was; None: not known.
        ran_s: For how many seconds all its pods ran.
    """
    if run == PREPARE_RUN:
        return (
            f"No part of the data was finished in the {ran_s} s that it ran. The encoded text is the first part, each "
            "shard another: more numProcesses or workers of the prepare stage, or more numShards, make them shorter"
        )
    if spec.workspace is not None:
        return ""
    times = _times_of(spec, stage)
    if not (spec.checkpoint.periodic if times.periodic is None else times.periodic):
        return (
            f"Nothing was saved in the {ran_s} s that it ran, since checkpoint.periodic is false. Where attempts are "
            "taken away, apply the job without that"
        )
    found = [(getattr(times, name), label, unit) for name, label, unit in _UNITS]
    given = [item for item in found if item[0] is not None] or [(_DEFAULT_SECONDS, "everySeconds", "s")]
    if any(label == "everySeconds" and ran_s >= number for number, label, _ in given):
        return ""
    intervals = " or ".join(f"{number} {unit}" for number, _, unit in given)
    return (
        f"Nothing was saved in the {ran_s} s that it ran: checkpoints come every {intervals}. Where attempts do not "
        f"last as long, apply the job with a smaller checkpoint.{given[0][1]}"
    )


def _times_of(spec: JobSpec, stage: str | None) -> CheckpointSpec | StageCheckpointSpec:
    """Return what says when checkpoints of a stage are written."""
    of_stage = next((item.pretrain.checkpoint for item in spec.stages if item.pretrain and item.name == stage), None)
    names = [name for name, _, _ in _UNITS]
    is_own = of_stage is not None and any(getattr(of_stage, name) is not None for name in names)
    if of_stage is not None and (is_own or of_stage.periodic is not None):
        merged = {name: getattr(of_stage if is_own else spec.checkpoint, name) for name in names}
        return of_stage.model_copy(update=merged)
    return spec.checkpoint
