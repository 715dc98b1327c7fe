"""All rules of a run: what they find in its sections, whose fields are valid."""

from __future__ import annotations

from collections.abc import Iterator

from bert_job.model import ModelSpec
from bert_job.problems import Problem
from bert_job.rules.finetune_rules import FINETUNE_RULES, FINETUNE_STAGE_RULES
from bert_job.rules.section_rules import TRAINING_SECTION_RULES, SectionRules
from bert_job.rules.stage_rules import PRETRAIN_STAGE_RULES, StageView
from bert_job.rules.training_rules import MODEL_RULES, TRAINING_RULES
from bert_job.training import TrainingSpec

RULES = (*TRAINING_RULES, *FINETUNE_RULES)
"""Over the whole training."""
STAGE_RULES = (*PRETRAIN_STAGE_RULES, *FINETUNE_STAGE_RULES)
"""Over one stage."""
OF_SECTIONS = SectionRules(TRAINING_SECTION_RULES)
"""Inside one section, wherever it stands."""


def find_problems(spec: TrainingSpec, ranks: int) -> Iterator[Problem]:
    """Yield violations of the rules between fields, at paths that begin with ``spec``."""
    yield from OF_SECTIONS.problems(spec, ("spec",))
    for rule in RULES:
        for found in rule.check(spec):
            yield rule.problem(found, "spec")
    yield from find_stage_problems(spec, ranks)


def find_model_problems(model: ModelSpec) -> Iterator[Problem]:
    """Yield violations of the rules that look at nothing but the model."""
    spec = TrainingSpec.model_construct(model=model, stages=())
    for rule in MODEL_RULES:
        for found in rule.check(spec):
            yield rule.problem(found, "spec")


def find_stage_problems(spec: TrainingSpec, ranks: int) -> Iterator[Problem]:
    """Yield violations of the rules inside single stages."""
    trained = None
    for number, stage in enumerate(spec.stages):
        view = StageView(stage, spec, trained, ranks)
        for rule in STAGE_RULES:
            for found in rule.check(view):
                yield rule.problem(found, f"spec.stages[{number}]")
        # After the rules: a stage takes lengths from the stages before it, not from itself.
        trained = stage.pretrain or trained
