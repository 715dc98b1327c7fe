"""Fine-tuning whose steps go wrong: skipped, where ranks train one model and where each trains its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bert_trainer.errors import TrainerError
from bert_trainer.output.metrics import read_metrics
from finetune_runs import run
from tiny_finetune import finetune_document, finetune_stage, write_task
from unhealthy_steps import spoil


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"))


def document(folder: Path, task: Path, health: dict[str, Any], *, synchronized: bool = True) -> dict[str, Any]:
    stage = finetune_stage(task, epochs=1, synchronize_gradients=synchronized)
    logging = {"every_steps": 1, "tensorboard": False, "sample_ledger": True}
    return finetune_document(folder, task, stage, logging=logging, health=health)


@pytest.mark.parametrize("synchronized", [True, False])
def test_a_step_is_skipped_by_both_ranks(
    tmp_path: Path, task: Path, monkeypatch: pytest.MonkeyPatch, synchronized: bool
) -> None:
    spoil(monkeypatch, "rule:3=nan")
    run(document(tmp_path, task, {"on_unhealthy": "Skip"}, synchronized=synchronized), ranks=2)
    last = [record for record in read_metrics(tmp_path) if record["event"] == "progress"][-1]
    # Models that ranks have of their own are counted each.
    assert last["skipped_steps"] == (1 if synchronized else 2)
    entries = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries if "skipped" in entry] == [2]


@pytest.mark.parametrize("synchronized", [True, False])
def test_too_many_skipped_steps_end_every_rank(
    tmp_path: Path, task: Path, monkeypatch: pytest.MonkeyPatch, synchronized: bool
) -> None:
    spoil(monkeypatch, "rule:2=nan,rule:3=nan,rule:4=nan")
    health = {"on_unhealthy": "Skip", "max_skipped_steps": 2}
    with pytest.raises(TrainerError, match=r"step 4 are not finite .*; 3 updates in a row were skipped, allowed: 2"):
        run(document(tmp_path, task, health, synchronized=synchronized), ranks=2)


def test_a_run_that_resumes_remembers_what_it_has_skipped(
    tmp_path: Path, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "rule:2=nan,rule:4=nan")
    settings = document(tmp_path, task, {"on_unhealthy": "Skip"})
    with pytest.raises(TrainerError, match="stopped on request"):
        run(settings, stop_after=3)
    run(settings, attempt=2)
    counts = [record["skipped_steps"] for record in read_metrics(tmp_path) if record["event"] == "progress"]
    assert counts == [0, 1, 1, 2, 2]
