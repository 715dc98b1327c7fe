"""Jobs drawn by chance are told apart by every rule, and never end in anything but a job or a list of problems."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

from bert_job.problems import Problem
from bert_job.rules.all_rules import RULES, STAGE_RULES
from bert_job.rules.stage_rules import StageView
from bert_job.section import Section
from bert_operator.api.parsing import schema_problems
from bert_operator.api.parsing.json_values import normalise
from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.rules.all_rules import OF_SECTIONS
from bert_operator.api.rules.job_rules import JOB_RULES
from bert_operator.api.rules.pod_rules import POD_RULES
from bert_operator.api.rules.section_rules import SECTION_RULES
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.errors import InvalidJob
from job_documents import TEXTS, draw_document, patterns, root
from sample_job import Document

COUNT = 7800


@cache
def documents() -> list[Document]:
    return [draw_document(number) for number in range(COUNT)]


@cache
def jobs() -> list[BertPretrainJob]:
    """Return what is left where every single field is as it should be; rules may be broken."""
    found = []
    for document in documents():
        text = json.dumps(normalise(document))
        try:
            found.append(BertPretrainJob.model_validate_json(text))
        except ValueError:
            continue
    return found


def sections(value: Any) -> Iterator[Section]:
    if isinstance(value, tuple):
        for item in value:
            yield from sections(item)
    elif isinstance(value, Section):
        yield value
        for name in type(value).model_fields:
            yield from sections(getattr(value, name))


def reached(section: Section) -> Iterator[Section]:
    yield section
    for name, _ in OF_SECTIONS.ruled_fields(type(section)):
        value = getattr(section, name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Section):
                yield from reached(item)


def test_every_section_with_a_rule_is_reached_by_the_fields_that_lead_to_one() -> None:
    def with_rules(found: Iterator[Section]) -> list[int]:
        return [id(section) for section in found if type(section) in SECTION_RULES]

    for job in jobs()[:300]:
        assert with_rules(reached(job.spec)) == with_rules(sections(job.spec))
    assert set(SECTION_RULES) <= {type(section) for job in jobs() for section in reached(job.spec)}


def problems_of(document: Document) -> list[Problem]:
    try:
        parse_job(document)
    except InvalidJob as error:
        return list(error.problems)
    return []


def test_a_fair_share_is_valid_and_every_problem_names_its_place() -> None:
    found = [problems_of(document) for document in documents()]
    assert 0.2 < found.count([]) / COUNT < 0.6
    problems = [problem for each in found for problem in each]
    assert {problem.path for problem in problems if not re.match(r"(spec|metadata)\b", problem.path)} == set()
    assert {problem.path for problem in problems if re.search(r"\bconstrained", problem.path)} == set()
    assert {problem.path for problem in problems if problem.allowed == "a value"} == set()


def test_a_document_follows_from_its_number() -> None:
    assert draw_document(7) == draw_document(7)
    assert len({json.dumps(draw_document(number)) for number in range(200)}) > 150


def test_every_rule_inside_a_section_is_kept_and_broken() -> None:
    seen: Counter[tuple[str, int, bool]] = Counter()
    for job in jobs():
        for section in sections(job.spec):
            for position, rule in enumerate(SECTION_RULES.get(type(section), ())):
                seen[type(section).__name__, position, rule.holds(section)] += 1
    expected = {
        (kind.__name__, position, holds)
        for kind, rules in SECTION_RULES.items()
        for position in range(len(rules))
        for holds in (True, False)
    }
    assert expected - seen.keys() == set()


def test_every_rule_between_sections_is_kept_and_broken() -> None:
    seen: Counter[tuple[str, bool]] = Counter()
    job_rules = (*RULES, *JOB_RULES, *POD_RULES)
    for job in jobs():
        for job_rule in job_rules:
            seen[job_rule.check.__name__, not list(job_rule.check(job.spec))] += 1
        trained = None
        for stage in job.spec.stages:
            view = StageView(stage, job.spec, trained, job.spec.ranks)
            for stage_rule in STAGE_RULES:
                seen[stage_rule.check.__name__, not list(stage_rule.check(view))] += 1
            trained = stage.pretrain or trained
    rules = [rule.check.__name__ for rule in (*job_rules, *STAGE_RULES)]
    assert {(rule, holds) for rule in rules for holds in (True, False)} - seen.keys() == set()


def test_every_pattern_has_texts_and_words() -> None:
    assert patterns(root()) == TEXTS.keys()
    assert patterns(root()) <= schema_problems.PATTERNS.keys()


def test_the_texts_are_what_they_are_said_to_be() -> None:
    for pattern, (matching, others) in TEXTS.items():
        assert all(re.search(pattern.replace("$", r"\Z"), text) for text in matching), pattern
        assert not any(re.search(pattern.replace("$", r"\Z"), text) for text in others), pattern
