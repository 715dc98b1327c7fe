"""A job has a bound as a whole, which is never below what it takes as JSON."""

from __future__ import annotations

import json

import pytest

from bert_operator.api.parsing.validation import parse_job, parse_started_job
from bert_operator.api.rules.size_bound import MAX_BYTES, spec_size
from bert_operator.errors import InvalidJob
from job_documents import draw_document
from sample_job import Document, sample_document


def filled(total: int) -> Document:
    """A job of exactly so many measured bytes."""
    job = sample_document(lambda spec: spec.update(env=[{"name": f"N{number}", "value": ""} for number in range(100)]))
    for variable in job["spec"]["env"]:
        variable["value"] = "é" * min(2048, max(0, total - spec_size(job["spec"])) // 2)
    job["spec"]["output"]["path"] += "x" * (total - spec_size(job["spec"]))
    assert spec_size(job["spec"]) == total
    return job


def test_the_largest_is_read_and_a_byte_more_is_refused() -> None:
    parse_job(filled(MAX_BYTES))
    with pytest.raises(InvalidJob) as refused:
        parse_job(filled(MAX_BYTES + 1))
    (problem,) = refused.value.problems
    assert (problem.path, problem.got) == ("spec", "256.0 KiB")
    assert "256 KiB" in problem.allowed
    assert "envFrom" in problem.next_step


def test_one_that_has_started_is_read_whatever_its_size() -> None:
    assert len(parse_started_job(filled(MAX_BYTES + 1)).spec.env) == 100


def test_no_job_takes_more_as_json_than_is_measured() -> None:
    seen = 0
    for number in range(300):
        try:
            job = parse_job(draw_document(number))
        except InvalidJob:
            continue
        written = job.spec.model_dump(mode="json", by_alias=True)
        text = json.dumps(written, ensure_ascii=False, separators=(",", ":"))
        escapes = text.count("\\") * 5
        assert spec_size(written) >= len(text.encode()) - escapes, number
        seen += 1
    assert seen > 50
