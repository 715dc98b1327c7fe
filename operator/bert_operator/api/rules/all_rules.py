"""All rules between fields: what they find in a job, and what the API server is given of them."""

from __future__ import annotations

from collections.abc import Iterator

from bert_job.problems import Problem
from bert_job.rules.all_rules import RULES, STAGE_RULES, find_stage_problems
from bert_job.rules.cel import CelRule, describe
from bert_job.rules.rule import Rule
from bert_job.rules.section_rules import SectionRules
from bert_operator.api.rules import size_bound
from bert_operator.api.rules.environment_rules import ENVIRONMENT_RULES
from bert_operator.api.rules.job_rules import JOB_RULES
from bert_operator.api.rules.pod_rules import POD_RULES
from bert_operator.api.rules.section_rules import SECTION_RULES
from bert_operator.api.rules.volume_rules import VOLUME_RULES
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob, JobSpec

OF_JOBS: tuple[Rule[JobSpec], ...] = (*RULES, *JOB_RULES, *POD_RULES, *ENVIRONMENT_RULES, *VOLUME_RULES)
OF_SECTIONS = SectionRules(SECTION_RULES)
_NAMES_OF_SPEC = tuple(kind.__name__ for kind in JobSpec.__mro__)


def find_problems(job: BertPretrainJob) -> Iterator[Problem]:
    """Yield violations of the rules between fields, of a job whose fields are valid."""
    yield from OF_SECTIONS.problems(job.spec, ("spec",))
    for rule in OF_JOBS:
        for found in rule.check(job.spec):
            yield rule.problem(found, "spec")
    yield from find_stage_problems(job.spec, job.spec.ranks)


def cel_rules(section: str) -> Iterator[CelRule]:
    """Yield the CEL rules of a section, given by the name of its class in the JSON schema."""
    names = _NAMES_OF_SPEC if section == JobSpec.__name__ else (section,)
    if section == JobSpec.__name__:
        yield CelRule(size_bound.spec_size_expression(), describe(size_bound.ALLOWED, size_bound.NEXT_STEP))
    for rules in (OF_JOBS, STAGE_RULES):
        for rule in rules:
            yield from rule.cel_at(names)
    for kind, section_rules in SECTION_RULES.items():
        for section_rule in section_rules if kind.__name__ == section else ():
            yield from section_rule.to_cel()
