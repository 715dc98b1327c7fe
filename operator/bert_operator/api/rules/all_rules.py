"""All rules between fields: what they find in a job, and what the API server is given of them."""

from __future__ import annotations

from collections.abc import Iterator

from bert_operator.api.rules import size_bound
from bert_operator.api.rules.cel import CelRule, describe
from bert_operator.api.rules.environment_rules import ENVIRONMENT_RULES
from bert_operator.api.rules.finetune_rules import FINETUNE_JOB_RULES, FINETUNE_STAGE_RULES
from bert_operator.api.rules.job_rules import JOB_RULES
from bert_operator.api.rules.pod_rules import POD_RULES
from bert_operator.api.rules.section_rules import SECTION_RULES, section_problems
from bert_operator.api.rules.stage_rules import STAGE_RULES, StageView
from bert_operator.api.rules.volume_rules import VOLUME_RULES
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob, JobSpec
from bert_operator.errors import Problem

_OF_JOBS = (*JOB_RULES, *FINETUNE_JOB_RULES, *POD_RULES, *ENVIRONMENT_RULES, *VOLUME_RULES)
_OF_STAGES = (*STAGE_RULES, *FINETUNE_STAGE_RULES)


def find_problems(job: BertPretrainJob) -> Iterator[Problem]:
    """Yield violations of the rules between fields, of a job whose fields are valid."""
    yield from section_problems(job)
    for rule in _OF_JOBS:
        for found in rule.check(job.spec):
            yield rule.problem(found, "spec")
    trained = None
    for number, stage in enumerate(job.spec.stages):
        view = StageView(stage, job.spec, trained)
        for stage_rule in _OF_STAGES:
            for found in stage_rule.check(view):
                yield stage_rule.problem(found, f"spec.stages[{number}]")
        # After the rules: a stage takes lengths from the stages before it, not from itself.
        trained = stage.pretrain or trained


def cel_rules(section: str) -> Iterator[CelRule]:
    """Yield the CEL rules of a section, given by the name of its class in the JSON schema."""
    if section == JobSpec.__name__:
        yield CelRule(size_bound.spec_size_expression(), describe(size_bound.ALLOWED, size_bound.NEXT_STEP))
    for rules in (JOB_RULES, FINETUNE_JOB_RULES, STAGE_RULES, FINETUNE_STAGE_RULES, POD_RULES, VOLUME_RULES):
        for rule in rules:
            yield from rule.cel_at(section)
    for kind, section_rules in SECTION_RULES.items():
        for section_rule in section_rules if kind.__name__ == section else ():
            yield from section_rule.to_cel()
