"""A run that the release before began goes on in this one, as it would have gone on there.

Inputs: the output folder of a run of that release (two phases, dropout 0.1, AdamW) as a kill left it, and the losses
that the release itself went on to. Nothing is mocked.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bert_trainer.output.metrics import read_metrics
from kept_release import release_before
from tiny_run import run_trainer


def test_a_run_of_the_release_before_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    kept = release_before()
    shutil.copytree(kept.run, folder)
    document = json.loads((folder / "run-config.json").read_text())
    document |= {"output_folder": str(folder), "dataset": {**document["dataset"], "folder": str(folder / "data")}}
    done = run_trainer(document, tmp_path / "run-config.json", BERT_ATTEMPT="2")
    assert done.returncode == 0, done.stderr
    losses = [(entry["stage"], entry["step"], entry["loss"]) for entry in read_metrics(folder) if "loss" in entry]
    wanted = [row for row in json.loads(kept.losses.read_text()) if row[:2] > ["phase1", 6]]
    assert [list(row[:2]) for row in losses] == [row[:2] for row in wanted]
    # Another processor rounds otherwise; a moment or a sample order that got lost would show in the second digit.
    assert [row[2] for row in losses] == pytest.approx([row[2] for row in wanted], rel=2e-3)
