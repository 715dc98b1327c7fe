"""What becomes of a run whose steps go wrong: skipped updates, the way back, and the same bits however it is cut.

Inputs: the toy data set, dropout 0.1, and losses that ``unhealthy_steps`` spoils. Observed: final weights, the ledger,
records, checkpoints. Runs are in the test's process.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bert_trainer.checkpoints.rollbacks import ROLLBACKS_FILE
from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import RanksDisagree, Stopped, TrainerError, TrainingUnhealthy
from bert_trainer.optim.optimizer import Optimizer
from bert_trainer.output.metrics import read_metrics
from bert_trainer.output.report import list_by_step
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training import steps
from bert_trainer.training.loop import run_stages
from bert_trainer.training.session import Session
from bert_trainer.training.stage_evaluation import accuracies_by_step
from threaded_world import ThreadedWorld, run_threads
from tiny_run import pretrain_stage, run_document, write_dataset
from unhealthy_steps import spoil

STEPS = 20
SPIKE = ",".join(f"phase1:{step}=30" for step in range(12, 17))
"""Five steps of a loss far above six deviations, and gradients far below a hundred medians."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


def document(folder: Path, dataset: Path, health: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    settings = {
        "stages": [pretrain_stage(length={"steps": STEPS})],
        "checkpoint": {"every_steps": 3, "keep": 9},
        "logging": {"every_steps": 1, "tensorboard": False, "sample_ledger": True},
        "health": None if health is None else {"window_steps": 16, **health},
    }
    return run_document(folder, dataset, **{**settings, **changes})


def run(settings: dict[str, Any], *, attempt: int = 1, stop_after: int | None = None) -> None:
    """Run to the end, or until somebody asks for a stop after so many steps were taken in this attempt."""
    session = Session.open(parse_run_config(settings), SingleRank(), attempt=attempt)
    taken = SimpleNamespace(steps=0)

    class Stop:
        def listen(self) -> None:
            """Install no handlers."""

        @property
        def received(self) -> bool:
            taken.steps += 1
            return stop_after is not None and taken.steps > stop_after

    run_stages(session, Stop())  # type: ignore[arg-type]


def final(folder: Path, step: int = STEPS) -> Path:
    return folder / "checkpoints" / f"phase1-{step:08d}"


def assert_same_bits(one: Path, other: Path) -> None:
    for name in ("model.safetensors", "optimizer.safetensors"):
        first, second = load_file(final(one) / name), load_file(final(other) / name)
        assert first.keys() == second.keys()
        assert [key for key in first if not torch.equal(first[key], second[key])] == []


def position(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((final(folder) / "manifest.json").read_text())["position"]
    return found


def ledger(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the last entry of every step, counted from 1, whichever attempt has made it."""
    entries = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return {entry["step"] + 1: {**entry, "attempt": None} for entry in entries}


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    return [record for record in read_metrics(folder) if record["event"] == name]


def test_by_default_a_run_stops_at_gradients_that_are_not_finite(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "phase1:5=nan")
    with pytest.raises(TrainingUnhealthy, match="phase1: the gradients of step 5 are not finite") as raised:
        run(document(tmp_path, dataset, None))
    assert raised.value.exit_code == 1
    assert "health.onUnhealthy: Skip or Rollback" in str(raised.value)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["phase1-00000003"]


def test_a_skipped_step_uses_up_its_samples_and_no_update(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "phase1:5=nan,phase1:9=inf")
    run(document(tmp_path, dataset, {"on_unhealthy": "Skip"}))
    assert (position(tmp_path)["num_applied"], position(tmp_path)["samples_seen"]) == (STEPS - 2, STEPS * 16)
    entries = ledger(tmp_path)
    assert {step for step, entry in entries.items() if "skipped" in entry} == {5, 9}
    assert entries[5]["skipped"].startswith("the gradients of step 5 are not finite")
    assert all(len(entry["samples"]) == 16 for entry in entries.values())
    last = events(tmp_path, "progress")[-1]
    assert (last["skipped_steps"], last["unhealthy_findings"], last["rollbacks"]) == (2, 2, 0)
    assert [(it["step"], it["action"]) for it in events(tmp_path, "unhealthy")] == [(5, "Skip"), (9, "Skip")]


def test_a_spike_is_reported_by_default_and_changes_nothing(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # LAMB and clipping make the same update of a gradient and of its multiple: powers of two leave every digit.
    spoil(monkeypatch, f"phase1:9={2.0**20}")
    run(document(tmp_path / "out", dataset, {"window_steps": 16}))
    (found,) = events(tmp_path / "out", "unhealthy")
    assert (found["finding"], found["action"], found["step"]) == ("gradientNorm", "Report", 9)
    assert position(tmp_path / "out")["num_applied"] == STEPS


def test_going_back_for_one_step_comes_to_what_skipping_it_comes_to(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update that is not applied leaves no trace: so what was gone back to, taken again and left out is equal."""
    spoil(monkeypatch, f"phase1:2=nan,phase1:8={2.0**20}")
    run(document(tmp_path / "skip", dataset, {"on_unhealthy": "Skip"}))
    run(document(tmp_path / "back", dataset, {"on_unhealthy": "Rollback"}))
    assert_same_bits(tmp_path / "skip", tmp_path / "back")
    # Step 2 comes before the first checkpoint: the run begins anew.
    wanted = [("notFinite", 2, 2, 0), ("gradientNorm", 8, 8, 6)]
    record = json.loads((tmp_path / "back" / ROLLBACKS_FILE).read_text())["rollbacks"]
    assert [(it["finding"], it["first_step"], it["last_step"], it["to_step"]) for it in record] == wanted
    entries = ledger(tmp_path / "back")
    assert {step for step, entry in entries.items() if "left_out" in entry} == {2, 8}
    assert (entries[8]["samples"], len(entries[8]["left_out"])) == ([], 16)
    assert entries[8]["why"].startswith("the gradient norm of step 8 is")
    assert entries[8]["left_out"] == ledger(tmp_path / "skip")[8]["samples"]
    last = events(tmp_path / "back", "progress")[-1]
    assert (last["left_out_steps"], last["rollbacks"], last["skipped_steps"]) == (2, 2, 0)


def test_going_back_mends_weights_that_were_damaged_in_memory(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What skipping cannot fix: every step after it would be skipped as well."""
    healthy, damages = steps.take_step, [8]

    def take_step(learner: Any, *arguments: Any, **named: Any) -> Any:
        if learner.optimizer.num_applied == damages[0] - 1:
            damages[0] = 0
            learner.parameters.values[learner.parameters.num_decayed :] = float("nan")
        return healthy(learner, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(steps, "take_step", take_step)
        run(document(tmp_path / "back", dataset, {"on_unhealthy": "Rollback"}))
    spoil(monkeypatch, "phase1:8=nan")
    run(document(tmp_path / "skip", dataset, {"on_unhealthy": "Skip"}))
    assert_same_bits(tmp_path / "skip", tmp_path / "back")


def test_no_checkpoint_is_written_of_what_is_not_finite(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = steps.take_step

    def take_step(learner: Any, *arguments: Any, **named: Any) -> Any:
        done = healthy(learner, *arguments, **named)
        if learner.optimizer.num_applied == 6:
            learner.optimizer.second_moment[5] = float("inf")
        return done

    with monkeypatch.context() as patched:
        patched.setattr(steps, "take_step", take_step)
        with pytest.raises(TrainingUnhealthy, match="second_moment.* is not finite after step 6"):
            run(document(tmp_path, dataset, {"on_unhealthy": "Skip"}))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["phase1-00000003"]
    run(document(tmp_path, dataset, {"on_unhealthy": "Skip"}), attempt=2)
    assert position(tmp_path)["num_applied"] == STEPS


def test_no_checkpoint_of_a_spike_is_gone_back_to(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, SPIKE)
    run(document(tmp_path, dataset, {"on_unhealthy": "Rollback"}))
    (back,) = events(tmp_path, "rolled_back")
    assert (back["step"], back["first_step"], back["last_step"]) == (9, 12, 16)
    assert {step for step, entry in ledger(tmp_path).items() if "left_out" in entry} == set(range(12, 17))
    # Those of steps 12 and 15 waited while the loss was high, and came when their steps were left out.
    assert [it["step"] for it in events(tmp_path, "checkpoint")] == [3, 6, 9, 12, 15, 18, 20]
    assert not (tmp_path / "checkpoints" / "refused").exists()
    assert position(tmp_path)["num_applied"] == STEPS - 5


def test_a_stage_may_end_with_what_is_left_out(tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, SPIKE)
    stages = [pretrain_stage(length={"steps": 16}), pretrain_stage("phase2", length={"steps": 3})]
    run(document(tmp_path, dataset, {"on_unhealthy": "Rollback"}, stages=stages))
    assert events(tmp_path, "progress")[-1]["stage"] == "phase2"
    # The report has nothing of the steps that were gone back behind.
    first, _ = json.loads((tmp_path / "report.json").read_text())["stages"]
    assert first["steps"] == 11


def test_a_checkpoint_that_was_asked_for_in_a_spike_is_set_aside(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, SPIKE)
    settings = {"on_unhealthy": "Rollback"}
    run(document(tmp_path / "whole", dataset, settings))
    with pytest.raises(Stopped, match="step 14"):
        run(document(tmp_path / "cut", dataset, settings), stop_after=14)
    assert final(tmp_path / "cut", 14).exists()
    run(document(tmp_path / "cut", dataset, settings), attempt=2)
    assert (tmp_path / "cut" / "checkpoints" / "refused" / "phase1-00000014").exists()
    assert_same_bits(tmp_path / "whole", tmp_path / "cut")
    assert position(tmp_path / "whole") == position(tmp_path / "cut")


@pytest.mark.parametrize("cut", [5, 15, 19, 21])
def test_a_run_that_is_stopped_and_resumed_leaves_out_the_same(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    spoil(monkeypatch, f"{SPIKE},phase1:6=nan")
    settings = {"on_unhealthy": "Rollback", "on_not_finite": "Skip"}
    run(document(tmp_path / "whole", dataset, settings))
    with pytest.raises(Stopped):
        run(document(tmp_path / "cut", dataset, settings), stop_after=cut)
    run(document(tmp_path / "cut", dataset, settings), attempt=2)
    assert_same_bits(tmp_path / "whole", tmp_path / "cut")
    assert position(tmp_path / "whole") == position(tmp_path / "cut")
    assert [ledger(tmp_path / name) for name in ("whole", "cut")].count(ledger(tmp_path / "whole")) == 2


@pytest.mark.parametrize(
    "behind", ["bert_trainer.training.run_writer.announce_rollbacks", "bert_trainer.training.learner.Learner.restart"]
)
def test_a_run_that_dies_right_after_it_has_recorded_a_rollback_goes_on_as_if_it_had_gone_back(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    spoil(monkeypatch, SPIKE)
    settings = {"on_unhealthy": "Rollback"}
    run(document(tmp_path / "whole", dataset, settings))

    class Killed(Exception):
        pass

    def die(_first: Any, rollbacks: Any = True, *_: Any) -> None:
        if rollbacks:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(behind, die)
        with pytest.raises(Killed):
            run(document(tmp_path / "cut", dataset, settings))
    assert (tmp_path / "cut" / ROLLBACKS_FILE).exists()
    run(document(tmp_path / "cut", dataset, settings), attempt=2)
    assert_same_bits(tmp_path / "whole", tmp_path / "cut")
    assert [it["step"] for it in events(tmp_path / "cut", "rolled_back")] == [9]


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_record_that_is_lost_or_older_is_made_whole(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    spoil(monkeypatch, "phase1:4=nan,phase1:8=nan,phase1:14=nan")
    settings = {"on_unhealthy": "Rollback"}
    run(document(tmp_path / "whole", dataset, settings))
    with pytest.raises(Stopped):
        run(document(tmp_path / "cut", dataset, settings), stop_after=13)
    record = tmp_path / "cut" / ROLLBACKS_FILE
    written = json.loads(record.read_text())["rollbacks"]
    assert [it["first_step"] for it in written] == [4, 8]
    if is_lost:
        record.unlink()
    else:
        record.write_text(json.dumps({"rollbacks": written[:1]}))
    run(document(tmp_path / "cut", dataset, settings), attempt=2)
    assert_same_bits(tmp_path / "whole", tmp_path / "cut")
    assert position(tmp_path / "whole") == position(tmp_path / "cut")
    assert record.read_text() == (tmp_path / "whole" / ROLLBACKS_FILE).read_text()
    assert [it["first_step"] for it in events(tmp_path / "cut", "rolled_back")] == [4, 8, 14]


@pytest.mark.parametrize("policy", ["Skip", "Rollback", "Stop"])
def test_ranks_that_disagree_end_before_anything_is_saved(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """A bit that changes in the memory of one rank, behind the sum of the gradients."""
    healthy, odd = Optimizer.step, []

    def step(self: Optimizer, *arguments: Any, **named: Any) -> Any:
        if self in odd and self.num_applied == 7:
            self.gradients[0] = float("nan")
        return healthy(self, *arguments, **named)

    monkeypatch.setattr(Optimizer, "step", step)
    settings = document(tmp_path, dataset, {"on_unhealthy": policy}, world={"ranks": 2, "hosts": 1})
    # One checkpoint is due right behind the step.
    settings["checkpoint"]["every_steps"] = 4

    def rank(world: ThreadedWorld) -> None:
        never: Any = SimpleNamespace(received=False, listen=lambda: None)
        session = Session.open(parse_run_config(settings), world, attempt=1)
        if world.rank == 1:
            odd.append(session.learner.optimizer)
        run_stages(session, never)

    with pytest.raises(RanksDisagree) as raised:
        run_threads(2, rank)
    assert raised.value.exit_code == 4
    assert [it["step"] for it in events(tmp_path, "checkpoint")] == [4]
    assert events(tmp_path, "rolled_back") == []


def test_rollbacks_without_a_new_checkpoint_are_counted(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "phase1:4=nan,phase1:7=nan,phase1:8=nan,phase1:9=nan")
    settings = {"on_unhealthy": "Rollback", "max_rollbacks": 2}
    with pytest.raises(TrainingUnhealthy, match="step 9 .*; 2 rollbacks in a row have led to no new checkpoint"):
        run(document(tmp_path, dataset, settings))
    # The rollback of step 4, to another checkpoint, counts no more.
    assert [it["step"] for it in events(tmp_path, "rolled_back")] == [3, 6, 6]
    # The next attempt finds what it had, and the same.
    with pytest.raises(TrainingUnhealthy, match="2 rollbacks in a row"):
        run(document(tmp_path, dataset, settings), attempt=2)


def test_days_of_training_are_not_thrown_away_for_want_of_an_older_checkpoint(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, SPIKE)
    checkpoint = {"every_steps": 100, "keep": 1}
    settings = document(tmp_path, dataset, {"on_unhealthy": "Rollback"}, checkpoint=checkpoint)
    with pytest.raises(Stopped):
        run(settings, stop_after=13)  # in the spike, and the only one
    for attempt in (2, 3):
        with pytest.raises(TrainingUnhealthy, match="no checkpoint from before that is left"):
            run(settings, attempt=attempt)
        assert final(tmp_path, 13).exists()


def test_a_damaged_record_of_rollbacks_is_not_passed_over(tmp_path: Path, dataset: Path) -> None:
    run(document(tmp_path, dataset, None, stages=[pretrain_stage(length={"steps": 3})]))
    (tmp_path / ROLLBACKS_FILE).write_text('{"rollbacks": [{"stage": "phase1"}]}')
    with pytest.raises(TrainerError, match="not a record of rollbacks"):
        Session.open(parse_run_config(document(tmp_path, dataset, None, stages=[pretrain_stage(length={"steps": 3})])),
                     SingleRank(), attempt=2)  # fmt: skip


@pytest.mark.parametrize("partitioning", ["none", "zero1"])
def test_any_number_of_ranks_judges_alike(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, partitioning: str
) -> None:
    spoil(monkeypatch, f"{SPIKE},phase1:6={2.0**20}")
    for ranks in (1, 3):
        settings = document(
            tmp_path / str(ranks),
            dataset,
            {"on_unhealthy": "Rollback", "on_gradient_norm": "Skip"},
            world={"ranks": ranks, "hosts": 1},
            precision="fp64",
            optimizer={"partitioning": partitioning},
        )

        def rank(world: ThreadedWorld, settings: dict[str, Any] = settings) -> None:
            never: Any = SimpleNamespace(received=False, listen=lambda: None)
            run_stages(Session.open(parse_run_config(settings), world, attempt=1), never)

        run_threads(ranks, rank)
    one, three = (load_file(final(tmp_path / name) / "model.safetensors") for name in ("1", "3"))
    assert max(float((one[name] - three[name]).abs().max()) for name in one) < 1e-10
    texts = [{step: {**entry, "why": ""} for step, entry in ledger(tmp_path / name).items()} for name in ("1", "3")]
    assert [{step: entry.get("left_out") for step, entry in it.items()} for it in texts][0] == {
        step: entry.get("left_out") for step, entry in texts[1].items()
    }
    assert {step for step, entry in texts[1].items() if "skipped" in entry} == {6}
    assert {step for step, entry in texts[1].items() if "left_out" in entry} == set(range(12, 17))


def test_evaluations_behind_the_checkpoint_count_no_more() -> None:
    def evaluated(step: int, accuracy: float) -> dict[str, Any]:
        return {"event": "evaluated", "stage": "phase1", "step": step, "mlm_accuracy": accuracy}

    records = [evaluated(5, 0.1), evaluated(10, 0.9), {"event": "rolled_back", "stage": "phase1", "step": 7}]
    assert accuracies_by_step(records, "phase1") == {5: 0.1}
    assert accuracies_by_step([*records, evaluated(10, 0.2)], "phase1") == {5: 0.1, 10: 0.2}
    other = {"event": "rolled_back", "stage": "phase2", "step": 0}
    assert accuracies_by_step([*records[:2], other], "phase1") == {5: 0.1, 10: 0.9}


def test_the_report_keeps_the_step_that_a_run_went_back_to() -> None:
    def trained(*steps: int, attempt: int) -> list[dict[str, Any]]:
        return [{"event": "progress", "stage": "phase1", "step": step, "attempt": attempt} for step in steps]

    back = {"event": "rolled_back", "stage": "phase1", "step": 3}
    found = list_by_step([*trained(1, 2, 3, 4, 5, attempt=1), back, *trained(4, attempt=2)], "phase1")
    assert [(it["step"], it["attempt"]) for it in found] == [(1, 1), (2, 1), (3, 1), (4, 2)]
