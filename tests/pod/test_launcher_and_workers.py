"""A launcher and two workers over real ssh: names of pods, variables, output, stops from either side.

The pods are namespaces of this machine; what runs in them is a few lines of Python instead of a training.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pods
import ssh_hosts
from bert_trainer.pod.mpi import find_program
from bert_trainer.system.process_tree import find_descendants

OPTIONS = ("--ranks", "2", "--workers", "2", "--slots", "1", "--wait-seconds", "20")
PROGRAM = (sys.executable, "-c", pods.PATIENT)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ssh_hosts.Cluster]:
    lacking = ssh_hosts.missing() or ("" if find_program("mpirun") else "mpirun")
    if lacking:
        pytest.skip(f"requires {lacking}")
    with ssh_hosts.started_cluster(tmp_path, 2) as started:
        yield started


def options(tmp_path: Path) -> list[str]:
    return [*OPTIONS, "--termination-log", str(tmp_path / "record.json")]


def test_ranks_run_in_workers_and_stop_together(cluster: ssh_hosts.Cluster, tmp_path: Path) -> None:
    secret = 'a "secret" $value'
    logs = {"BERT_LOG_FOLDER": str(tmp_path / "logs"), "BERT_ATTEMPT": "3"}
    with (
        cluster.worker(0, TOKEN=secret),
        cluster.launcher(options(tmp_path), PROGRAM, **logs) as launcher,
    ):
        launcher.wait_for("Waiting for 2 workers, 20 s at most")
        with cluster.worker(1, TOKEN=secret) as late:
            launcher.wait_for("All 2 workers answer after")
            launcher.wait_for("rank 0 on run-worker-0 with " + repr(secret))
            launcher.wait_for("[1] rank 1 on run-worker-1 with " + repr(secret))
            launcher.process.terminate()
            assert launcher.end() == 3, launcher.output
            ssh_hosts.end_process_1(late)
            assert late.end() == 0, late.output
    assert "bert-trainer/1 event=progress stage=phase1 step=6 steps=10" in launcher.lines
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["reason"], record["exitCode"], record["checkpoint"]) == ("Stopped", 3, "/out/phase1-7")
    assert "rank 1 on" in (tmp_path / "logs" / "attempt-3" / "rank-1.log").read_text()


def test_a_worker_that_is_ended_stops_all_ranks(cluster: ssh_hosts.Cluster, tmp_path: Path) -> None:
    # Rank 0, in the other worker, learns of it as the trainer does: from the ranks themselves.
    agree = pods.PATIENT.replace(
        pods.WAITS,
        "path = os.environ['BERT_AGREE']\nwhile rank == '0' and not os.path.exists(path): time.sleep(0.05)\n"
        "if rank == '0': leave(0, None)\n" + pods.WAITS,
    ).replace("def leave(number, frame):", "def leave(number, frame):\n    open(os.environ['BERT_AGREE'], 'w').close()")
    variables = {"BERT_AGREE": str(tmp_path / "agree"), "BERT_ATTEMPT": "1"}
    with (
        cluster.worker(0),
        cluster.worker(1) as evicted,
        cluster.launcher(options(tmp_path), (sys.executable, "-c", agree), **variables) as launcher,
    ):
        launcher.wait_for("[1] rank 1 on run-worker-1")
        launcher.wait_for("rank 0 on run-worker-0")
        ssh_hosts.end_process_1(evicted)
        assert launcher.end() == 3, launcher.output
        assert evicted.end() == 0, evicted.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["reason"], record["exitCode"]) == ("Stopped", 3)


def test_a_frozen_worker_is_named_within_its_limit(cluster: ssh_hosts.Cluster, tmp_path: Path) -> None:
    limits = {"BERT_HANG_LIMITS_S": "6,60", "BERT_ATTEMPT": "1"}
    with (
        cluster.worker(0, **limits),
        cluster.worker(1, **limits) as frozen,
        cluster.launcher(options(tmp_path), PROGRAM, **limits) as launcher,
    ):
        launcher.wait_for("[1] rank 1 on run-worker-1")
        for process in find_descendants(frozen.process.pid):
            os.kill(process, signal.SIGSTOP)
        assert launcher.process.wait(45) == 4, launcher.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["reason"], record["firstFailure"]["host"]) == ("WorkerLost", "run-worker-1")
    assert "nothing is heard of run-worker-1" in record["message"]


def test_a_worker_that_vanishes_is_no_success(cluster: ssh_hosts.Cluster, tmp_path: Path) -> None:
    # Open MPI's own exit code is 0 then.
    with (
        cluster.worker(0),
        cluster.worker(1) as lost,
        cluster.launcher(options(tmp_path), PROGRAM) as launcher,
    ):
        launcher.wait_for("[1] rank 1 on run-worker-1")
        launcher.wait_for("rank 0 on run-worker-0")
        lost.kill()
        assert launcher.end() == 4, launcher.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["reason"], record["exitCode"], record["step"]) == ("WorkerLost", 4, 6)
    assert record["firstFailure"] == {"host": "run-worker-1"}
