"""All rules between fields: what they find in a job, and what the API server is given of them."""

from __future__ import annotations

from collections.abc import Iterator

from bert_operator.api.rules import size_bound
from bert_operator.api.rules.cel import CelRule, describe
from bert_operator.api.rules.environment_rules import ENVIRONMENT_RULES
from bert_operator.api.rules.finetune_rules import FINETUNE_JOB_RULES, FINETUNE_STAGE_RULES
from bert_operator.api.rules.job_rules import JOB_RULES
from bert_operator.api.rules.pod_rules import POD_RULES
from bert_operator.api.rules.rule import Rule
from bert_operator.api.rules.section_rules import SECTION_RULES, section_problems
from bert_operator.api.rules.stage_rules import STAGE_RULES, StageView
from bert_operator.api.rules.valid_parts import ValidParts
from bert_operator.api.rules.volume_rules import VOLUME_RULES
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob, JobSpec
from bert_operator.errors import Path, Problem

_OF_JOBS = (*JOB_RULES, *FINETUNE_JOB_RULES, *POD_RULES, *ENVIRONMENT_RULES, *VOLUME_RULES)
_OF_STAGES = (*STAGE_RULES, *FINETUNE_STAGE_RULES)


def find_problems(job: BertPretrainJob, valid_parts: ValidParts) -> Iterator[Problem]:
    """Yield violations of the rules between fields, for the fields that the user wrote."""
    yield from section_problems(job, valid_parts)
    yield from _job_problems(job, valid_parts)
    yield from _stage_problems(job, valid_parts)


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


def _job_problems(job: BertPretrainJob, valid_parts: ValidParts) -> Iterator[Problem]:
    # A misspelled kind is dropped by the repair: rules about the order of stages would judge a job that nobody wrote.
    kinds_are_known = valid_parts.is_there(("stages",)) and all(
        valid_parts.has_its_fields(("stages", number)) for number in range(len(job.spec.stages))
    )
    is_complete = valid_parts.is_complete
    for rule in _OF_JOBS:
        is_sound = is_complete or all(valid_parts.is_whole(path) for path in rule.reads)
        if is_sound and (kinds_are_known or not rule.reads_kinds):
            for found in rule.check(job.spec):
                yield rule.problem(found, "spec")


def _stage_problems(job: BertPretrainJob, valid_parts: ValidParts) -> Iterator[Problem]:
    trained, is_complete = None, valid_parts.is_complete
    for number, stage in enumerate(job.spec.stages):
        here: Path = ("stages", number)
        view = StageView(stage, job.spec, trained)
        for rule in _OF_STAGES:
            if is_complete or _is_sound(rule, here, valid_parts):
                for found in rule.check(view):
                    yield rule.problem(found, f"spec.stages[{number}]")
        # After the rules: a stage takes lengths from the stages before it, not from itself.
        trained = stage.pretrain or trained


def _is_sound(rule: Rule[StageView], here: Path, valid_parts: ValidParts) -> bool:
    """Return whether a rule over the stage at a path reads nothing but what is the user's own."""
    reads = [*((*here, *path) for path in rule.reads), *rule.reads_job]
    knows_kind = valid_parts.has_its_fields(here) if rule.reads_kinds else valid_parts.is_there(here)
    return knows_kind and all(valid_parts.is_whole(path) for path in reads)
