"""What to change where attempts end before they have saved anything. Pure."""

from __future__ import annotations

from pydantic.alias_generators import to_camel

from bert_job.checkpoints import INTERVALS
from bert_job.resolve import resolve_checkpoint, resolve_stage_checkpoint
from bert_job.run_config import CheckpointConfig
from bert_job.run_stages import CheckpointTimes
from bert_operator.api.schema.bert_pretrain_job import JobSpec
from bert_operator.names import PREPARE_RUN


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
    if not times.periodic:
        return (
            f"Nothing was saved in the {ran_s} s that it ran, since checkpoint.periodic is false. Where attempts are "
            "taken away, apply the job without that"
        )
    given = [(number, name, unit) for name, unit in INTERVALS.items() if (number := getattr(times, name)) is not None]
    if any(unit == "s" and ran_s >= number for number, _, unit in given):
        return ""
    intervals = " or ".join(f"{number} {unit}" for number, _, unit in given)
    return (
        f"Nothing was saved in the {ran_s} s that it ran: checkpoints come every {intervals}. Where attempts do not "
        f"last as long, apply the job with a smaller checkpoint.{to_camel(given[0][1])}"
    )


def _times_of(spec: JobSpec, stage: str | None) -> CheckpointTimes | CheckpointConfig:
    """Return what says when checkpoints of a stage are written."""
    own = next((item.pretrain.checkpoint for item in spec.stages if item.pretrain and item.name == stage), None)
    return resolve_checkpoint(spec.checkpoint) if own is None else resolve_stage_checkpoint(own, spec)
