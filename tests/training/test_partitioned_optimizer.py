"""An optimizer whose state is split over ranks trains as one that is whole, and its checkpoints are the same.

Inputs: the toy data set, dropout 0.1, buckets of two rows so that every rank has parts of many. Ranks are threads
that add in the order of ranks, and in some tests real processes. Observed: checkpoints and metrics.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import Stopped
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel import zero1
from bert_trainer.parallel.world import PeerFailed, World
from bert_trainer.training.run import run_stages
from bert_trainer.training.session import Session
from in_process import progress_records
from threaded_world import run_threads
from tiny_run import COLLECTIVES, PREDICTIONS, pretrain_stage, run_document, run_trainer, write_dataset
from whole_configs import whole_document

STEPS = 6
FINAL = f"phase1-{STEPS:08d}"
HALF = "phase1-00000003"
PARTS = ("model.safetensors", "optimizer.safetensors")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture(scope="module", autouse=True)
def small_buckets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero1, "BUCKET_ROWS", 2)
        yield


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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Callable[..., Path]:
    """Return ``trained(ranks, partitioning)``: the folder of such a run, trained once for all tests; only read it."""

    @cache
    def run(ranks: int, partitioning: str, *, name: str = "lamb", precision: str = "fp32") -> Path:
        folder = tmp_path_factory.mktemp("trained")
        optimizer = {"name": name, "partitioning": partitioning}
        settings = {"optimizer": optimizer, "precision": precision}
        train(document(folder, dataset, ranks=ranks, partitioning=partitioning, **settings))
        return folder

    return run


def copy_half(source: Path, target: Path) -> None:
    """Copy a run's folder as it was after half of its steps."""
    shutil.copytree(source, target)
    shutil.rmtree(target / "checkpoints" / FINAL)
    (target / "run.json").unlink()


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
    trained: Callable[..., Path], ranks: int, name: str
) -> None:
    assert_equal(state(trained(ranks, "none", name=name)), state(trained(ranks, "zero1", name=name)))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_evaluating_between_steps_changes_no_bit_of_two_ranks_parts(
    tmp_path: Path, dataset: Path, trained: Callable[..., Path], precision: str
) -> None:
    """Every rank evaluates with weights that it has gathered, of which it updates a part."""
    evaluation = {"every_steps": 1, "max_samples": None, "micro_batch_size": 4, "shards": None, "data_range": None}
    stage = pretrain_stage(
        global_batch_size=17,
        micro_batch_size=3,
        length={"steps": STEPS},
        evaluation={**evaluation, "max_predictions_per_sequence": PREDICTIONS},
    )
    train(document(tmp_path / "run", dataset, ranks=2, partitioning="zero1", precision=precision, stages=[stage]))
    steps = [record["step"] for record in read_metrics(tmp_path / "run") if record["event"] == "evaluated"]
    assert steps == list(range(1, STEPS + 1))
    plain = trained(2, "zero1", precision=precision)
    for checkpoint in (HALF, FINAL):
        assert_equal(state(plain, checkpoint), state(tmp_path / "run", checkpoint))


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
    tmp_path: Path, dataset: Path, trained: Callable[..., Path], before: tuple[int, str], after: tuple[int, str]
) -> None:
    whole, parts = trained(1, "none", precision="fp64"), tmp_path / "parts"
    copy_half(trained(*before, precision="fp64"), parts)
    train(document(parts, dataset, ranks=after[0], partitioning=after[1], precision="fp64"))
    assert worst_difference(state(whole, HALF), state(parts, HALF)) < 1e-10
    assert worst_difference(state(whole), state(parts)) < 1e-10


def test_resumed_as_it_was_the_run_is_the_uninterrupted_one_to_the_bit(
    tmp_path: Path, dataset: Path, trained: Callable[..., Path]
) -> None:
    copy_half(trained(3, "zero1"), tmp_path / "parts")
    train(document(tmp_path / "parts", dataset, ranks=3, partitioning="zero1"))
    assert_equal(state(trained(3, "zero1")), state(tmp_path / "parts"))


def test_a_second_run_takes_over_weights_and_moments(
    tmp_path: Path, dataset: Path, trained: Callable[..., Path]
) -> None:
    start = {"path": str(trained(1, "none")), "load": "weightsAndOptimizer"}
    for partitioning in ("none", "zero1"):
        run = document(tmp_path / partitioning, dataset, ranks=2, partitioning=partitioning)
        train(whole_document({**run, "initial_checkpoint": start}))
    assert_equal(state(tmp_path / "none"), state(tmp_path / "zero1"))


def test_a_graceful_stop_and_the_clock_write_whole_checkpoints(
    tmp_path: Path, dataset: Path, trained: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    every_steps = trained(2, "zero1")
    with pytest.raises((Stopped, PeerFailed)):  # whichever rank is heard first
        train(document(tmp_path / "stopped", dataset, ranks=2, partitioning="zero1"), stopped=True)
    assert len(state(tmp_path / "stopped", "phase1-00000000")) > 0
    monkeypatch.setattr("bert_trainer.training.checkpoint_schedule.CheckpointSchedule.interval_is_over", lambda _: True)
    by_clock = document(
        tmp_path / "clock", dataset, ranks=2, partitioning="zero1", checkpoint={"every_seconds": 60, "keep": 9}
    )
    train(by_clock)
    assert len(list((tmp_path / "clock" / "checkpoints").iterdir())) == STEPS
    assert_equal(state(tmp_path / "clock", HALF), state(every_steps, HALF))


def test_every_rank_holds_about_its_share_of_the_state(trained: Callable[..., Path]) -> None:
    held = {}
    for partitioning in ("none", "zero1"):
        record = progress_records(trained(2, partitioning))[-1]
        held[partitioning] = record["optimizer_state_bytes"]
        assert record["memory_bytes"] > held[partitioning]
    assert 0.5 <= held["zero1"] / held["none"] < 0.55


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Callable[[str, str, str], Path]:
    """Return ``run(collectives, partitioning, compression)``: the folder of a run of two real ranks, trained once."""

    @cache
    def run(collectives: str, partitioning: str, compression: str) -> Path:
        folder = tmp_path_factory.mktemp(collectives)
        settings = document(folder / "out", dataset, ranks=2, partitioning=partitioning)
        changes = {"collectives": collectives, "reduction": {"compression": compression}}
        compressed = whole_document({**settings, **changes})
        finished = run_trainer(compressed, folder / "run.json")
        assert finished.returncode == 0, finished.stderr
        return folder / "out"

    return run


@pytest.mark.parametrize("collectives", COLLECTIVES)
@pytest.mark.parametrize("partitioning", ["zero1", pytest.param("none", marks=pytest.mark.long)])
def test_two_real_ranks_train_to_the_same_bits(
    real_run: Callable[[str, str, str], Path], trained: Callable[..., Path], partitioning: str, collectives: str
) -> None:
    # A sum of two gradients has the same bits in any order, so threads may stand for the processes.
    assert_equal(state(trained(2, "none")), state(real_run(collectives, partitioning, "none")))


@pytest.mark.ranks
def test_fp16_gradients_train_to_nearly_the_same_weights(real_run: Callable[[str, str, str], Path]) -> None:
    folders = {compression: real_run("torch", "zero1", compression) for compression in ("none", "fp16")}
    exact, rounded = (load_file(folder / "checkpoints" / FINAL / PARTS[0]) for folder in folders.values())
    moved = {name: float((exact[name] - rounded[name]).norm() / exact[name].norm().clamp(min=1e-3)) for name in exact}
    assert 0 < max(moved.values()) < 1e-2
    reduced = {name: progress_records(folder)[-1]["reduction_bytes"] for name, folder in folders.items()}
    assert reduced["fp16"] * 2 == reduced["none"]
