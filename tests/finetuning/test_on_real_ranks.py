"""Two real ranks: one model together, then one each, as ranks that are threads do it."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune_runs import Document, assert_same_tensors, evaluated, run, without_times
from tiny_finetune import finetune_document, finetune_stage, write_task
from tiny_run import run_trainer


@pytest.mark.parametrize(
    "collectives",
    [
        pytest.param("horovod", marks=pytest.mark.horovod),
        pytest.param("torch", marks=(pytest.mark.ranks, pytest.mark.long)),
    ],
)
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_ranks_fine_tune_together_and_on_their_own(tmp_path: Path, collectives: str) -> None:
    task = write_task(tmp_path / "task")
    together, apart = finetune_stage(task), finetune_stage(task, "apart", run_seeds=[1, 2], synchronize_gradients=False)
    apart["learning_rate"] = 2e-2

    def document(folder: Path) -> Document:
        return finetune_document(folder, task, together, apart, world={"ranks": 2, "hosts": 1}, collectives=collectives)

    done = run_trainer(document(tmp_path / "real"), tmp_path / "real.json")
    assert done.returncode == 0, done.stderr
    run(document(tmp_path / "threads"), ranks=2)
    real, threads = (
        [without_times(it) for it in evaluated(folder)] for folder in (tmp_path / "real", tmp_path / "threads")
    )
    assert real == threads
    assert [it["rank"] for it in evaluated(tmp_path / "real") if it["stage"] == "apart"] == [0, 1] * 4
    for path in (
        "finetune/rule/best/model.safetensors",
        "finetune/apart/best/model.safetensors",
        "checkpoints/rule-00000010/optimizer.safetensors",
        "checkpoints/apart-00000020/model.safetensors",
        "checkpoints/apart-00000020/optimizer.safetensors",
    ):
        assert_same_tensors(tmp_path / "real" / path, tmp_path / "threads" / path)
