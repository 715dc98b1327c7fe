"""When faults happen, and what is looked for once they have."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import cast
from unittest.mock import MagicMock

import pytest

import campaign
import object_faults
import volume_faults
from bench import Bench
from bert_trainer.errors import DataUnreadable
from campaign import LAST_STEP, PAST_IT, TOTAL_STEPS, Plan, Story, has_room, partial_files, plan_moments, run_fault
from catalog import FAULTS
from fault import Fault, Scene
from real_jobs import DATA_JOB


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_moment_leaves_room_for_getting_over_it(fault: Fault, count: int) -> None:
    steps = [plan.step for plan in plan_moments(fault, 1, count)]
    assert steps == [plan.step for plan in plan_moments(fault, 1, count)]
    assert len(steps) == count
    assert all(after - before > PAST_IT for before, after in zip(steps, steps[1:], strict=False))
    assert steps[-1] <= LAST_STEP <= TOTAL_STEPS - 2 * PAST_IT


def test_a_moment_at_the_last_steps_has_no_room() -> None:
    assert has_room(LAST_STEP)
    assert has_room(TOTAL_STEPS - PAST_IT)
    assert not has_room(TOTAL_STEPS - PAST_IT + 1)
    assert not has_room(TOTAL_STEPS)


def test_a_moment_that_would_come_too_late_gets_a_job_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = next(fault for fault in FAULTS if not fault.is_per_moment)
    began: list[list[int]] = []

    def run_job(bench: object, fault: Fault, plans: Sequence[Plan]) -> Story:
        began.append([plan.number for plan in plans])
        return Story({"first": plans[0].number}, done=min(2, len(plans)))

    monkeypatch.setattr(campaign, "run_job", run_job)
    kept = run_fault(cast(Bench, None), fault, plan_moments(fault, 1, 3))
    assert began == [[0, 1, 2], [2]]
    assert kept == [{"first": 0}, {"first": 2}]


def test_ranks_take_few_steps_while_their_namespace_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deleted(Exception):
        """Ends the injection: there is no cluster."""

    calls: list[str] = []
    api = MagicMock()
    api.delete.side_effect = Deleted
    monkeypatch.setattr(object_faults, "api_of", lambda scene: api)
    monkeypatch.setattr(object_faults, "slow_ranks", lambda scene, share: calls.append("slow"))
    with pytest.raises(Deleted):
        object_faults.delete_namespace(cast(Scene, MagicMock()))
    assert calls == ["slow"]


def test_another_seed_is_another_moment() -> None:
    drawn = {tuple(plan.step for plan in plan_moments(FAULTS[0], seed, 3)) for seed in range(8)}
    assert len(drawn) > 1


def test_a_job_that_has_to_fail_has_to_say_why_in_a_word_of_the_trainer_s() -> None:
    asked = {fault.name: fault.reason for fault in FAULTS if fault.ends == "Failed"}
    assert asked == {"a shard removed": DataUnreadable.__name__}


def test_a_shard_that_only_an_evaluation_reads_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / DATA_JOB / "seq_len_32_max_pred_5"
    folder.mkdir(parents=True)
    for name in ("held_out_0000", "held_out_0001", "training_0000"):
        (folder / f"{name}.hdf5").touch()
    monkeypatch.setattr(volume_faults, "newest_ranks", lambda scene: ["a pod"])
    monkeypatch.setattr(volume_faults, "signal_pod", lambda pod, number: True)
    scene = MagicMock(volume=tmp_path, random=random.Random(1))
    next(fault for fault in FAULTS if fault.name == "a shard removed").inject(scene)
    assert sorted(path.stem for path in folder.iterdir()) == ["held_out_0000", "held_out_0001"]


def test_names_of_faults_are_names_of_jobs() -> None:
    slugs = [fault.slug[:40] for fault in FAULTS]
    assert len({*slugs}) == len(slugs)


def test_hidden_files_of_a_run_are_partial_but_for_locks(tmp_path: Path) -> None:
    (tmp_path / "checkpoints/.phase1-00000010.7").mkdir(parents=True)
    (tmp_path / ".report.json.7.partial").touch()
    (tmp_path / ".lock").touch()
    (tmp_path / "report.json").touch()
    assert partial_files(tmp_path) == [".report.json.7.partial", "checkpoints/.phase1-00000010.7"]
