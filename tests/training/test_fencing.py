"""Of two trainers at one output folder the newer one stays: the other commits nothing more, and says why it ends.

Inputs: the toy data set; the second attempt claims the folder in the middle of the first one, as after a node that was
cut off. Observed: errors, checkpoints, weights. Nothing is replaced.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from at_step import AtStep
from bert_trainer.config.run_config import RunConfig
from bert_trainer.errors import EXIT_INFRASTRUCTURE, FencedError
from bert_trainer.output.metrics import read_metrics
from bert_trainer.output.run_folder import RunFolder
from bert_trainer.parallel.world import Alone
from bert_trainer.training.loop import run_stages
from bert_trainer.training.session import Session
from cluster_api import wait_until
from tiny_run import pretrain_stage, run_config, write_dataset

FINAL = "checkpoints/phase1-00000009/model.safetensors"


def config(folder: Path, dataset: Path) -> RunConfig:
    stages = [pretrain_stage(length={"steps": 9})]
    return run_config(folder, dataset, stages=stages, checkpoint={"every_steps": 2, "keep": 9})


def train(folder: Path, dataset: Path, attempt: int, stop: AtStep) -> None:
    run_stages(Session.open(config(folder, dataset), Alone(), attempt=attempt), stop)  # type: ignore[arg-type]


def test_an_attempt_that_comes_back_loses_at_its_next_commit(tmp_path: Path) -> None:
    dataset, folder = write_dataset(tmp_path / "dataset"), tmp_path / "out"

    def come_back() -> None:
        """The second attempt claims the folder; from here on the first is the one that was thought dead."""
        # Checkpoints are written in the background: the one before this step may still be on its way.
        wait_until((folder / "checkpoints/phase1-00000004").exists, 60, "the checkpoint of step 4")
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
