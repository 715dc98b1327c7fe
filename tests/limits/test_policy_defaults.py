"""The admission policy sees jobs as they were written: what it takes an absent field for is the code's own default."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bert_operator.api.schema.bert_pretrain_job import JobSpec
from bert_operator.api.schema.section import Section, keys_of, sections_in

POLICY = Path(__file__).parents[2] / "deploy/kustomize/components/admission-policy/job-limits.yaml"
ASSUMED = set(re.findall(r"object\.spec((?:\.\??\w+)+)\.orValue\((\d+|true|false)\)", POLICY.read_text()))


def default_of(path: list[str]) -> Any:
    """Return the default of a field below spec, of which every section may be absent."""
    section: type[Section] = JobSpec
    for key in path[:-1]:
        (section,) = sections_in(section.model_fields[field_of(section, key)].annotation)
    return section.model_fields[field_of(section, path[-1])].default


def field_of(section: type[Section], key: str) -> str:
    (name,) = [name for name, found in keys_of(section).items() if found == key]
    return name


def test_an_absent_field_counts_as_the_code_s_default() -> None:
    defaults = {path: default_of([key for key in re.split(r"[.?]+", path) if key]) for path, _ in ASSUMED}
    # Where the code has none, absent means what the field's docstring says.
    known = {(path, json.dumps(default)) for path, default in defaults.items() if default is not None}
    assert {(path, value) for path, value in ASSUMED if defaults[path] is not None} == known
    assert ".?runPolicy.?stopGraceSeconds" in defaults
