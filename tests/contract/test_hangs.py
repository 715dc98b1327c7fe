"""What the operator tells pods of hangs is what they read, and both packages mean the same by nothing at all."""

from __future__ import annotations

import pytest

from bert_operator.api.schema.bert_pretrain_job import DEFAULT_HANG_SECONDS, RunPolicy
from bert_operator.render.hangs import hang_environment
from bert_trainer.pod.hang_watch import read_action
from bert_trainer.system.heartbeat import DEFAULT_LIMITS_S, read_limits


def test_the_defaults_are_the_same() -> None:
    assert tuple(map(float, DEFAULT_HANG_SECONDS)) == DEFAULT_LIMITS_S
    assert read_limits(hang_environment(RunPolicy())) == DEFAULT_LIMITS_S
    assert read_action(hang_environment(RunPolicy())) == "Restart"


@pytest.mark.parametrize(
    ("policy", "limits_s"),
    [
        (RunPolicy(hangMinSeconds=60), (60.0, 1800.0)),
        (RunPolicy(hangMaxSeconds=600), (120.0, 600.0)),
        (RunPolicy(hangMinSeconds=30, hangMaxSeconds=30), (30.0, 30.0)),
    ],
)
def test_limits_arrive(policy: RunPolicy, limits_s: tuple[float, float]) -> None:
    assert read_limits(hang_environment(policy)) == limits_s


@pytest.mark.parametrize("action", ["Restart", "Notify"])
def test_actions_arrive(action: str) -> None:
    policy = RunPolicy.model_validate({"onHang": action})
    assert read_action(hang_environment(policy)) == action
