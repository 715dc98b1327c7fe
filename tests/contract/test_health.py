"""What the operator renders of a job's health is what the trainer reads, and both mean the same by nothing at all."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from bert_operator.api.schema.health import HealthSpec
from bert_operator.render.run_config import render_run_config
from bert_trainer.config.checks import parse_run_config
from bert_trainer.config.health import FindingName, HealthConfig
from sample_job import sample_job


def rendered(health: dict[str, Any] | None) -> HealthConfig | None:
    job = sample_job(lambda spec: spec.update({} if health is None else {"health": health}))
    return parse_run_config(render_run_config(job, uid="u", ranks=2, hosts=1, output_folder="/out")).health


def test_both_have_the_same_fields_with_the_same_choices() -> None:
    assert HealthSpec.model_fields.keys() == HealthConfig.model_fields.keys()
    for name, field in HealthSpec.model_fields.items():
        if name.startswith("on_"):
            assert field.annotation == HealthConfig.model_fields[name].annotation, name


def test_defaults_are_those_that_the_reference_tells() -> None:
    for name, field in HealthSpec.model_fields.items():
        told = re.search(r"Default:\s+([\d.]+)\.$", field.description or "")
        assert (told is None) == name.startswith("on_"), name
        if told is not None:
            assert float(told[1]) == HealthConfig.model_fields[name].default


def test_empty_policies_are_those_that_the_reference_tells() -> None:
    by_default = {name: HealthConfig().action(name) for name in get_args(FindingName)}
    assert by_default == {"notFinite": "Stop", "lossScale": "Stop", "gradientNorm": "Report", "loss": "Report"}
    text = " ".join((HealthSpec.model_fields["on_unhealthy"].description or "").split())
    assert text.endswith("Empty: ``Stop`` for onNotFinite and onLossScale, ``Report`` for the others.")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ({}, HealthConfig()),
        ({"onUnhealthy": "Rollback"}, HealthConfig(on_unhealthy="Rollback")),
        (
            {"onNotFinite": "Skip", "onLoss": "Report", "lossDeviations": 4.5, "maxRollbacks": 1},
            HealthConfig(on_not_finite="Skip", on_loss="Report", loss_deviations=4.5, max_rollbacks=1),
        ),
    ],
)
def test_what_a_job_sets_arrives_and_nothing_else(given: dict[str, Any] | None, expected: HealthConfig | None) -> None:
    assert rendered(given) == expected


def test_a_job_that_says_nothing_of_health_keeps_the_document_that_it_has_always_had() -> None:
    assert "health" not in render_run_config(sample_job(), uid="u", ranks=2, hosts=1, output_folder="/out")
