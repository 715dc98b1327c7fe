"""Of two trainers at one output folder the newer one stays: the other commits nothing more, and says why it ends.

Inputs: the toy data set; the second attempt claims the folder in the middle of the first one, as after a node that was
cut off. Observed: errors, checkpoints, weights. Nothing is replaced.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from at_step import AtStep, StopAt
from bert_job.run_config import RunConfig
from bert_trainer.errors import EXIT_INFRASTRUCTURE, FencedError, Stopped
from bert_trainer.output.metrics import read_metrics
from bert_trainer.output.run_facts import load_run
from bert_trainer.output.run_folder import RunFolder
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.run import run_stages
from bert_trainer.training.session import Session
from cluster_api import wait_until
from tiny_run import pretrain_stage, run_config, write_dataset

LEDGER = "ledger.jsonl"
FINAL = "checkpoints/phase1-00000009/model.safetensors"


def config(folder: Path, dataset: Path, every_steps: int = 2, **logging: Any) -> RunConfig:
    stages = [pretrain_stage(length={"steps": 9})]
    saves = {"every_steps": every_steps, "keep": 9}
    settings = {"every_steps": 1, "tensorboard": False, **logging}
    return run_config(folder, dataset, stages=stages, checkpoint=saves, logging=settings)


def train(folder: Path, dataset: Path, attempt: int, stop: AtStep) -> None:
    run_stages(Session.open(config(folder, dataset), SingleRank(), attempt=attempt), stop)  # type: ignore[arg-type]


def test_an_attempt_that_comes_back_loses_at_its_next_commit(tmp_path: Path) -> None:
    dataset, folder = write_dataset(tmp_path / "dataset"), tmp_path / "out"

    def come_back() -> None:
        """The second attempt claims the folder; from here on the first is the one that was thought dead."""
        # Checkpoints are written in the background: the one before this step may still be on its way.
        wait_until((folder / "checkpoints/phase1-00000004").exists, "the checkpoint of step 4")
        RunFolder.claim(config(folder, dataset), attempt=2)

    with pytest.raises(FencedError, match="claimed by attempt 2 .*this attempt stops") as fenced:
        train(folder, dataset, 1, AtStep(6, come_back))
    assert fenced.value.exit_code == EXIT_INFRASTRUCTURE
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["phase1-00000002", "phase1-00000004"]
    assert [it["reason"] for it in read_metrics(folder) if it["event"] == "failed"] == ["FencedError"]
    with pytest.raises(FencedError, match="attempt 2 has claimed it; this is attempt 1"):
        train(folder, dataset, 1, AtStep(0, come_back))

    train(folder, dataset, 2, AtStep(0, come_back))
    train(tmp_path / "alone", dataset, 1, AtStep(0, come_back))
    one, other = load_file(folder / FINAL), load_file(tmp_path / "alone" / FINAL)
    assert all(torch.equal(one[key], other[key]) for key in one)


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a run but its records of what happened, which anyone may add to."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "metrics.jsonl")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(("suspended_at", "every_steps"), [(5, 2), (5, 99), (9, 99)])
def test_a_run_that_was_suspended_and_goes_on_late_commits_and_deletes_nothing(
    tmp_path: Path, suspended_at: int, every_steps: int
) -> None:
    """The second run of the attempt claims at a step of the first: in the middle, or before the last one."""
    dataset, folder = write_dataset(tmp_path / "dataset"), tmp_path / "out"
    wanted = config(folder, dataset, every_steps, sample_ledger=True)
    session = Session.open(wanted, SingleRank(), attempt=1)
    after_claim: dict[str, bytes] = {}

    def begin_again() -> None:
        session.writer.wait()
        assert RunFolder.claim(wanted, attempt=1).attempt_run == 2
        after_claim.update(contents(folder))

    with pytest.raises(FencedError, match=r"attempt 1, run 2, .*run 1 of the attempt stops") as fenced:
        run_stages(session, AtStep(suspended_at, begin_again))  # type: ignore[arg-type]
    assert fenced.value.exit_code == EXIT_INFRASTRUCTURE
    assert after_claim[LEDGER].count(b"\n") == suspended_at - 1
    assert contents(folder) == after_claim, "no checkpoint, no result, no line of the ledger, and all that was there"


def test_nothing_that_a_late_run_does_outside_of_its_steps_changes_the_folder(tmp_path: Path) -> None:
    dataset, folder = write_dataset(tmp_path / "dataset"), tmp_path / "out"
    train(folder, dataset, 1, AtStep())
    session = Session.open(config(folder, dataset), SingleRank(), attempt=1)
    writer = session.writer
    assert writer.folder.attempt_run == 2
    RunFolder.claim(config(folder, dataset), attempt=1)
    before = contents(folder)
    for act in (
        writer.finish,
        writer.store.remove_all,
        writer.store.remove_leftovers,
        writer.folder.remove_leftovers,
        lambda: writer.store.prune(1),
    ):
        with pytest.raises(FencedError, match=r"attempt 1, run 3, .*run 2 of the attempt stops"):
            act()
    session.close()
    assert contents(folder) == before


def test_runs_of_one_attempt_are_told_apart_in_records_and_report(tmp_path: Path) -> None:
    dataset, folder = write_dataset(tmp_path / "dataset"), tmp_path / "out"
    wanted = config(folder, dataset)
    session = Session.open(wanted, SingleRank(), attempt=1)
    with pytest.raises(Stopped):
        run_stages(session, StopAt(6))  # type: ignore[arg-type]
    train(folder, dataset, 1, AtStep())
    runs = [
        (it["event"], it.get("attempt_run")) for it in read_metrics(folder) if it["event"] in ("stopped", "resumed")
    ]
    assert runs == [("stopped", None), ("resumed", 2)]
    attempts = load_run(folder).attempts
    assert [(it.number, it.run, it.end) for it in attempts] == [(1, 1, "stopped"), (1, 2, "succeeded")]
    report = json.loads((folder / "report.json").read_text())
    assert report["attempts"] == 1
    assert report["seconds"] > max(it.run_s for it in attempts), "of both, not of the longer one"
    assert "1, run 2" in (folder / "report.html").read_text()
