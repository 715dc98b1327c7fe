"""When faults happen, and what is looked for once they have."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign import LAST_STEP, PAST_IT, TOTAL_STEPS, partial_files, plan_moments
from catalog import FAULTS
from fault import Fault


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_moment_leaves_room_for_getting_over_it(fault: Fault, count: int) -> None:
    steps = [plan.step for plan in plan_moments(fault, 1, count)]
    assert steps == [plan.step for plan in plan_moments(fault, 1, count)]
    assert len(steps) == count
    assert all(after - before > PAST_IT for before, after in zip(steps, steps[1:], strict=False))
    assert steps[-1] <= LAST_STEP <= TOTAL_STEPS - 2 * PAST_IT


def test_another_seed_is_another_moment() -> None:
    drawn = {tuple(plan.step for plan in plan_moments(FAULTS[0], seed, 3)) for seed in range(8)}
    assert len(drawn) > 1


def test_names_of_faults_are_names_of_jobs() -> None:
    slugs = [fault.slug[:40] for fault in FAULTS]
    assert len({*slugs}) == len(slugs)


def test_hidden_files_of_a_run_are_partial_but_for_locks(tmp_path: Path) -> None:
    (tmp_path / "checkpoints/.phase1-00000010.7").mkdir(parents=True)
    (tmp_path / ".report.json.7.partial").touch()
    (tmp_path / ".lock").touch()
    (tmp_path / "report.json").touch()
    assert partial_files(tmp_path) == [".report.json.7.partial", "checkpoints/.phase1-00000010.7"]
