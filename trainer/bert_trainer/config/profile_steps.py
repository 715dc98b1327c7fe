"""Which steps of a run are traced and timed: the section of the run configuration, and its command-line form."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bert_trainer.config.section import Positive, Section
from bert_trainer.errors import InputError

MAX_STEPS = 100
"""Of one trace: a step of BERT-large leaves some ten thousand events in it."""


class ProfileSteps(Section):
    """A range of optimizer steps, counted from 1 in each stage as the progress reports count them."""

    first: Positive
    """The first steps of a run are slower than the others: memory is allocated, kernels are compiled."""
    last: Positive
    """Traced as well."""
    stage: str | None = None
    """Name of a pretraining stage; empty: every one."""
    all_ranks: bool = False
    """Whether every rank writes a trace; otherwise rank 0 alone."""

    def covers(self, stage: str, step: int) -> bool:
        """Tell whether a step of a stage is traced."""
        return self.first <= step <= self.last and self.stage in (None, stage)

    def problems(self, stages: Sequence[str]) -> list[str]:
        """Return what cannot work, each as ``path: got; allowed``. stages: names of the pretraining stages."""
        problems = []
        if not self.first <= self.last < self.first + MAX_STEPS:
            problems.append(
                f"profile_steps: got {self.first} to {self.last}; allowed: a first step that is not after the last, "
                f"and at most {MAX_STEPS} steps"
            )
        if self.stage is not None and self.stage not in stages:
            problems.append(f"profile_steps.stage: got {self.stage!r}; allowed: {', '.join(stages)}, or empty for all")
        return problems


def parse_profile_steps(text: str) -> ProfileSteps:
    """Read ``FIRST-LAST`` or ``STEP``.

    Raises:
        InputError: it is neither.
    """
    match = re.fullmatch(r"([1-9]\d{0,8})(?:-([1-9]\d{0,8}))?", text)
    if match is None:
        raise InputError(f"--profile: got {text!r}; allowed: steps as FIRST-LAST, such as 10-12, counted from 1")
    return ProfileSteps(first=int(match[1]), last=int(match[2] or match[1]))
