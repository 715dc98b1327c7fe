"""Runs: consecutive stages that one child executes, and how many processes they take. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob, JobSpec
from bert_operator.api.schema.cluster import count_cpus
from bert_operator.names import PREPARE_RUN, TRAINING_RUN

# Amounts of cpu that a machine can have: 4, 2.5 or 2500m, and not 1k.
_CPUS = re.compile(r"[0-9]+(\.[0-9]+)?m?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive stages that one child executes."""

    name: str
    stages: tuple[str, ...]
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlacement:
    """The processes of a run: workers, and ranks on each."""

    workers: int
    slots: int
    """Ranks per worker."""

    @property
    def ranks(self) -> int:
        """Ranks on all workers together."""
        return self.workers * self.slots


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """A child to create: one attempt at a run."""

    run: str
    attempt: int
    stages: tuple[str, ...]
    ranks: int
    avoided_nodes: tuple[str, ...] = ()
    """Its pods go elsewhere if they can."""
    image: str | None = None
    """By digest, what the attempts before ran in."""
    stop_grace_s: int | None = None
    """Grace period of its pods at least, where checkpoints have taken too long for the job's; None: the job's."""


def run_placement(spec: JobSpec, run: str) -> RunPlacement:
    """Return the workers and ranks of a run. Preparation on one worker is one rank with a process pool."""
    if run != PREPARE_RUN:
        return RunPlacement(workers=spec.workers, slots=spec.ranks_per_worker)
    prepare = next((stage.prepare for stage in spec.stages if stage.prepare is not None), None)
    if prepare is None or prepare.workers == 1:
        return RunPlacement(workers=1, slots=1)
    return RunPlacement(workers=prepare.workers, slots=prepare.num_processes or _whole_cores(spec))


def _whole_cores(spec: JobSpec) -> int:
    """Return the physical cores that a worker asks for, rounded down; at least 1."""
    cpu = (spec.worker.resources or spec.resources).cpu
    if cpu is None and spec.cpu.threads_per_core is not None:
        return spec.ranks_per_worker * (spec.cpu.cores_per_rank or 1)
    if cpu is None or not _CPUS.fullmatch(str(cpu)):
        return 1
    return max(1, int(count_cpus(cpu)) // (spec.cpu.threads_per_core or 1))


def list_runs(job: BertPretrainJob) -> tuple[Run, ...]:
    """Return a job's runs in order: data preparation, then all other stages on all ranks."""
    # Two children, since they need different resources: preparation gets no GPUs, and may have other workers.
    prepare = tuple(stage.name for stage in job.spec.stages if stage.prepare is not None)
    others = tuple(stage.name for stage in job.spec.stages if stage.prepare is None)
    runs = (
        Run(name=PREPARE_RUN, stages=prepare, ranks=run_placement(job.spec, PREPARE_RUN).ranks),
        Run(name=TRAINING_RUN, stages=others, ranks=job.spec.ranks),
    )
    return tuple(run for run in runs if run.stages)
