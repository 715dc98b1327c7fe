"""What the admission policy is made of; whether an API server holds jobs against it: tests/api_server."""

from __future__ import annotations

import json
from typing import Any

from pydantic.alias_generators import to_camel

from bert_operator.cluster.admission_policy import NUMBERS, render_admission_policy
from bert_operator.cluster.limits import Bounds
from bert_operator.cluster.settings import Settings


def policy_of(**settings: Any) -> dict[str, Any]:
    policy, binding = render_admission_policy(Settings.model_validate(settings))
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    return policy


def variables_of(**limits: Any) -> dict[str, str]:
    return {item["name"]: item["expression"] for item in policy_of(limits=limits)["spec"]["variables"]}


def test_every_limit_is_held_against_jobs() -> None:
    """A limit that somebody adds to the settings and not to the template would hold in the operator alone."""
    policy = policy_of()
    rules = json.dumps(policy["spec"]["validations"])
    for name in Bounds.model_fields:
        alias = to_camel(name)
        assert f"variables.{alias}" in rules or f"variables.{alias}" in json.dumps(policy["spec"]["variables"]), alias
        if name not in NUMBERS:
            assert f"variables.any{alias[0].upper()}{alias[1:]}" in rules, alias


def test_no_word_of_the_template_is_left() -> None:
    assert "@@" not in json.dumps(policy_of())


def test_a_limit_depends_on_the_namespace_only_where_the_settings_say_so() -> None:
    found = variables_of(
        images=["a"], tolerations=["x"], namespaces={"big": {"images": "any"}, "same": {"images": ["a"]}}
    )
    assert found["images"] == '{"big": []}[?object.metadata.namespace].orValue(["a"])'
    assert found["anyImages"] == '{"big": true}[?object.metadata.namespace].orValue(false)'
    assert (found["tolerations"], found["anyTolerations"]) == ('["x"]', "false")


def test_where_gpus_are_counted_no_claim_is_a_job_s_own() -> None:
    found = variables_of(resourceClaims=["one-gpu"], namespaces={"few": {"gpusPerNamespace": 4}})
    assert found["resourceClaims"] == '{"few": []}[?object.metadata.namespace].orValue(["one-gpu"])'


def test_names_are_texts_of_cel_whatever_they_hold() -> None:
    quoted = chr(34) + chr(92) + "n"
    found = variables_of(runtimeClasses=["it's", quoted, "ü"])
    assert found["runtimeClasses"] == json.dumps(["it's", quoted, "ü"], ensure_ascii=False)
