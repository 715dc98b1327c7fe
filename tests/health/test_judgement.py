"""Verdicts about steps from their figures alone: literals in, findings out.

The limits that are looked for are computed anew with ``statistics``.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from typing import Any

import pytest

from bert_job.health import HealthSpec
from bert_trainer.errors import RanksDisagree
from bert_trainer.optim.optimizer import LossScaler, StepResult
from bert_trainer.training.health import Finding, Health

NO_SCALE = LossScaler(enabled=False)


def step(health: Health, number: int, norm: float = 1.0, loss: float = 2.0, scaler: LossScaler = NO_SCALE) -> list[Any]:
    """Judge a step as the loop does, and return what was found about its gradients and its loss."""
    applied = math.isfinite(norm) and norm <= health.largest_norm
    scaler.update(finite=math.isfinite(norm))
    health.judge_step(number, StepResult(norm, applied, loss), scaler)
    return health.judge_last_step(health.own_numbers, 1)


def health_of(**settings: Any) -> Health:
    return Health(HealthSpec(**settings), "phase1")


def known(health: Health, steps: int = 32, seed: int = 1) -> tuple[list[float], list[float]]:
    """Show it healthy steps, and return their norms and losses."""
    rng = random.Random(seed)
    norms, losses = [rng.uniform(1, 3) for _ in range(steps)], [rng.gauss(6, 0.1) for _ in range(steps)]
    for number, (norm, loss) in enumerate(zip(norms, losses, strict=True), start=1):
        assert step(health, number, norm, loss) == []
    return norms, losses


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_gradients_that_are_not_finite_stop_a_run_at_its_first_step_by_default(norm: float) -> None:
    (found,) = step(health_of(), 1, norm)
    assert (found.name, found.action, found.first_step, found.last_step) == ("notFinite", "Stop", 1, 1)
    assert found.message == f"the gradients of step 1 are not finite (norm {norm})"


@pytest.mark.parametrize(("action", "is_prevented"), [(None, False), ("Skip", True), ("Stop", True)])
def test_a_norm_is_measured_by_a_hundred_medians(action: str | None, is_prevented: bool) -> None:
    health = health_of(on_unhealthy=action)
    norms, _ = known(health)
    limit = 100 * statistics.median(norms)
    assert health.largest_norm == (limit if is_prevented else math.inf)
    assert step(health, 33, limit * (1 - 1e-9)) == []
    norms.append(limit * (1 - 1e-9))
    limit = 100 * statistics.median(norms)
    (found,) = step(health, 34, limit * (1 + 1e-9))
    assert (found.name, found.action, found.first_step) == ("gradientNorm", action or "Report", 34)
    assert health.figures() == {"unhealthy_findings": 1, "skipped_steps": int(is_prevented)}


def test_nothing_is_measured_before_a_quarter_of_the_window_is_known() -> None:
    health = health_of(on_unhealthy="Skip")
    known(health, steps=31)
    assert health.largest_norm == math.inf
    assert step(health, 32, 1e30, 1e30) == []
    assert health.largest_norm < 1e4


@pytest.mark.parametrize("high_steps", [4, 5])
def test_a_loss_is_measured_by_six_deviations_for_five_steps(high_steps: int) -> None:
    health = health_of(on_loss="Stop")
    _, losses = known(health)
    limit = statistics.fmean(losses) + 6 * statistics.pstdev(losses)
    assert step(health, 33, loss=limit - 1e-6) == []
    losses.append(limit - 1e-6)
    limit = statistics.fmean(losses) + 6 * statistics.pstdev(losses)
    found: list[Finding] = []
    for number in range(34, 34 + high_steps):
        assert found == []
        found = step(health, number, loss=limit + 1e-6)
    assert [(it.name, it.action, it.first_step, it.last_step) for it in found] == (
        [("loss", "Stop", 34, 38)] if high_steps == 5 else []
    )
    # One step below the limit ends the row.
    if high_steps == 4:
        assert step(health, 38, loss=statistics.fmean(losses)) == []
        assert [step(health, number, loss=limit * 2) for number in range(39, 43)] == [[]] * 4


def test_a_loss_that_hardly_moves_makes_no_spike_of_a_rounding() -> None:
    health = health_of(loss_steps=1)
    for number in range(1, 40):
        assert step(health, number, loss=2.0) == []
    assert step(health, 40, loss=2.0 * (1 + 5e-3)) == []
    assert [it.name for it in step(health, 41, loss=2.0 * (1 + 7e-3))] == ["loss"]


def test_a_loss_that_stays_high_is_reported_once_and_then_learnt() -> None:
    health = health_of()
    known(health)
    found = [it for number in range(33, 200) for it in step(health, number, loss=20.0 + number % 3)]
    assert [(it.name, it.action, it.last_step) for it in found] == [("loss", "Report", 37)]


def test_updates_are_held_back_until_the_loss_returns() -> None:
    health = health_of(on_loss="Skip")
    known(health)
    for number in range(33, 38):
        assert health.largest_norm == math.inf
        step(health, number, loss=20.0)
    for number in range(38, 41):
        assert health.largest_norm == -math.inf
        assert step(health, number, loss=20.0) == []
        assert health.why_skipped == "the loss has not come back"
    step(health, 41, loss=6.0)  # known one step late
    assert health.largest_norm == math.inf
    assert health.skipped_steps == 4


@pytest.mark.parametrize("figures", [{"norm": math.nan}, {"norm": 1e9}, {"loss": 20.0}], ids=str)
def test_too_many_skipped_updates_in_a_row_stop_the_run(figures: dict[str, float]) -> None:
    health = health_of(on_unhealthy="Skip", max_skipped_steps=3)
    known(health)
    found = [it for number in range(33, 60) for it in step(health, number, **figures) if it.action == "Stop"]
    assert found[0].message.endswith("; 4 updates in a row were skipped, allowed: 3")
    # The loss is high for five steps before the first one is held back.
    assert found[0].last_step == (41 if "loss" in figures else 36)


def test_an_overflow_of_fp16_is_no_finding_until_the_scale_is_below_its_limit() -> None:
    health, scaler = health_of(), LossScaler(enabled=True, scale=4.0)
    assert [step(health, number, math.inf, scaler=scaler) for number in (1, 2)] == [[], []]
    assert (scaler.scale, health.skipped_steps) == (1.0, 2)
    (found,) = step(health, 3, math.inf, scaler=scaler)
    assert (found.name, found.action, found.first_step, found.last_step) == ("lossScale", "Stop", 1, 3)


@pytest.mark.parametrize(
    ("name", "by_default", "own"),
    [
        ("notFinite", "Stop", "on_not_finite"),
        ("gradientNorm", "Report", "on_gradient_norm"),
        ("loss", "Report", "on_loss"),
        ("lossScale", "Stop", "on_loss_scale"),
    ],
)
def test_a_finding_has_its_own_policy_else_that_of_all(name: Any, by_default: str, own: str) -> None:
    assert HealthSpec().action(name) == by_default
    assert HealthSpec(on_unhealthy="Stop").action(name) == "Stop"
    assert HealthSpec(on_unhealthy="Stop", **{own: "Skip"}).action(name) == "Skip"


def test_fine_tuning_judges_no_loss() -> None:
    health = Health(HealthSpec(on_unhealthy="Skip", window_steps=8), "task", finetuning=True)
    for number in range(1, 9):
        assert step(health, number) == []
    assert all(step(health, number, loss=1e9) == [] for number in range(9, 20))
    (found,) = step(health, 20, math.nan)
    assert (found.name, found.action) == ("notFinite", "Skip")


@pytest.mark.parametrize("action", ["Skip", None])
def test_verdicts_after_a_resume_are_those_of_a_run_that_was_not_interrupted(action: str | None) -> None:
    rng = random.Random(7)
    figures = [
        (rng.choice([1.0, 1.5, 2.0, 1e6, math.nan]), rng.choice([6.0, 6.1, 30.0]))
        for _ in range(150)
        for _ in range(rng.choice([1, 7]))
    ]
    settings = {"on_unhealthy": action, "on_not_finite": "Skip", "max_skipped_steps": 10**6, "window_steps": 16}

    def verdicts(health: Health, first: int, last: int) -> list[Any]:
        return [step(health, number + 1, *figures[number]) for number in range(first, last)]

    whole = health_of(**settings)
    expected = verdicts(whole, 0, len(figures))
    assert any(expected)
    for cut in rng.sample(range(len(figures)), 20):
        before, after = health_of(**settings), health_of(**settings)
        verdicts(before, 0, cut)
        after.load(json.loads(json.dumps(before.state())))
        assert verdicts(after, cut, len(figures)) == expected[cut:]
        assert after.state() == whole.state()


@pytest.mark.parametrize("ranks", [2, 3, 16])
@pytest.mark.parametrize("odd", [{"norm": math.nan}, {"norm": 1e9}], ids=str)
def test_ranks_that_have_seen_different_things_say_so(ranks: int, odd: dict[str, float]) -> None:
    def numbers(*norms: float) -> list[float]:
        told = []
        for norm in norms:
            health = health_of(on_unhealthy="Skip")
            known(health)
            applied = math.isfinite(norm) and norm <= health.largest_norm
            health.judge_step(33, StepResult(norm, applied, 2.0), NO_SCALE)
            told.append(health.own_numbers)
        return [sum(column) for column in zip(*told, strict=True)]

    for norms in ([1.0] * ranks, [odd["norm"]] * ranks):
        health_of().judge_last_step(numbers(*norms), ranks)
    for norms in ([1.0] * (ranks - 1) + [odd["norm"]], [odd["norm"]] * (ranks - 1) + [1.0]):
        with pytest.raises(RanksDisagree, match="phase1: ranks have made different things"):
            health_of().judge_last_step(numbers(*norms), ranks)


def test_a_checkpoint_of_another_stage_says_nothing_of_this_one() -> None:
    before = health_of()
    known(before)
    after = Health(HealthSpec(), "phase2")
    after.load(before.state())
    assert after.state() == Health(HealthSpec(), "phase2").state()
