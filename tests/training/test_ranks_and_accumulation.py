"""The same training, whatever the number of ranks and micro-batches.

Inputs: the toy data set, fp64, dropout 0.1, mask counts that differ between rows. Outputs: final weights and
the ledger of samples. Ranks are threads here and in two tests real processes, joined by each library.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bert_trainer.checkpoints.store import CheckpointStore
from bert_trainer.config.checks import parse_run_config
from bert_trainer.parallel.row_balancing import rank_slice
from bert_trainer.training.data_loader import num_micro_batches
from bert_trainer.training.run import run_stages
from bert_trainer.training.session import Session
from threaded_world import ThreadedWorld, run_threads
from tiny_run import COLLECTIVES, pretrain_stage, run_document, run_trainer, write_dataset

GLOBAL_BATCH = 17  # a prime: no number of ranks or micro-batches divides it
TOLERANCE = 1e-10


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


def document(folder: Path, dataset: Path, *, ranks: int, micro_batch_size: int, **stage: Any) -> dict[str, Any]:
    return run_document(
        folder,
        dataset,
        world={"ranks": ranks, "hosts": 1},
        precision="fp64",
        stages=[pretrain_stage(global_batch_size=GLOBAL_BATCH, micro_batch_size=micro_batch_size, **stage)],
        logging={"every_steps": 1, "tensorboard": False, "sample_ledger": True},
    )


def train_in_threads(folder: Path, dataset: Path, *, ranks: int, micro_batch_size: int, **stage: Any) -> None:
    config = parse_run_config(document(folder, dataset, ranks=ranks, micro_batch_size=micro_batch_size, **stage))

    def rank(world: ThreadedWorld) -> None:
        run_stages(Session.open(config, world, attempt=1), SimpleNamespace(received=False, listen=lambda: None))  # type: ignore[arg-type]

    run_threads(ranks, rank)


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Path:
    """A run of one rank whose batch is one micro-batch: what the others must come to."""
    folder = tmp_path_factory.mktemp("one")
    torch.set_num_threads(1)  # fixtures of a module run before the one that sets it for tests
    train_in_threads(folder, dataset, ranks=1, micro_batch_size=GLOBAL_BATCH)
    return folder


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / "phase1-00000006" / "model.safetensors")


def worst_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def ledger(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("ranks", "micro_batch_size"), [(1, 3), (1, 5), (2, 17), (2, 4), (3, 2), (7, 17), (7, 2)])
def test_any_split_of_the_batch_gives_the_same_weights(
    tmp_path: Path, dataset: Path, one_rank: Path, ranks: int, micro_batch_size: int
) -> None:
    train_in_threads(tmp_path, dataset, ranks=ranks, micro_batch_size=micro_batch_size)
    assert worst_difference(final_weights(one_rank), final_weights(tmp_path)) < TOLERANCE
    assert ledger(one_rank) == ledger(tmp_path)


def test_a_mean_of_micro_batch_means_does_depend_on_the_split(tmp_path: Path, dataset: Path) -> None:
    train_in_threads(
        tmp_path / "one", dataset, ranks=1, micro_batch_size=GLOBAL_BATCH, loss_normalization="microBatchMean"
    )
    train_in_threads(tmp_path / "split", dataset, ranks=2, micro_batch_size=4, loss_normalization="microBatchMean")
    assert worst_difference(final_weights(tmp_path / "one"), final_weights(tmp_path / "split")) > 1e-6


@pytest.mark.parametrize("collectives", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_real_ranks_give_the_weights_of_one(
    tmp_path: Path, dataset: Path, one_rank: Path, ranks: int, collectives: str
) -> None:
    settings = document(tmp_path / "many", dataset, ranks=ranks, micro_batch_size=3)
    # Two ranks of torch under torchrun, three under mpirun: no launcher may matter.
    by_torchrun = collectives == "torch" and ranks == 2
    finished = run_trainer({**settings, "collectives": collectives}, tmp_path / "many.json", by_torchrun=by_torchrun)
    assert finished.returncode == 0, finished.stderr
    assert worst_difference(final_weights(one_rank), final_weights(tmp_path / "many")) < TOLERANCE
    assert ledger(one_rank) == ledger(tmp_path / "many")


@pytest.mark.parametrize("collectives", COLLECTIVES)
@pytest.mark.long
def test_three_ranks_repeat_bit_for_bit(tmp_path: Path, dataset: Path, collectives: str) -> None:
    for name in ("first", "second"):
        run = document(tmp_path / name, dataset, ranks=3, micro_batch_size=3)
        finished = run_trainer({**run, "precision": "fp32", "collectives": collectives}, tmp_path / f"{name}.json")
        assert finished.returncode == 0, finished.stderr
    first, second = final_weights(tmp_path / "first"), final_weights(tmp_path / "second")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_rank_slices_cover_the_batch_once_and_differ_by_at_most_one() -> None:
    for size in range(1, 9):
        slices = [rank_slice(GLOBAL_BATCH, rank, size) for rank in range(size)]
        rows = [row for start, stop in slices for row in range(start, stop)]
        lengths = {stop - start for start, stop in slices}
        assert rows == list(range(GLOBAL_BATCH))
        assert max(lengths) - min(lengths) <= 1


def test_micro_batches_are_counted_over_all_ranks() -> None:
    # 17 rows on 7 ranks: three ranks hold 3 rows, four hold 2.
    assert num_micro_batches(17, 2, 7) == 3 * 2 + 4 * 1


def test_only_rank_0_holds_the_output_folder(tmp_path: Path, dataset: Path) -> None:
    config = parse_run_config(document(tmp_path / "out", dataset, ranks=2, micro_batch_size=4))

    def writes(world: ThreadedWorld) -> bool:
        session = Session.open(config, world, attempt=1)
        session.close()
        return isinstance(getattr(session.writer, "store", None), CheckpointStore)

    assert run_threads(2, writes) == [True, False]
