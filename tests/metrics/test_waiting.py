"""The time that a rank waits for its batches is measured, and is a share of each logging interval."""

from __future__ import annotations

import queue
import threading
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bert_trainer.dataset.shards import ShardFolder
from bert_trainer.model.batch import Batch
from bert_trainer.output.metrics import read_metrics
from bert_trainer.training import data_loader
from bert_trainer.training.data_loader import SampleOrder, StageReader
from in_process import progress_records, train
from patience import PATIENCE_S
from tiny_run import PREDICTIONS, SEQUENCE_LENGTH, pretrain_stage, run_config, write_dataset

DELAY_S = 0.5


def test_only_waiting_for_a_batch_that_is_not_there_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ShardFolder.open(
        write_dataset(tmp_path) / f"seq_len_{SEQUENCE_LENGTH}_max_pred_{PREDICTIONS}",
        split="training",
        sequence_length=SEQUENCE_LENGTH,
        max_predictions=PREDICTIONS,
        vocabulary=None,
    )
    asked = threading.Event()
    clock_s = 0.0
    read, get = StageReader.read_step, queue.Queue.get

    def read_late(self: StageReader, step: int) -> tuple[list[Batch], int]:
        nonlocal clock_s
        if step == 0:
            assert asked.wait(PATIENCE_S)
            clock_s += DELAY_S
        return read(self, step)

    def get_and_say(self: queue.Queue[object], *arguments: object, **options: object) -> object:
        asked.set()
        return get(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(StageReader, "read_step", read_late)
    monkeypatch.setattr(queue.Queue, "get", get_and_say)
    monkeypatch.setattr(data_loader, "time", SimpleNamespace(monotonic=lambda: clock_s))
    order = SampleOrder(folder.rows, seed=3)
    with StageReader(folder, order, global_batch_size=8, micro_batch_size=8, rank=0, world_size=1,
                     first_step=0, last_step=2) as reader:  # fmt: skip
        reader.next_step()
        assert reader.waited_s == DELAY_S
        clock_s += DELAY_S  # the step itself
        reader.next_step()
        assert reader.waited_s == DELAY_S


def test_every_interval_says_which_share_of_it_was_waiting(tmp_path: Path) -> None:
    train(run_config(tmp_path / "run", write_dataset(tmp_path / "data")))
    records = progress_records(tmp_path / "run")
    shares = [record["data_wait_share"] for record in records]
    assert len(shares) == 6
    assert all(isinstance(share, float) and 0 < share < 1 for share in shares)
    waited_s = [share * record["interval_s"] for share, record in zip(shares, records, strict=True)]
    # Added up from report to report, as elapsed_s is.
    assert [record["data_wait_s"] for record in records] == pytest.approx(list(accumulate(waited_s)))


def test_a_stage_says_how_long_it_has_stood_still(tmp_path: Path) -> None:
    unset = {"max_samples": None, "shards": None, "data_range": None}
    evaluation = {**unset, "every_steps": 2, "micro_batch_size": 8, "max_predictions_per_sequence": PREDICTIONS}
    stage = pretrain_stage(evaluation=evaluation)
    train(run_config(tmp_path / "run", write_dataset(tmp_path / "data"), stages=[stage]))
    records: list[dict[str, Any]] = list(read_metrics(tmp_path / "run"))
    *_, last = [record for record in records if record["event"] == "progress"]
    # The third evaluation and the third checkpoint come behind the last report.
    evaluated_s = [record["seconds"] for record in records if record["event"] == "evaluated"]
    assert len(evaluated_s) == 3
    assert sum(evaluated_s[:2]) <= last["evaluation_s"]
    assert last["checkpoint_s"] > 0
    assert last["data_wait_s"] + last["evaluation_s"] + last["checkpoint_s"] < last["elapsed_s"]
