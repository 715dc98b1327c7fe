"""Two real ranks skip the same updates, and a run that is killed comes to the weights of one that is not.

The loss is spoilt by what Python imports at its start (``unhealthy_steps``), as it can be in pods.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tiny_run import (
    ROOT,
    environment,
    pretrain_stage,
    run_document,
    run_trainer,
    trainer_command,
    write_dataset,
)
from unhealthy_steps import environment_of

STEPS = 24
SPOILT = "phase1:8=nan," + ",".join(f"phase1:{step}=30" for step in range(13, 18))


def document(folder: Path, dataset: Path) -> dict[str, Any]:
    return run_document(
        folder,
        dataset,
        world={"ranks": 2, "hosts": 1},
        collectives="torch",
        optimizer={"partitioning": "zero1"},
        stages=[pretrain_stage(length={"steps": STEPS})],
        checkpoint={"every_steps": 3, "keep": 9},
        logging={"every_steps": 1, "tensorboard": False, "sample_ledger": True},
        health={"on_unhealthy": "Skip", "loss_steps": 2, "window_steps": 16},
    )


def kill_at(settings: dict[str, Any], config_file: Path, wanted: str, variables: dict[str, str]) -> None:
    """Start a run in a session of its own and kill all of it at the first line that holds ``wanted``."""
    process = subprocess.Popen(
        trainer_command(settings, config_file),
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    seen = []
    try:
        for line in process.stdout:
            seen.append(line)
            if wanted in line:
                return
        raise AssertionError(f"the run ended without {wanted!r}:\n{''.join(seen)}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait(timeout=30)


@pytest.mark.ranks
def test_ranks_that_are_killed_in_a_spike_come_to_the_same_bits(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    variables = environment_of(tmp_path / "hook", SPOILT, path=f"{ROOT}/trainer")
    whole = document(tmp_path / "whole", dataset)
    finished = run_trainer(whole, tmp_path / "whole.json", **variables)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("event=unhealthy") == 2

    cut = document(tmp_path / "cut", dataset)
    kill_at(cut, tmp_path / "cut.json", "finding=loss", variables)
    resumed = run_trainer(cut, tmp_path / "cut.json", BERT_ATTEMPT="2", **variables)
    assert resumed.returncode == 0, resumed.stderr

    last = f"checkpoints/phase1-{STEPS:08d}"
    for name in ("model.safetensors", "optimizer.safetensors"):
        first, second = load_file(tmp_path / "whole" / last / name), load_file(tmp_path / "cut" / last / name)
        assert [key for key in first if not torch.equal(first[key], second[key])] == []
    manifests = [json.loads((tmp_path / name / last / "manifest.json").read_text()) for name in ("whole", "cut")]
    assert manifests[0]["position"] == manifests[1]["position"]
    assert manifests[0]["health"] == manifests[1]["health"]
    assert manifests[0]["position"]["num_applied"] == STEPS - 5
