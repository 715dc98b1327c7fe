"""The dynamic loss scale of fp16: halved at an overflow, doubled after a run of finite steps."""

from __future__ import annotations

from bert_trainer.optim.optimizer import LossScaler


def test_other_precisions_have_a_scale_of_1_for_ever() -> None:
    scaler = LossScaler(enabled=False, growth_interval=1)
    for applied in (True, False, True):
        scaler.update(finite=applied)
    assert scaler.scale == 1.0


def test_it_starts_at_65536_and_grows_after_2000_steps() -> None:
    scaler = LossScaler(enabled=True)
    assert scaler.scale == 65536.0
    for _ in range(1999):
        scaler.update(finite=True)
    assert scaler.scale == 65536.0
    scaler.update(finite=True)
    assert scaler.scale == 131072.0


def test_every_overflow_halves_it() -> None:
    scaler = LossScaler(enabled=True, scale=8.0)
    found = []
    for applied in (False, False, True, False):
        scaler.update(finite=applied)
        found.append(scaler.scale)
    assert found == [4.0, 2.0, 2.0, 1.0]


def test_only_finite_steps_in_a_row_count() -> None:
    scaler = LossScaler(enabled=True, scale=8.0, growth_interval=3)
    found = []
    for applied in (True, True, False, True, True, True, True, True, True):
        scaler.update(finite=applied)
        found.append(scaler.scale)
    assert found == [8, 8, 4, 4, 4, 8, 8, 8, 16]


def test_it_goes_on_from_where_a_checkpoint_left_it() -> None:
    scaler = LossScaler(enabled=True, scale=8.0, growth_interval=3)
    scaler.scale, scaler.finite_steps = 32.0, 2
    scaler.update(finite=True)
    assert scaler.scale == 64.0
