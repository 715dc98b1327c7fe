"""Every rule between fields is kept by a job just inside it, and names the field of a job just outside it."""

from __future__ import annotations

import pytest

from bert_job.problems import ABSENT
from bert_operator.api.parsing.validation import parse_job
from bert_operator.errors import InvalidJob
from rule_cases import RULE_CASES
from sample_job import sample_document, sample_job


@pytest.mark.parametrize("case", RULE_CASES)
def test_a_job_just_inside_a_rule_is_valid(case: str) -> None:
    assert sample_job(RULE_CASES[case].keeps) != sample_job()


@pytest.mark.parametrize("case", RULE_CASES)
def test_a_job_just_outside_a_rule_has_this_one_problem(case: str) -> None:
    expected = RULE_CASES[case]
    with pytest.raises(InvalidJob) as caught:
        parse_job(sample_document(expected.breaks))
    problems = caught.value.problems
    assert [problem.path for problem in problems] == [expected.path]
    text = str(problems[0])
    shape = (": required: ",) if problems[0].got == ABSENT else (": got ", "; allowed: ")
    assert all(word in text for word in (*shape, "; next: ", *expected.words)), text


def test_a_section_without_fields_is_set_as_in_cel() -> None:
    stage = {"name": "task", "finetune": {"task": "mrpc", "data": {"folder": "glue/MRPC", "columns": {}}}}
    with pytest.raises(InvalidJob, match=r"stages\[4\].finetune.data.columns: got {} with task mrpc"):
        parse_job(sample_document(lambda spec: spec["stages"].append(stage)))
