"""A stop that comes while a checkpoint is being written: it is finished, and the run goes on from its own bit-equal.

Inputs: the toy data set and a trainer in a process of its own, whose first write to a checkpoint is held until this
test says a word on its standard input. Nothing else of it is replaced.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bert_trainer.checkpoints.checkpoint import read_checkpoint
from bert_trainer.config.checks import parse_run_config
from bert_trainer.training.run import train
from tiny_run import environment, pretrain_stage, run_document, write_dataset

HELD = """
import sys
from bert_trainer import __main__
from bert_trainer.checkpoints import checkpoint

write, calls = checkpoint.save_file, []

def save_file(*arguments, **options):
    write(*arguments, **options)
    calls.append(1)
    if len(calls) == {number}:
        print("held", flush=True)
        sys.stdin.readline()

checkpoint.save_file = save_file
sys.exit(__main__.main())
"""
STEPS = 9
FINAL = f"checkpoints/phase1-{STEPS:08d}"


def document(folder: Path, dataset: Path) -> dict[str, Any]:
    logging = {"every_steps": 1, "tensorboard": False, "sample_ledger": True}
    stages = [pretrain_stage(length={"steps": STEPS})]
    return run_document(folder, dataset, stages=stages, checkpoint={"every_steps": 2, "keep": 9}, logging=logging)


@pytest.mark.parametrize(("number", "has_optimizer"), [(1, False), (2, True)])
def test_a_stop_in_the_middle_of_a_write_costs_no_step_and_no_checkpoint(
    tmp_path: Path, number: int, has_optimizer: bool
) -> None:
    """number: of the files that are written before the write is held: the model's, then the optimizer's."""
    dataset, folder = write_dataset(tmp_path / "dataset"), tmp_path / "out"
    config = tmp_path / "config.json"
    config.write_text(json.dumps(document(folder, dataset)))
    command = [sys.executable, "-c", HELD.format(number=number), "--config", str(config)]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as trainer:
        try:
            assert trainer.stdout is not None
            told = []
            for line in trainer.stdout:
                told.append(line)
                if line == "held\n":
                    break
            (staging,) = (folder / "checkpoints").glob(".phase1-00000002.*")
            assert (staging / "optimizer.safetensors").exists() == has_optimizer
            assert not (staging / "manifest.json").exists(), "in the middle of it"
            trainer.send_signal(signal.SIGTERM)
            rest, _ = trainer.communicate("go on\n", timeout=60)
        finally:
            trainer.kill()
    assert trainer.returncode == 3, "".join(told) + rest
    saved = sorted((folder / "checkpoints").iterdir())
    assert saved[0].name == "phase1-00000002", "the one that was being written"
    assert not any(path.name.startswith(".") for path in saved)
    last = [read_checkpoint(path, with_sums=True) for path in saved][-1].position
    ledger = (folder / "ledger.jsonl").read_text().splitlines()
    assert last.step == len(ledger) < STEPS, "of the step at which it has stopped"

    # The same attempt, as after a preemption.
    train(parse_run_config(document(folder, dataset)), attempt=1)
    train(parse_run_config(document(tmp_path / "whole", dataset)), attempt=1)
    one, other = ({**load_file(it / FINAL / "model.safetensors"), **load_file(it / FINAL / "optimizer.safetensors")}
                  for it in (folder, tmp_path / "whole"))  # fmt: skip
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert (folder / "ledger.jsonl").read_text() == (tmp_path / "whole" / "ledger.jsonl").read_text()
