"""What a run tells of itself: progress reports, events, metrics, and traces of single steps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bert_job.section import Count, Name, Section


class LoggingSpec(Section):
    """Progress reports, TensorBoard, metrics endpoint."""

    every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Optimizer steps between progress reports."""
    tensorboard: bool = True
    """Write TensorBoard events into the output folder."""
    prometheus_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """TCP port on which rank 0 serves Prometheus metrics. 0: any free port. Empty: no metrics endpoint."""
    sample_ledger: bool = False
    """For debugging: write the sample numbers of every step."""


MAX_PROFILED_STEPS = 100
"""Of one trace: a step of BERT-large leaves some ten thousand events in it."""


class ProfileStepsSpec(Section):
    """A range of optimizer steps to profile, counted from 1 in each stage like the progress."""

    first: Count
    """First step to profile. The first few steps of a stage are slower than the others: memory is allocated, kernels
    are compiled."""
    last: Count
    """Last step to profile, inclusive; at most 99 after the first."""
    stage: Name | None = None
    """Name of a pretrain or finetune stage. Empty: every one of them."""
    all_ranks: bool = False
    """Whether every rank writes a trace, to compare ranks. Default: only rank 0, since traces are large."""

    def covers(self, stage: str, step: int) -> bool:
        """Return whether a step of a stage is traced."""
        return self.first <= step <= self.last and self.stage in (None, stage)
