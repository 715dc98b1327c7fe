"""The stages of a job, by kind."""

from __future__ import annotations

from typing import Literal

from bert_job.evaluation import EvaluateSpec
from bert_job.finetuning import FinetuneSpec
from bert_job.preparation import PrepareSpec
from bert_job.pretraining import PretrainSpec
from bert_job.section import Name, Section
from bert_job.weights import ExportSpec

StageKind = Literal["prepare", "pretrain", "evaluate", "finetune", "export"]
STAGE_KINDS: tuple[StageKind, ...] = ("prepare", "pretrain", "evaluate", "finetune", "export")


class Stage(Section):
    """One step of the job; besides the name exactly one field is set."""

    name: Name
    """Unique in the job; progress, metrics and checkpoints are labelled with it. Lower-case letters, digits and
    dashes."""
    prepare: PrepareSpec | None = None
    """Build a dataset from text."""
    pretrain: PretrainSpec | None = None
    """Train one phase."""
    evaluate: EvaluateSpec | None = None
    """Evaluate on held-out documents."""
    finetune: FinetuneSpec | None = None
    """Train the model on one task of GLUE, on SQuAD or on one's own tables. Only finetune and export stages follow."""
    export: ExportSpec | None = None
    """Export the model for other programs."""

    @property
    def kinds(self) -> tuple[StageKind, ...]:
        """The kinds that are set; exactly one in a valid job."""
        return tuple(kind for kind in STAGE_KINDS if getattr(self, kind) is not None)
