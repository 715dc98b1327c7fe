"""The CustomResourceDefinition says of every field what it is for, and is small enough for kubectl apply."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from bert_job.rules.all_rules import STAGE_RULES
from bert_job.rules.stage_rules import one_kind
from bert_job.stages import Stage
from bert_operator.api.crd import render_crd
from bert_operator.api.rules.all_rules import OF_JOBS
from bert_operator.api.rules.section_rules import SECTION_RULES
from bert_operator.api.rules.size_bound import spec_size_expression
from bert_operator.api.schema.bert_pretrain_job import JobSpec

Schema = dict[str, Any]
FILE = Path(__file__).parents[2] / "deploy/kustomize/base/crd.yaml"
MAX_BYTES = 240 * 1024
"""Of 256 KiB that an object's annotations may have: kubectl apply keeps the whole definition in one. Now: 235 KB."""


def root() -> Schema:
    (version,) = render_crd()["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema


def walk(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Yield everything below a path, entries of lists and maps included."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if key in schema:
            yield from walk(schema[key], f"{path}{mark}")


def fields(schema: Schema) -> list[tuple[str, Schema]]:
    below = [pair for name in ("spec", "status") for pair in walk(schema["properties"][name], name)]
    return [(path, inner) for path, inner in below if not path.endswith(("[]", ".*"))]


def test_every_field_is_described_in_words() -> None:
    found = fields(root())
    assert len(found) > 300
    assert [path for path, inner in found if not inner.get("description", "").endswith(".")] == []
    assert [path for path, inner in found if "``" in inner["description"] or "\n" in inner["description"]] == []


def test_it_uses_what_kubernetes_allows_of_json_schema() -> None:
    for path, inner in walk(root(), ""):
        assert not {"$ref", "$defs", "oneOf", "allOf", "const", "title"} & inner.keys(), path
        assert "type" in inner or inner.get("x-kubernetes-int-or-string"), path
        assert isinstance(inner.get("exclusiveMinimum", True), bool), path
        assert isinstance(inner.get("exclusiveMaximum", True), bool), path


def test_lists_of_named_entries_are_merged_by_name() -> None:
    named = {
        path: inner["x-kubernetes-list-map-keys"]
        for path, inner in fields(root())
        if inner.get("x-kubernetes-list-type") == "map"
    }
    assert named == {
        "spec.stages": ["name"],
        "spec.env": ["name"],
        "spec.volumes": ["name"],
        **{f"spec.{place}resources.resourceClaims": ["name"] for place in ("", "launcher.", "worker.")},
        "status.conditions": ["type"],
    }


def test_every_text_and_list_of_the_spec_is_bounded() -> None:
    # The API server refuses rules whose cost it cannot bound.
    for path, inner in walk(root()["properties"]["spec"], "spec"):
        kind = inner.get("type")
        assert kind != "string" or "enum" in inner or "maxLength" in inner, path
        assert kind != "array" or "maxItems" in inner, path
        assert "additionalProperties" not in inner or "maxProperties" in inner, path


def test_every_rule_stands_where_its_section_does() -> None:
    expected = {cel.expression for rules in (OF_JOBS, STAGE_RULES) for rule in rules for cel in rule.cel}
    expected |= {cel.expression for rules in SECTION_RULES.values() for rule in rules for cel in rule.to_cel()}
    found = {
        rule["rule"]
        for _, inner in walk(root()["properties"]["spec"], "spec")
        for rule in inner.get("x-kubernetes-validations", ())
    }
    assert expected - found == set()
    expected.add(spec_size_expression())
    assert all("self.all(key" in rule for rule in found - expected)


def test_every_message_says_what_is_allowed_and_what_to_do() -> None:
    for path, inner in walk(root(), ""):
        for rule in inner.get("x-kubernetes-validations", ()):
            assert "allowed: " in rule["message"], path
            assert "; next: " in rule["message"], path


def test_every_field_but_the_run_policy_is_kept_once_the_job_has_started() -> None:
    blamed = [rule["fieldPath"] for rule in root()["x-kubernetes-validations"]]
    assert blamed == [f".spec.{field.alias}" for name, field in JobSpec.model_fields.items() if name != "run_policy"]


def test_stages_know_all_their_kinds() -> None:
    (cel,) = one_kind.cel
    assert all(f"has(self.{kind})" in cel.expression for kind in Stage.model_fields if kind != "name")


def test_it_fits_into_what_kubectl_apply_remembers() -> None:
    assert len(json.dumps(render_crd())) < MAX_BYTES
    assert FILE.read_text().startswith("# Generated by tools/generate.py")


@pytest.mark.parametrize(
    "column", render_crd()["spec"]["versions"][0]["additionalPrinterColumns"], ids=itemgetter("name")
)
def test_a_column_shows_a_field_of_its_type(column: dict[str, Any]) -> None:
    found = {"." + path: inner for path, inner in walk(root(), "")} | {"..metadata.creationTimestamp": {"type": "date"}}
    shown = found["." + re.sub(r"\[[^]]*\]", "[]", column["jsonPath"])]
    # Numbers of the status are text where they are shown as they were written.
    assert column["type"] == shown["type"] or (shown.get("type"), column["type"]) in {("number", "string")}
