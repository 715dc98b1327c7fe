"""Learning rates at named steps of the published recipes, and the lengths of stages.

NVIDIA's phase 1 is 7,038 steps at 6e-3 with a warm-up of 28.43 %, phase 2 is 1,563 steps at 4e-3 with 12.8 %.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from bert_job.optimization import WarmupSpec
from bert_job.pretraining import LengthSpec
from bert_trainer.optim.schedule import learning_rate, num_steps, warmup_proportion
from whole_configs import schedule_settings

PHASE_1 = schedule_settings(learning_rate=6e-3, warmup=WarmupSpec(proportion=0.2843))
PHASE_1_STEPS = 7038
PHASE_2 = schedule_settings(learning_rate=4e-3, warmup=WarmupSpec(proportion=0.128))
PHASE_2_STEPS = 1563


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (1, 2.9986e-6),
        (2, 5.9973e-6),
        (1000, 2.9986e-3),
        (2000, 5.9973e-3),  # the peak, a little below 6e-3: the warm-up is 2,000.9 steps long
        (2001, 5.0758e-3),  # the published drop, to 84.6 %
        (7037, 7.1520e-5),
        (7038, 0.0),
    ],
)
def test_phase_1_has_the_published_rates(update: int, expected: float) -> None:
    assert learning_rate(PHASE_1, update - 1, PHASE_1_STEPS) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize(
    ("update", "expected"),
    [(1, 1.9994e-5), (200, 3.9987e-3), (201, 3.7340e-3), (1562, 1.0118e-4), (1563, 0.0)],
)
def test_phase_2_has_the_published_rates(update: int, expected: float) -> None:
    assert learning_rate(PHASE_2, update - 1, PHASE_2_STEPS) == pytest.approx(expected, rel=5e-5)


def test_the_peak_of_a_published_schedule_is_where_the_drop_is() -> None:
    rates = [learning_rate(PHASE_1, step, PHASE_1_STEPS) for step in range(PHASE_1_STEPS)]
    assert rates.index(max(rates)) == 1999
    rises = [later > earlier for earlier, later in zip(rates, rates[1:], strict=False)]
    assert all(rises[:1999])
    assert not any(rises[1999:])


@pytest.mark.parametrize("update", [1, 2, 100, 3000, 6700])
def test_without_warm_up_a_linear_decay_is_mlperfs(update: int) -> None:
    """NVIDIA's 8 A100: 6,700 steps at 4.25e-4; the rate falls from the first step on, in equal parts."""
    schedule = schedule_settings(learning_rate=4.25e-4, decay="linear")
    assert learning_rate(schedule, update - 1, 6700) == pytest.approx(4.25e-4 * (6700 - update) / 6700, abs=1e-18)


def test_a_linear_decay_with_warm_up_drops_as_published() -> None:
    schedule = schedule_settings(learning_rate=1.0, warmup=WarmupSpec(proportion=0.25), decay="linear")
    rates = [learning_rate(schedule, step, 10) for step in range(10)]
    assert rates == pytest.approx([0.4, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0])


def test_where_the_warm_up_ends_on_a_step_that_step_already_decays_as_published() -> None:
    schedule = schedule_settings(learning_rate=1.0, warmup=WarmupSpec(steps=2), decay="linear")
    rates = [learning_rate(schedule, step, 8) for step in range(8)]
    assert rates == [0.5, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0]


def test_constant_stays_at_the_peak_to_the_end() -> None:
    schedule = schedule_settings(learning_rate=2e-4, warmup=WarmupSpec(steps=2), decay="constant")
    assert [learning_rate(schedule, step, 5) for step in range(5)] == pytest.approx([1e-4, 2e-4, 2e-4, 2e-4, 2e-4])


@pytest.mark.parametrize("decay", ["poly", "linear"])
@pytest.mark.parametrize("warmup_steps", [1, 3, 2000])
def test_the_continuous_form_reaches_the_peak_and_never_drops_by_more_than_its_own_slope(
    decay: str, warmup_steps: int
) -> None:
    schedule = schedule_settings(
        learning_rate=6e-3, warmup=WarmupSpec(steps=warmup_steps), decay=decay, after_warmup="continuous"
    )
    rates = [learning_rate(schedule, step, PHASE_1_STEPS) for step in range(PHASE_1_STEPS)]
    assert rates[warmup_steps - 1] == 6e-3
    assert rates[:warmup_steps] == pytest.approx([6e-3 * (n + 1) / warmup_steps for n in range(warmup_steps)])
    after = rates[warmup_steps - 1 :]
    power, rest = {"poly": 0.5, "linear": 1.0}[decay], PHASE_1_STEPS - warmup_steps
    assert after == pytest.approx([6e-3 * (1 - n / rest) ** power for n in range(rest + 1)], abs=1e-15)
    assert all(later < earlier for earlier, later in zip(after, after[1:], strict=False))
    assert rates[-1] == 0.0


def test_a_continuous_warm_up_by_proportion_does_not_drop_either() -> None:
    schedule = SimpleNamespace(**{**vars(PHASE_1), "after_warmup": "continuous"})
    rates = [learning_rate(schedule, step, PHASE_1_STEPS) for step in range(PHASE_1_STEPS)]
    assert rates[1999] == pytest.approx(5.9973e-3, rel=1e-5)
    assert rates[2000] == pytest.approx(6e-3, rel=1e-4)
    assert rates[-1] == 0.0


@pytest.mark.parametrize("after_warmup", ["published", "continuous"])
@pytest.mark.parametrize("decay", ["poly", "linear", "constant"])
@pytest.mark.parametrize("total", [1, 2, 3, 7, 1563])
@pytest.mark.parametrize("proportion", [0.0, 0.1, 0.9999])
def test_rates_are_never_negative_nor_above_the_peak(
    after_warmup: str, decay: str, total: int, proportion: float
) -> None:
    schedule = schedule_settings(
        learning_rate=1e-3, warmup=WarmupSpec(proportion=proportion), decay=decay, after_warmup=after_warmup
    )
    rates = [learning_rate(schedule, step, total) for step in range(total)]
    assert all(isinstance(rate, float) and 0.0 <= rate <= 1e-3 for rate in rates)


def test_a_warm_up_is_given_in_steps_or_as_a_proportion() -> None:
    assert warmup_proportion(WarmupSpec(proportion=0.128), 1563) == 0.128
    assert warmup_proportion(WarmupSpec(steps=200), 1600) == 0.125
    assert warmup_proportion(WarmupSpec(steps=0), 1600) == 0.0


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (LengthSpec(steps=7038), 7038),
        (LengthSpec(samples=461_242_368), 7038),  # 7,038 x 65,536
        (LengthSpec(samples=461_242_369), 7039),  # one more sample is one more step
        (LengthSpec(samples=1), 1),
        (LengthSpec(epochs=1), 2),  # 100,000 samples are 1.53 batches
        (LengthSpec(epochs=3), 5),
        (LengthSpec(epochs=0.5), 1),
        (LengthSpec(epochs=1e-9), 1),
    ],
)
def test_the_length_of_a_stage_in_steps(length: LengthSpec, expected: int) -> None:
    assert num_steps(length, num_samples=100_000, global_batch_size=65_536) == expected


@pytest.mark.parametrize("tenths", range(1, 100))
def test_a_fraction_of_an_epoch_that_is_whole_batches_is_not_rounded_up(tenths: int) -> None:
    """In floating point, 8.3 * 1,000,000 is a hair above 8,300,000, which are 83,000 batches of 100."""
    length = LengthSpec(epochs=float(f"{tenths // 10}.{tenths % 10}"))
    assert num_steps(length, num_samples=10, global_batch_size=1) == tenths
    assert num_steps(length, num_samples=1_000_000, global_batch_size=100) == tenths * 1000


def test_the_rates_add_up_to_the_area_under_the_published_curve() -> None:
    """Sum over phase 1 against the integral of both branches: no step is left out and none counted twice."""
    total = math.fsum(learning_rate(PHASE_1, step, PHASE_1_STEPS) for step in range(PHASE_1_STEPS))
    area = 6e-3 * (0.2843 / 2 + 2 / 3 * (1 - 0.2843) ** 1.5)
    assert total / PHASE_1_STEPS == pytest.approx(area, rel=1e-3)
