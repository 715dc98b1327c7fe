"""When a periodic checkpoint is due is a function of literals and, on rank 0, of the clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bert_job.run_stages import CheckpointTimes
from bert_trainer.training.checkpoint_schedule import CheckpointSchedule


def times(**changes: Any) -> CheckpointTimes:
    nothing = {"every_steps": None, "every_seconds": None, "every_samples": None}
    return CheckpointTimes.model_validate({**nothing, "min_samples_to_start": 0, "periodic": True, **changes})


def due_steps(saves: CheckpointSchedule, batch: int, *, in_time: bool = False, up_to: int = 12) -> list[int]:
    steps = range(1, up_to + 1)
    return [step for step in steps if saves.is_due(step, (step - 1) * batch, step * batch, in_time=in_time)]


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, []),
        ({"every_steps": 5}, [5, 10]),
        ({"every_samples": 20}, [3, 5, 8, 10]),
        ({"every_samples": 3}, list(range(1, 13))),
        ({"every_steps": 6, "every_samples": 40}, [5, 6, 10, 12]),
        ({"every_steps": 1, "periodic": False}, []),
    ],
    ids=["never", "by steps", "by samples", "a step passes several multiples", "by both", "only ends"],
)
def test_steps_and_samples_say_when(changes: dict[str, Any], steps: list[int]) -> None:
    assert due_steps(CheckpointSchedule(times(**changes), rank=0), batch=8) == steps


def test_none_is_due_before_enough_samples_of_the_stage() -> None:
    assert due_steps(CheckpointSchedule(times(every_steps=2), rank=0, min_samples=48), batch=8) == [6, 8, 10, 12]
    assert due_steps(CheckpointSchedule(times(every_steps=2), rank=0, min_samples=-5), batch=8, up_to=4) == [2, 4]


def test_rank_0_alone_looks_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("bert_trainer.training.checkpoint_schedule.time", SimpleNamespace(monotonic=lambda: now_s))
    first, second = (CheckpointSchedule(times(every_seconds=60), rank) for rank in range(2))
    now_s = 159.0
    assert not first.interval_is_over()
    now_s = 160.0
    assert first.interval_is_over()
    assert not second.interval_is_over()
    first.restart()
    assert not first.interval_is_over()


def test_what_rank_0_has_said_counts_on_every_rank() -> None:
    assert due_steps(CheckpointSchedule(times(every_seconds=60), rank=1), batch=8, in_time=True, up_to=2) == [1, 2]
    # Never asked of a run that saves at the ends of stages only.
    assert due_steps(CheckpointSchedule(times(every_seconds=60, periodic=False), rank=1), batch=8, in_time=True) == []
