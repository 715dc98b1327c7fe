"""Which steps of a job are traced and timed, and the rules inside that section."""

from __future__ import annotations

from bert_operator.api.schema.section import Count, Name, Section

MAX_STEPS = 100
"""Of one trace: a step of BERT-large leaves some ten thousand events in it."""


class ProfileStepsSpec(Section):
    """A range of optimizer steps, counted from 1 in each stage as the progress counts them."""

    first: Count
    """First step that is traced. A stage's first few are slower than the others: memory is allocated, kernels are
    compiled."""
    last: Count
    """Last step that is traced, at most 99 after the first."""
    stage: Name | None = None
    """Name of a pretrain stage. Empty: every one."""
    all_ranks: bool = False
    """Whether every rank writes a trace, to compare ranks. Default: rank 0 alone, since traces are large."""

    @property
    def is_range(self) -> bool:
        """Whether there are steps in it, and not too many."""
        return self.first <= self.last < self.first + MAX_STEPS
