"""Runs: consecutive stages that one child does one after another, and what a child is created for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bert_operator.api.v1alpha1 import BertPretrainJob
from bert_operator.names import PREPARE_RUN, TRAINING_RUN


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive stages that one child does one after another."""

    name: str
    stages: tuple[str, ...]
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """A child that has to be created: one attempt at a run."""

    run: str
    attempt: int
    stages: tuple[str, ...]
    ranks: int


def list_runs(job: BertPretrainJob) -> tuple[Run, ...]:
    """Return a job's runs in order: data preparation in one process, then all else in all ranks."""
    prepare = tuple(stage.name for stage in job.spec.stages if stage.prepare is not None)
    others = tuple(stage.name for stage in job.spec.stages if stage.prepare is None)
    runs = (
        Run(name=PREPARE_RUN, stages=prepare, ranks=1),
        Run(name=TRAINING_RUN, stages=others, ranks=job.spec.ranks),
    )
    return tuple(run for run in runs if run.stages)
