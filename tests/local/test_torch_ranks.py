"""A job whose ranks share gradients through torch.distributed, on a machine that is taken to have no Open MPI.

Inputs: a tiny job of two ranks, without end; Ctrl-C. Observed: the exit code, what is printed, the processes that are
left. Scripts in place of the trainer are in test_launchers, ranks on two machines in test_several_machines.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bert_operator.local.launch import threads_per_rank
from bert_operator.local.programs import find_programs
from sample_job import PHASE1, sample_document
from tiny_run import write_dataset


@pytest.fixture
def job(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data")

    def change(spec: dict[str, object]) -> None:
        stages = sample_document()["spec"]["stages"][PHASE1 : PHASE1 + 1]
        stages[0]["pretrain"] |= {"sequenceLength": 32, "maxPredictionsPerSequence": 5, "globalBatchSize": 8}
        stages[0]["pretrain"]["length"] = {"steps": 1_000_000}
        model = {"hiddenSize": 8, "numHiddenLayers": 1, "numAttentionHeads": 2, "intermediateSize": 16}
        spec.update(stages=stages, model=model, dataset={"path": "data"}, logging={"everySteps": 1})

    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(sample_document(change)))  # JSON is YAML
    return path


@pytest.fixture
def command(job: Path) -> Iterator[subprocess.Popen[str]]:
    words = ("local", str(job), "--plain", "--mpi", "gloo", "--collectives", "torch")
    process = subprocess.Popen(
        [sys.executable, "-m", "bert_operator", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=job.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_ranks_under_torchrun_train_and_stop_with_a_checkpoint(command: subprocess.Popen[str], tmp_path: Path) -> None:
    assert command.stdout is not None
    assert any(" event=progress " in line for line in command.stdout), command.communicate()[1]
    ranks = [process for process in psutil.Process(command.pid).children(recursive=True) if is_rank(process)]
    assert len(ranks) == 2
    variables = [rank.environ() for rank in ranks]
    assert {(own["RANK"], own["BERT_ATTEMPT"], own["OMP_NUM_THREADS"]) for own in variables} == {
        (rank, "1", str(threads_per_rank(find_programs().cores, 2))) for rank in ("0", "1")
    }
    command.send_signal(signal.SIGINT)
    _, remarks = command.communicate(timeout=60)
    assert command.returncode == 130, remarks
    assert "Started attempt 1: phase1 in 2 ranks" in remarks
    assert "Stopped with a checkpoint at phase1, step" in remarks
    assert len([*(tmp_path / "runs/demo/checkpoints").glob("phase1-*")]) == 1
    assert not any(process.is_running() for process in ranks)


def is_rank(process: psutil.Process) -> bool:
    return process.cmdline()[1:4] == ["-m", "bert_trainer", "--config"]
