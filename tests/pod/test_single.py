"""``bert-pod single`` with real processes: exit codes, output, the record, and a stop on request."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pods
from bert_trainer.pod.mpi import find_program

needs_mpi = pytest.mark.skipif(find_program("mpirun") is None, reason="requires mpirun; make setup installs it")


def command(tmp_path: Path, ranks: int, program: str) -> list[str]:
    script = tmp_path / "program.py"
    script.write_text(program)
    options = ["single", "--ranks", str(ranks), "--termination-log", str(tmp_path / "record.json")]
    return [*pods.POD, *options, "--", sys.executable, str(script)]


def run(tmp_path: Path, ranks: int, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(tmp_path, ranks, program),
        env=pods.environment(TMPDIR=str(tmp_path), **variables),
        capture_output=True,
        text=True,
        timeout=pods.DEADLINE_S,
        check=False,
    )


def record(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "record.json").read_text())
    return found


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_the_program_s_exit_code_is_the_pod_s(tmp_path: Path, code: int) -> None:
    ended = run(tmp_path, 1, f"import sys; print('out'); print('err', file=sys.stderr); sys.exit({code})")
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "out\n", "err\n")
    assert record(tmp_path)["exitCode"] == code


def test_a_killed_program_ends_with_128_and_the_signal(tmp_path: Path) -> None:
    assert run(tmp_path, 1, "import os; print('last'); os.abort()").returncode == 128 + signal.SIGABRT
    left = record(tmp_path)
    assert (left["reason"], left["firstFailure"]["signal"]) == ("SIGABRT", signal.SIGABRT)


def test_the_trainer_s_own_record_is_kept(tmp_path: Path) -> None:
    program = (
        "from bert_trainer.output.termination import write_termination as w; w('InputError', 2, 'is empty'); exit(2)"
    )
    assert run(tmp_path, 1, program).returncode == 2
    left = record(tmp_path)
    assert (left["reason"], left["message"]) == ("InputError", "is empty")


def test_orphans_of_the_program_do_not_keep_the_pod(tmp_path: Path) -> None:
    program = "import subprocess as s; s.Popen(['sleep', '0.5'], stdout=s.DEVNULL, stderr=s.DEVNULL); print('x')"
    ended = run(tmp_path, 1, program)
    assert (ended.returncode, ended.stdout) == (0, "x\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_rank_is_asked_by_sigusr1(tmp_path: Path, number: signal.Signals) -> None:
    with pods.running(command(tmp_path, 1, pods.PATIENT), tmp_path / "log") as pod:
        pod.wait_for("rank 0 on")
        pod.process.send_signal(number)
        assert pod.end() == 3
    left = record(tmp_path)
    assert (left["reason"], left["step"], left["checkpoint"]) == ("Stopped", 7, "/out/phase1-7")


def test_a_second_stop_request_ends_the_program(tmp_path: Path) -> None:
    program = "import os, signal, time\nsignal.signal(10, lambda *a: os.write(1, b'asked\\n'))\n"
    program += "print('up', flush=True)\ntime.sleep(30)"
    with pods.running(command(tmp_path, 1, program), tmp_path / "log") as pod:
        pod.wait_for("up")
        pod.process.terminate()
        pod.wait_for("asked")
        pod.process.terminate()
        assert pod.end() == 128 + signal.SIGTERM


def test_a_program_that_is_still_starting_counts_as_stopped(tmp_path: Path) -> None:
    with pods.running(
        command(tmp_path, 1, "print('up', flush=True); import time; time.sleep(30)"), tmp_path / "log"
    ) as pod:
        pod.wait_for("up")
        pod.process.terminate()
        assert pod.end() == 3
    assert record(tmp_path)["reason"] == "Stopped"


@needs_mpi
def test_two_ranks_stop_together_and_rank_0_s_lines_are_untagged(tmp_path: Path) -> None:
    with pods.running(command(tmp_path, 2, pods.PATIENT), tmp_path / "log") as pod:
        pod.wait_for("rank 0 on")
        pod.wait_for("rank 1 on")
        pod.process.terminate()
        assert pod.end() == 3, pod.output
        lines = pod.lines
    assert "bert-trainer/1 event=progress stage=phase1 step=6 steps=10" in lines
    assert any(line.startswith("[1] rank 1 on") for line in lines)
    assert record(tmp_path)["reason"] == "Stopped"


@needs_mpi
def test_a_traceback_of_any_rank_reaches_the_log_and_the_record(tmp_path: Path) -> None:
    program = (
        "import os, time\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1': raise ValueError('no such row')\ntime.sleep(20)"
    )
    ended = run(tmp_path, 2, program, BERT_LOG_FOLDER=str(tmp_path / "logs"), BERT_ATTEMPT="2")
    assert ended.returncode == 1
    assert "[1] Traceback (most recent call last):" in ended.stderr
    left = record(tmp_path)
    assert (left["reason"], left["message"]) == ("ValueError", "no such row")
    assert (left["firstFailure"]["rank"], left["firstFailure"]["exitCode"]) == (1, 1)
    assert "ValueError: no such row" in (tmp_path / "logs" / "attempt-2" / "rank-1.log").read_text()


@needs_mpi
def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    program = "import os, time\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(20)"
    assert run(tmp_path, 2, program).returncode == 137
    left = record(tmp_path)
    assert left["reason"] == "SIGKILL"
    assert (left["firstFailure"]["rank"], left["firstFailure"]["signal"]) == (1, 9)
