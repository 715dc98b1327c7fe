"""Data preparation in two workers, as the operator renders it: real pods' programs, real mpirun, real ``bert-data``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ssh_hosts
from bert_operator.render.run_config import render_run_config
from bert_trainer.dataset.__main__ import main
from bert_trainer.pod.mpi import find_program
from job_changes import both, put
from sample_job import PHASE1, PREPARE, sample_job
from tiny_run import ROOT

OPTIONS = ("--ranks", "2", "--workers", "2", "--slots", "1", "--wait-seconds", "20")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ssh_hosts.Cluster]:
    lacking = ssh_hosts.missing() or ("" if find_program("mpirun") else "mpirun")
    if lacking:
        pytest.skip(f"requires {lacking}")
    with ssh_hosts.started_cluster(tmp_path, 2) as started:
        yield started


def write_run(folder: Path, text: Path, workers: int) -> Path:
    """Write the run configuration of a job whose data so many workers prepare."""
    prepare = {"text": str(text), "vocabularySize": 120, "numShards": 3, "numProcesses": 1, "workers": workers}
    job = sample_job(
        both(
            put("stages", PREPARE, "prepare", value=prepare),
            put("stages", PHASE1, "pretrain", "sequenceLength", value=32),
        )
    )
    document = render_run_config(job, uid="u", ranks=2, hosts=1, output_folder=str(folder))
    path = folder.with_suffix(".json")
    path.write_text(json.dumps(document))
    return path


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*.hdf5"))}


@pytest.mark.timeout(120)
def test_two_workers_make_the_bytes_of_one_and_the_launcher_reports_as_one(
    cluster: ssh_hosts.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    sentences = [f"word{n % 7} follows word{(3 * n) % 11} in a quiet sentence." for n in range(400)]
    text.write_text("\n\n".join("\n".join(sentences[n : n + 8]) + f"\nDocument {n} ends." for n in range(0, 400, 8)))
    program = (sys.executable, "-m", "bert_trainer.dataset", "build", "--config")
    variables = {"PYTHONPATH": f"{ROOT}/trainer", "BERT_ATTEMPT": "1"}
    record = tmp_path / "record.json"
    options = [*OPTIONS, "--termination-log", str(record), "--export", "BERT_ATTEMPT,PYTHONPATH"]
    configuration = write_run(tmp_path / "two", text, 2)
    with (
        cluster.worker(0),
        cluster.worker(1),
        cluster.launcher(options, (*program, str(configuration)), **variables) as launcher,
    ):
        assert launcher.end() == 0, launcher.output
    assert sum("event=stage_started stage=prepare" in line for line in launcher.lines) == 1
    assert sum("event=stage_finished stage=prepare" in line for line in launcher.lines) == 1
    assert json.loads(record.read_text())["exitCode"] == 0

    monkeypatch.setenv("BERT_ATTEMPT", "1")
    monkeypatch.setenv("BERT_TERMINATION_LOG", str(tmp_path / "one-record.json"))
    assert main(["build", "--config", str(write_run(tmp_path / "one", text, 1))]) == 0
    assert len(contents(tmp_path / "one")) == 4
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
