"""What a job says of its training's health reaches the trainer; what it leaves out means what the reference tells."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from bert_job.health import FindingName, HealthSpec
from bert_operator.render.run_config import render_run_config
from bert_trainer.config.checks import parse_run_config
from sample_job import sample_job


def rendered(health: dict[str, Any] | None) -> HealthSpec | None:
    job = sample_job(lambda spec: spec.update({} if health is None else {"health": health}))
    return parse_run_config(render_run_config(job, uid="u", ranks=2, hosts=1, output_folder="/out")).health


def test_empty_policies_are_those_that_the_reference_tells() -> None:
    by_default = {name: HealthSpec().action(name) for name in get_args(FindingName)}
    assert by_default == {"notFinite": "Stop", "lossScale": "Stop", "gradientNorm": "Report", "loss": "Report"}
    text = " ".join((HealthSpec.model_fields["on_unhealthy"].description or "").split())
    assert text.endswith("Empty: ``Stop`` for onNotFinite and onLossScale, ``Report`` for the others.")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ({}, HealthSpec()),
        ({"onUnhealthy": "Stop"}, HealthSpec(on_unhealthy="Stop")),
        (
            {"onNotFinite": "Skip", "onLoss": "Report", "lossDeviations": 4.5, "maxSkippedSteps": 1},
            HealthSpec(on_not_finite="Skip", on_loss="Report", loss_deviations=4.5, max_skipped_steps=1),
        ),
    ],
)
def test_what_a_job_sets_arrives_and_nothing_else(given: dict[str, Any] | None, expected: HealthSpec | None) -> None:
    assert rendered(given) == expected
