"""A run writes its report at the end of every stage and of itself, and no run ends because it cannot.

Inputs: a tiny job of two phases and an evaluation, in the test's process. Observed: its output folder.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bert_job.run_config import RunConfig
from bert_trainer.errors import TrainerError
from bert_trainer.output.filled_masks import FilledMask
from bert_trainer.output.metrics import read_metrics
from bert_trainer.output.run_facts import load_run
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training import evaluate_stage, run_writer
from bert_trainer.training.run_writer import RunWriter
from bert_trainer.training.session import Session
from in_process import train
from tiny_run import pretrain_stage, run_config, write_dataset
from told_run import EVALUATE
from whole_configs import whole_stage

SECRET = "confidential"  # pragma: allowlist secret


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    dataset = write_dataset(tmp_path / "data")
    stages = [pretrain_stage("phase1"), pretrain_stage("phase2"), whole_stage(EVALUATE)]
    return run_config(tmp_path / "out", dataset, stages=stages)


def test_every_stage_and_the_run_s_end_write_it(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, seen = Path(config.output_folder), []
    write = RunWriter._write_page

    def look(writer: RunWriter, *, is_done: bool = False) -> None:
        write(writer, is_done=is_done)
        page = (folder / "report.html").read_text()
        seen.append((load_run(folder).report["stages"][1]["steps"], "Succeeded" in page, "Not finished" in page))

    monkeypatch.setattr(RunWriter, "_write_page", look)
    # The toy text has no sentences.
    mask = FilledMask(before=SECRET, after="", truth=SECRET, guesses=((SECRET, 0.5),))
    monkeypatch.setattr(evaluate_stage, "fill_masks", lambda *_, **__: (mask,))
    train(config)
    assert seen == [(0, False, True), (6, False, True), (6, True, False)]
    environment = json.loads((folder / "environment.json").read_text())
    assert (environment["world_size"], environment["precision"]) == (1, config.precision)
    assert {"torch", "python", "bert-trainer"} <= environment["versions"].keys()
    # Text of the corpus is in files of the run, and not in its records, which are the lines of its log.
    assert json.loads((folder / "report.json").read_text())["filledMasks"][0]["truth"] == SECRET
    assert SECRET not in (folder / "metrics.jsonl").read_text()


def test_a_page_that_cannot_be_written_is_a_warning(config: RunConfig, caplog: pytest.LogCaptureFixture) -> None:
    (Path(config.output_folder) / "report.html").mkdir(parents=True)
    train(config)
    assert "The report was not written: " in caplog.text
    assert [it["event"] for it in read_metrics(Path(config.output_folder))][-1] == "succeeded"


def test_records_too_long_to_wait_for_leave_the_page_to_the_command(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run_writer, "MAX_METRICS_BYTES", 10)
    train(config)
    assert "'bert-train report' makes the report" in caplog.text
    assert not (Path(config.output_folder) / "report.html").exists()


def test_a_failure_is_told_with_its_reason(config: RunConfig) -> None:
    session = Session.open(config, SingleRank(), attempt=1)
    session.writer.fail(TrainerError("the disk is full <b>"))
    session.close()
    page = (Path(config.output_folder) / "report.html").read_text()
    assert "Failed" in page
    assert "TrainerError the disk is full &lt;b&gt;" in page
