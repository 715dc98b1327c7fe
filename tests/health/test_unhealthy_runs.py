"""What becomes of a run whose steps go wrong: skipped updates, and the same bits however it is cut.

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

from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import RanksDisagree, Stopped, TrainingUnhealthy
from bert_trainer.optim.optimizer import Optimizer
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training import loop
from bert_trainer.training.run import run_stages
from bert_trainer.training.session import Session
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
    assert "health.onUnhealthy: Skip" in str(raised.value)
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
    assert (last["skipped_steps"], last["unhealthy_findings"]) == (2, 2)
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


def test_no_checkpoint_is_written_of_what_is_not_finite(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = loop.take_step

    def take_step(learner: Any, *arguments: Any, **named: Any) -> Any:
        done = healthy(learner, *arguments, **named)
        if learner.optimizer.num_applied == 6:
            learner.optimizer.second_moment[5] = float("inf")
        return done

    with monkeypatch.context() as patched:
        patched.setattr(loop, "take_step", take_step)
        with pytest.raises(TrainingUnhealthy, match="second_moment.* is not finite after step 6"):
            run(document(tmp_path, dataset, {"on_unhealthy": "Skip"}))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["phase1-00000003"]
    run(document(tmp_path, dataset, {"on_unhealthy": "Skip"}), attempt=2)
    assert position(tmp_path)["num_applied"] == STEPS


def test_the_way_back_by_hand_leaves_a_spike_out(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/concepts/training-health.md has it: nothing does it unasked."""
    spoil(monkeypatch, SPIKE)
    with pytest.raises(TrainingUnhealthy, match="the loss of steps 12 to 16 is above"):
        run(document(tmp_path, dataset, {"on_loss": "Stop"}))
    refused = tmp_path / "checkpoints" / "refused"
    refused.mkdir()
    for step in (12, 15):
        final(tmp_path, step).rename(refused / final(tmp_path, step).name)
    changes = {"job": {"name": "tiny", "namespace": "default", "uid": "uid-2"}, "if_exists": "Resume"}
    run(document(tmp_path, dataset, {"on_loss": "Skip", "loss_steps": 1}, **changes))
    (resumed,) = events(tmp_path, "resumed")
    assert resumed["step"] == 9
    assert {step for step, entry in ledger(tmp_path).items() if "skipped" in entry} == {13, 14, 15, 16, 17}


@pytest.mark.parametrize("cut", [5, 15, 19])
def test_a_run_that_is_stopped_and_resumed_skips_the_same(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    spoil(monkeypatch, f"{SPIKE},phase1:6=nan")
    settings = {"on_unhealthy": "Skip", "loss_steps": 2}
    run(document(tmp_path / "whole", dataset, settings))
    with pytest.raises(Stopped):
        run(document(tmp_path / "cut", dataset, settings), stop_after=cut)
    run(document(tmp_path / "cut", dataset, settings), attempt=2)
    assert_same_bits(tmp_path / "whole", tmp_path / "cut")
    assert position(tmp_path / "whole") == position(tmp_path / "cut")
    assert [ledger(tmp_path / name) for name in ("whole", "cut")].count(ledger(tmp_path / "whole")) == 2


@pytest.mark.parametrize("policy", ["Skip", "Stop"])
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


@pytest.mark.parametrize("partitioning", ["none", "zero1"])
def test_any_number_of_ranks_judges_alike(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, partitioning: str
) -> None:
    spoil(monkeypatch, f"{SPIKE},phase1:6={2.0**20}")
    for ranks in (1, 3):
        settings = document(
            tmp_path / str(ranks),
            dataset,
            {"on_unhealthy": "Skip", "loss_steps": 2},
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
    skipped = [{step for step, entry in ledger(tmp_path / name).items() if "skipped" in entry} for name in ("1", "3")]
    assert skipped == [{6, 14, 15, 16, 17}] * 2
