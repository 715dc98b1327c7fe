"""An optimizer whose state is split over ranks trains as one that is whole, and its checkpoints are the same.

Inputs: the toy data set, dropout 0.1, buckets of two rows so that every rank has parts of many. Ranks are threads
that add in the order of ranks, and in one test real Horovod processes. Observed: checkpoints and metrics.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import Stopped
from bert_trainer.parallel import zero1
from bert_trainer.parallel.world import PeerFailed, World
from bert_trainer.training.loop import run_stages
from bert_trainer.training.session import Session
from in_process import progress_records
from threaded_world import run_threads
from tiny_run import pretrain_stage, run_document, run_trainer, write_dataset
from whole_configs import whole_document

STEPS = 6
FINAL = f"phase1-{STEPS:08d}"
HALF = "phase1-00000003"
PARTS = ("model.safetensors", "optimizer.safetensors")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zero1, "BUCKET_ROWS", 2)


def document(folder: Path, dataset: Path, *, ranks: int, partitioning: str, **changes: Any) -> dict[str, Any]:
    settings = {
        "world": {"ranks": ranks, "hosts": 1},
        "optimizer": {"name": "lamb", "partitioning": partitioning},
        "stages": [pretrain_stage(global_batch_size=17, micro_batch_size=3, length={"steps": STEPS})],
        "checkpoint": {"every_steps": 3, "keep": 9},
    }
    return run_document(folder, dataset, **{**settings, **changes})


def train(run: dict[str, Any], *, stopped: bool = False) -> None:
    """Train in threads; ``stopped``: only until the first step would begin."""
    config = parse_run_config(run)

    def rank(world: World) -> None:
        run_stages(Session.open(config, world, attempt=1), SimpleNamespace(received=stopped, listen=lambda: None))  # type: ignore[arg-type]

    run_threads(config.world.ranks, rank)


def state(folder: Path, checkpoint: str = FINAL) -> dict[str, torch.Tensor]:
    """Return weights and moments by name."""
    return {
        name: tensor for part in PARTS for name, tensor in load_file(folder / "checkpoints" / checkpoint / part).items()
    }


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def worst_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_weights_and_moments_are_those_of_the_whole_optimizer_to_the_bit(
    tmp_path: Path, dataset: Path, ranks: int, name: str
) -> None:
    for partitioning in ("none", "zero1"):
        optimizer = {"name": name, "partitioning": partitioning}
        train(document(tmp_path / partitioning, dataset, ranks=ranks, partitioning=partitioning, optimizer=optimizer))
    assert_equal(state(tmp_path / "none"), state(tmp_path / "zero1"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, "zero1"), (2, "none")),
        ((2, "none"), (2, "zero1")),
        ((3, "zero1"), (2, "zero1")),
        ((2, "zero1"), (1, "none")),
    ],
    ids=["split then whole", "whole then split", "three ranks then two", "two ranks then one"],
)
def test_a_run_goes_on_with_another_partitioning_or_number_of_ranks(
    tmp_path: Path, dataset: Path, before: tuple[int, str], after: tuple[int, str]
) -> None:
    def run(folder: str, ranks: int, partitioning: str) -> None:
        train(document(tmp_path / folder, dataset, ranks=ranks, partitioning=partitioning, precision="fp64"))

    run("whole", 1, "none")
    run("parts", *before)
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / FINAL)
    (tmp_path / "parts" / "run.json").unlink()
    run("parts", *after)
    assert worst_difference(state(tmp_path / "whole", HALF), state(tmp_path / "parts", HALF)) < 1e-10
    assert worst_difference(state(tmp_path / "whole"), state(tmp_path / "parts")) < 1e-10


def test_resumed_as_it_was_the_run_is_the_uninterrupted_one_to_the_bit(tmp_path: Path, dataset: Path) -> None:
    for folder in ("whole", "parts"):
        train(document(tmp_path / folder, dataset, ranks=3, partitioning="zero1"))
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / FINAL)
    (tmp_path / "parts" / "run.json").unlink()
    train(document(tmp_path / "parts", dataset, ranks=3, partitioning="zero1"))
    assert_equal(state(tmp_path / "whole"), state(tmp_path / "parts"))


def test_a_second_run_takes_over_weights_and_moments(tmp_path: Path, dataset: Path) -> None:
    train(document(tmp_path / "first", dataset, ranks=1, partitioning="none"))
    start = {"path": str(tmp_path / "first"), "load": "weights_and_optimizer"}
    for partitioning in ("none", "zero1"):
        run = document(tmp_path / partitioning, dataset, ranks=2, partitioning=partitioning)
        train(whole_document({**run, "initial_checkpoint": start}))
    assert_equal(state(tmp_path / "none"), state(tmp_path / "zero1"))


def test_a_graceful_stop_and_the_clock_write_whole_checkpoints(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((Stopped, PeerFailed)):  # whichever rank is heard first
        train(document(tmp_path / "stopped", dataset, ranks=2, partitioning="zero1"), stopped=True)
    assert len(state(tmp_path / "stopped", "phase1-00000000")) > 0
    monkeypatch.setattr("bert_trainer.training.loop._save_interval_is_over", lambda *_: True)
    by_clock = document(
        tmp_path / "clock", dataset, ranks=2, partitioning="zero1", checkpoint={"every_seconds": 60, "keep": 9}
    )
    train(by_clock)
    train(document(tmp_path / "steps", dataset, ranks=2, partitioning="zero1"))
    assert len(list((tmp_path / "clock" / "checkpoints").iterdir())) == STEPS
    assert_equal(state(tmp_path / "clock", HALF), state(tmp_path / "steps", HALF))


def test_every_rank_holds_about_its_share_of_the_state(tmp_path: Path, dataset: Path) -> None:
    held = {}
    for partitioning in ("none", "zero1"):
        train(document(tmp_path / partitioning, dataset, ranks=2, partitioning=partitioning))
        record = progress_records(tmp_path / partitioning)[-1]
        held[partitioning] = record["optimizer_state_bytes"]
        assert record["memory_bytes"] > held[partitioning]
    assert 0.5 <= held["zero1"] / held["none"] < 0.55


@pytest.fixture(scope="module")
def horovod_run(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Callable[[str, str], Path]:
    """Return ``run(partitioning, compression)``: the folder of a run of two Horovod processes, trained once."""

    @cache
    def run(partitioning: str, compression: str) -> Path:
        folder = tmp_path_factory.mktemp("horovod")
        settings = document(folder / "out", dataset, ranks=2, partitioning=partitioning)
        compressed = whole_document({**settings, "reduction": {"compression": compression}})
        finished = run_trainer(compressed, folder / "run.json")
        assert finished.returncode == 0, finished.stderr
        return folder / "out"

    return run


@pytest.mark.horovod
def test_two_horovod_processes_train_to_the_same_bits(horovod_run: Callable[[str, str], Path]) -> None:
    assert_equal(state(horovod_run("none", "none")), state(horovod_run("zero1", "none")))


@pytest.mark.horovod
def test_fp16_gradients_train_to_nearly_the_same_weights(horovod_run: Callable[[str, str], Path]) -> None:
    folders = {compression: horovod_run("zero1", compression) for compression in ("none", "fp16")}
    exact, rounded = (load_file(folder / "checkpoints" / FINAL / PARTS[0]) for folder in folders.values())
    moved = {name: float((exact[name] - rounded[name]).norm() / exact[name].norm().clamp(min=1e-3)) for name in exact}
    assert 0 < max(moved.values()) < 1e-2
    reduced = {name: progress_records(folder)[-1]["reduction_bytes"] for name, folder in folders.items()}
    assert reduced["fp16"] * 2 == reduced["none"]
