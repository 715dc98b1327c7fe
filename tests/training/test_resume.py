"""A run that dies goes on as if nothing had happened.

Inputs: the toy data set, two phases, dropout 0.1, checkpoints every 3 steps. Observed: the final weights, the
ledger of samples, the messages. Nothing is mocked: real processes get real signals, at moments drawn from a
seed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bert_trainer.config.checks import parse_run_config
from bert_trainer.output.metrics import read_metrics
from bert_trainer.training.run import train
from tiny_run import (
    environment,
    pretrain_stage,
    run_document,
    run_trainer,
    trainer_command,
    write_dataset,
)

SAMPLES = 110
STEPS = 25
FINAL = f"checkpoints/phase2-{STEPS:08d}"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


def two_phases(folder: Path, dataset: Path, *, ranks: int = 1, **changes: Any) -> dict[str, Any]:
    """11 rows a step: an epoch of 110 samples ends with step 10 and with step 20 of each phase."""
    stages = [
        pretrain_stage(name, global_batch_size=11, micro_batch_size=4, length={"steps": STEPS})
        for name in ("phase1", "phase2")
    ]
    settings = {
        "world": {"ranks": ranks, "hosts": 1},
        "stages": stages,
        "checkpoint": {"every_steps": 3, "keep": 2},
        "logging": {"every_steps": 1, "tensorboard": False, "sample_ledger": True},
    }
    return run_document(folder, dataset, **{**settings, **changes})


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "model.safetensors")


def assert_bit_identical(one: Path, other: Path) -> None:
    for name in ("model.safetensors", "optimizer.safetensors"):
        first, second = load_file(one / name), load_file(other / name)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)


@contextlib.contextmanager
def started(document: dict[str, Any], config_file: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Start a run in a session of its own; nothing of it is left afterwards."""
    command = trainer_command(document, config_file)
    process = subprocess.Popen(
        command,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()
        process.wait(timeout=30)


def wait_for_line(process: subprocess.Popen[str], wanted: str) -> str:
    """Read the run's output up to a line that holds ``wanted``."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if wanted in line:
            return line
    raise AssertionError(f"the run ended without {wanted!r}:\n{''.join(seen)}")


def stage_ledger(folder: Path, stage: str) -> list[list[int]]:
    """Return the samples of every step; a step that was trained again counts once, the last time."""
    entries = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    by_step = {entry["step"]: entry["samples"] for entry in entries if entry["stage"] == stage}
    assert sorted(by_step) == list(range(STEPS))
    return [by_step[step] for step in range(STEPS)]


def assert_no_sample_lost_or_doubled(folder: Path) -> None:
    for stage in ("phase1", "phase2"):
        order = [sample for step in stage_ledger(folder, stage) for sample in step]
        for first in range(0, len(order), SAMPLES):
            epoch = order[first : first + SAMPLES]
            assert len(set(epoch)) == len(epoch)
            if len(epoch) == SAMPLES:
                assert set(epoch) == set(range(SAMPLES))


@pytest.mark.horovod
@pytest.mark.long
@pytest.mark.timeout(180)
def test_killed_three_times_at_random_moments_the_weights_are_bit_identical(tmp_path: Path, dataset: Path) -> None:
    whole = two_phases(tmp_path / "whole", dataset, ranks=2)
    assert run_trainer(whole, tmp_path / "whole.json").returncode == 0

    rng = random.Random(20260101)
    killed = two_phases(tmp_path / "killed", dataset, ranks=2)
    moments = sorted(rng.sample(range(2, 2 * STEPS - 1), 3))
    for attempt, moment in enumerate(moments, start=1):
        stage, step = f"phase{1 + moment // STEPS}", moment % STEPS + 1
        with started(killed, tmp_path / "killed.json", BERT_ATTEMPT=str(attempt)) as process:
            wait_for_line(process, f"event=progress stage={stage} step={step} ")
            os.killpg(process.pid, signal.SIGKILL)
    last = run_trainer(killed, tmp_path / "killed.json", BERT_ATTEMPT="4")
    assert last.returncode == 0, last.stderr
    assert 'message="Resumed, bit-identical"' in last.stdout
    assert_bit_identical(tmp_path / "whole" / FINAL, tmp_path / "killed" / FINAL)
    assert_no_sample_lost_or_doubled(tmp_path / "killed")
    assert stage_ledger(tmp_path / "whole", "phase2") == stage_ledger(tmp_path / "killed", "phase2")


def keep_checkpoints_up_to(source: Path, target: Path, name: str) -> None:
    """Copy a run's folder as it was when ``name`` was its newest checkpoint."""
    shutil.copytree(source, target)
    (target / "run.json").unlink()
    for checkpoint in (target / "checkpoints").iterdir():
        if checkpoint.name > name:
            shutil.rmtree(checkpoint)


@pytest.mark.parametrize(
    "newest",
    [
        pytest.param("phase1-00000007", id="within-an-epoch"),
        pytest.param("phase1-00000010", id="at-the-end-of-an-epoch"),
        pytest.param("phase1-00000025", id="between-the-phases"),
        pytest.param("phase2-00000001", id="after-the-first-step-of-phase-2"),
        pytest.param("phase2-00000024", id="before-the-last-step"),
    ],
)
def test_resumed_at_any_boundary_the_weights_are_bit_identical(
    tmp_path: Path, whole_run: Path, dataset: Path, newest: str
) -> None:
    folder = tmp_path / "resumed"
    keep_checkpoints_up_to(whole_run, folder, newest)
    every_step = {"every_steps": 1, "keep": 100}
    train(parse_run_config(two_phases(folder, dataset, checkpoint=every_step)), attempt=2)
    resumed = [record for record in read_metrics(folder) if record["event"] == "resumed"]
    assert [f"{record['stage']}-{record['step']:08d}" for record in resumed] == [newest]
    assert_bit_identical(whole_run / FINAL, folder / FINAL)
    assert_no_sample_lost_or_doubled(folder)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Path:
    """A run that kept a checkpoint of every step, with one thread, as the tests that compare with it."""
    folder = tmp_path_factory.mktemp("whole")
    torch.set_num_threads(1)
    train(parse_run_config(two_phases(folder, dataset, checkpoint={"every_steps": 1, "keep": 100})), attempt=1)
    return folder


@pytest.mark.ranks
def test_another_number_of_ranks_and_another_library_see_the_same_samples_and_say_so(
    tmp_path: Path, whole_run: Path, dataset: Path
) -> None:
    folder = tmp_path / "resumed"
    keep_checkpoints_up_to(whole_run, folder, "phase1-00000012")
    document = {**two_phases(folder, dataset, ranks=2), "collectives": "torch"}
    resumed = run_trainer(document, tmp_path / "resumed.json", BERT_ATTEMPT="2")
    assert resumed.returncode == 0, resumed.stderr
    assert re.search(r'message="Resumed, not bit-identical: .*world_size 1 -> 2', resumed.stdout)
    assert "collectives horovod -> torch" in resumed.stdout
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    for stage in ("phase1", "phase2"):
        assert stage_ledger(folder, stage) == stage_ledger(whole_run, stage)
    one, two = weights(whole_run / FINAL), weights(folder / FINAL)
    # fp32 sums in another order: 38 steps at a rate of at most 1e-3 keep weights of about 0.02 this close.
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-4


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.horovod)])
def test_a_graceful_stop_leaves_a_checkpoint_of_exactly_the_agreed_step(
    tmp_path: Path, dataset: Path, ranks: int
) -> None:
    document = two_phases(tmp_path / "out", dataset, ranks=ranks, checkpoint={"keep": 3})
    document["stages"] = [{**document["stages"][0], "length": {"steps": 100000}}]
    record = tmp_path / "termination.json"
    with started(document, tmp_path / "run.json", BERT_TERMINATION_LOG=str(record)) as process:
        wait_for_line(process, "event=progress stage=phase1 step=5 ")
        process.send_signal(signal.SIGUSR1)
        line = wait_for_line(process, "event=stopped")
        assert process.wait(timeout=30) == 3
    match = re.search(r"step=(\d+)", line)
    assert match is not None
    step = int(match[1])
    assert step >= 5
    assert (tmp_path / "out" / "checkpoints" / f"phase1-{step:08d}" / "manifest.json").exists()
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()] == [f"phase1-{step:08d}"]
    assert json.loads(record.read_text())["exitCode"] == 3
    ledger = (tmp_path / "out" / "ledger.jsonl").read_text().splitlines()
    assert len(ledger) == step


def test_a_finished_run_is_not_trained_again(tmp_path: Path, whole_run: Path, dataset: Path) -> None:
    folder = tmp_path / "again"
    keep_checkpoints_up_to(whole_run, folder, "phase2-00000025")
    before = (folder / "ledger.jsonl").read_text()
    train(parse_run_config(two_phases(folder, dataset)), attempt=2)
    assert (folder / "ledger.jsonl").read_text() == before
    assert json.loads((folder / "report.json").read_text())["stages"][1]["steps"] == STEPS


def test_the_moments_are_kept_into_phase_2_unless_told_otherwise(
    tmp_path: Path, whole_run: Path, dataset: Path
) -> None:
    document = two_phases(tmp_path / "reset", dataset)
    document["stages"][1] = {**document["stages"][1], "optimizer_state": "reset"}
    document["stages"][1]["length"] = {"steps": 1}
    document["stages"][1] |= {"learning_rate": 1e-3, "warmup": {"steps": 0}, "decay": "constant"}
    train(parse_run_config(document), attempt=1)
    first_phase = tmp_path / "reset" / "checkpoints" / "phase1-00000025"
    assert_bit_identical(first_phase, whole_run / "checkpoints" / "phase1-00000025")
    reset = load_file(tmp_path / "reset" / "checkpoints" / "phase2-00000001" / "optimizer.safetensors")
    kept = load_file(whole_run / "checkpoints" / "phase2-00000001" / "optimizer.safetensors")
    name = "second_moment.layers.0.ffn_in.weight"
    # After one step from zero, v = (1 - beta2) g^2; warm moments are much larger.
    assert float(kept[name].mean()) > 5 * float(reset[name].mean())


def counted_on(folder: Path, dataset: Path) -> dict[str, Any]:
    every_step = {"every_steps": 1, "keep": 100}
    document = two_phases(folder, dataset, optimizer={"name": "adamw"}, checkpoint=every_step)
    document["stages"][1]["optimizer_state"] = "keepWithStepCount"
    return document


@pytest.fixture(scope="module")
def counted_run(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Path:
    """A run whose second phase goes on with AdamW's step count."""
    folder = tmp_path_factory.mktemp("counted")
    torch.set_num_threads(1)
    train(parse_run_config(counted_on(folder, dataset)), attempt=1)
    return folder


@pytest.mark.parametrize("newest", ["phase1-00000025", "phase2-00000012"])
def test_a_step_count_that_goes_on_survives_a_kill(
    tmp_path: Path, counted_run: Path, dataset: Path, newest: str
) -> None:
    keep_checkpoints_up_to(counted_run, tmp_path / "resumed", newest)
    train(parse_run_config(counted_on(tmp_path / "resumed", dataset)), attempt=2)
    assert_bit_identical(counted_run / FINAL, tmp_path / "resumed" / FINAL)
    held = [
        json.loads((counted_run / "checkpoints" / name / "manifest.json").read_text())["position"]
        for name in ("phase1-00000025", "phase2-00000001", FINAL.rpartition("/")[2])
    ]
    assert [position.get("moment_steps") for position in held] == [None, STEPS + 1, 2 * STEPS]
