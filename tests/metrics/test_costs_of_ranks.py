"""Every interval says what ranks cost one another: seconds, bytes, imbalance, memory. Ranks are threads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bert_trainer.config.checks import parse_run_config
from bert_trainer.parallel.world import World
from bert_trainer.training.run import run_stages
from bert_trainer.training.session import Session
from in_process import progress_records
from threaded_world import run_threads
from tiny_run import pretrain_stage, run_document, write_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


def records(folder: Path, dataset: Path, *, ranks: int, reduction: dict[str, Any] | None = None, **stage: Any) -> Any:
    stages = [pretrain_stage(**{"global_batch_size": 32, "micro_batch_size": 4, "length": {"steps": 5}, **stage})]
    changes = {"world": {"ranks": ranks, "hosts": 1}, "stages": stages, "reduction": reduction or {}}
    config = parse_run_config(run_document(folder, dataset, **changes))

    def rank(world: World) -> Session:
        session = Session.open(config, world, attempt=1)
        run_stages(session, SimpleNamespace(received=False, listen=lambda: None))  # type: ignore[arg-type]
        return session

    return run_threads(ranks, rank), progress_records(folder)


def test_one_rank_reports_its_memory_and_no_reduction(tmp_path: Path, dataset: Path) -> None:
    [session], found = records(tmp_path, dataset, ranks=1)
    for record in found:
        assert record["optimizer_state_bytes"] == 2 * session.learner.parameters.values.nbytes
        assert record["memory_bytes"] > 10 * record["optimizer_state_bytes"]
        assert not [key for key in record if key.startswith("reduction")]
        assert not [key for key in record if "token_imbalance" in key or "rank" in key]


@pytest.mark.parametrize(("compression", "share"), [("none", 1), ("fp16", 0.5)])
def test_several_ranks_report_bytes_and_seconds_of_their_reduction(
    tmp_path: Path, dataset: Path, compression: str, share: float
) -> None:
    sessions, found = records(tmp_path, dataset, ranks=3, reduction={"compression": compression})
    assert len(found) == 5
    for record in found:
        assert record["reduction_bytes"] == share * sessions[0].learner.parameters.gradients.nbytes
        assert 0 < record["reduction_exposed_s"] <= record["reduction_s"] < record["interval_s"]
        assert len(record["rank_scores"]) == len(record["rank_own_scores"]) == 3
        assert all(score >= 1 for score in record["rank_own_scores"])


def test_without_overlap_all_of_it_is_exposed(tmp_path: Path, dataset: Path) -> None:
    _, found = records(tmp_path, dataset, ranks=2, reduction={"overlap": False})
    assert all(record["reduction_exposed_s"] == record["reduction_s"] > 0 for record in found)


def test_rows_dealt_by_length_leave_less_imbalance_than_contiguous_ones(tmp_path: Path, dataset: Path) -> None:
    _, by_length = records(tmp_path / "length", dataset, ranks=4)
    _, contiguous = records(tmp_path / "contiguous", dataset, ranks=4, loss_normalization="microBatchMean")
    for one, other in zip(by_length, contiguous, strict=True):
        assert 1 <= one["token_imbalance"] < 1.03
        assert one["token_imbalance"] < other["token_imbalance"]
