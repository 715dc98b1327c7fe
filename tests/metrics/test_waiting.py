"""The time that a rank waits for its batches is measured, and is a share of each logging interval."""

from __future__ import annotations

import threading
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from bert_trainer.dataset.shards import ShardFolder
from bert_trainer.model.batch import Batch
from bert_trainer.output.metrics import read_metrics
from bert_trainer.training.data_loader import SampleOrder, StageReader
from in_process import progress_records, train
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
    released = threading.Event()
    read = StageReader.read_step

    def read_late(self: StageReader, step: int) -> tuple[list[Batch], int]:
        if step == 0:
            released.wait(10)
        return read(self, step)

    monkeypatch.setattr(StageReader, "read_step", read_late)
    order = SampleOrder(folder.rows, seed=3)
    with StageReader(folder, order, global_batch_size=8, micro_batch_size=8, rank=0, world_size=1,
                     first_step=0, last_step=2) as reader:  # fmt: skip
        timer = threading.Timer(DELAY_S, released.set)
        timer.start()
        began_s = time.monotonic()
        reader.next_step()
        first_s, elapsed_s = reader.waited_s, time.monotonic() - began_s
        assert 0.2 * DELAY_S <= first_s <= elapsed_s
        reader._thread.join(10)  # the second batch is there now
        reader.next_step()
        assert reader.waited_s - first_s < DELAY_S
        timer.join()


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
