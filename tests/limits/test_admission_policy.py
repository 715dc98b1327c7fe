"""What the admission policy is made of; whether an API server holds jobs against it: tests/api_server."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic.alias_generators import to_camel

from bert_operator.cluster.admission_policy import NUMBERS, render_admission_policy
from bert_operator.cluster.limits import Bounds
from bert_operator.cluster.settings import Settings
from bert_operator.errors import SettingsError


def policy_of(**settings: Any) -> dict[str, Any]:
    policy, binding = render_admission_policy(Settings.model_validate(settings))
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    return policy


def variables_of(**limits: Any) -> dict[str, str]:
    return {item["name"]: item["expression"] for item in policy_of(limits=limits)["spec"]["variables"]}


def test_every_limit_is_held_against_jobs() -> None:
    """A limit that somebody adds to the settings and not to the template would hold in the operator alone."""
    spec = policy_of()["spec"]
    rules = json.dumps(spec["validations"])
    # Not those that say it in words, which are made of every limit.
    variables = json.dumps([item for item in spec["variables"] if not item["name"].endswith("Allowed")])
    for name in Bounds.model_fields:
        alias = to_camel(name)
        uses = re.compile(rf"variables\.{alias}\b")
        assert uses.search(rules) or uses.search(variables), alias
        if name not in NUMBERS:
            assert f"variables.any{alias[0].upper()}{alias[1:]}" in rules, alias


def test_no_word_of_the_template_is_left() -> None:
    assert "@@" not in json.dumps(policy_of())


def test_a_limit_depends_on_the_namespace_only_where_the_settings_say_so() -> None:
    found = variables_of(
        images=["a"], tolerations=["x"], namespaces={"big": {"images": "any"}, "same": {"images": ["a"]}}
    )
    assert found["images"] == '{"big": []}[?object.metadata.namespace].orValue(["a"])'
    assert (
        found["imagesAllowed"] == "size(variables.images) == 0 ? \"none of a job's own\" : variables.images.join(', ')"
    )
    assert found["anyImages"] == '{"big": true}[?object.metadata.namespace].orValue(false)'
    assert (found["tolerations"], found["anyTolerations"]) == ('["x"]', "false")


def test_where_gpus_are_counted_no_claim_is_a_job_s_own() -> None:
    found = variables_of(resourceClaims=["one-gpu"], namespaces={"few": {"gpusPerNamespace": 4}})
    assert found["resourceClaims"] == '{"few": []}[?object.metadata.namespace].orValue(["one-gpu"])'


def test_names_are_texts_of_cel_whatever_they_hold() -> None:
    quoted = chr(34) + chr(92) + "n"
    found = variables_of(runtimeClasses=["it's", quoted, "ü"])
    assert found["runtimeClasses"] == json.dumps(["it's", quoted, "ü"], ensure_ascii=False)


def test_a_started_job_is_held_against_its_grace_alone() -> None:
    rules = [rule["expression"] for rule in policy_of()["spec"]["validations"]]
    free = [rule for rule in rules if not rule.startswith("variables.hasStarted || (")]
    assert len(free) == 1
    assert "stopGraceSeconds" in free[0]


def test_it_is_for_the_namespaces_that_the_operator_watches() -> None:
    _, everywhere = render_admission_policy(Settings())
    assert "matchResources" not in everywhere["spec"]
    _, binding = render_admission_policy(Settings(namespaces=("team-a",)))
    (only,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert only["values"] == ["team-a"]


def test_a_number_or_a_list_beyond_what_the_api_server_reads() -> None:
    assert variables_of(gpusPerNamespace=10**19)["gpusPerNamespace"] == str(2**63 - 1)
    with pytest.raises(SettingsError, match=r"limits\.images: got \d+ characters"):
        policy_of(limits={"images": [f"{number:0500}" for number in range(201)]})
