"""Output of ranks: whole lines, long ones cut before any launcher sees them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import pods
from bert_trainer.pod import rank_pipes
from bert_trainer.pod.mpi import find_program
from bert_trainer.pod.rank_pipes import MAX_LINE_BYTES, RankPipes


def run(program: str, *, count: int = 1, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    options = ["single", "--ranks", str(count), "--termination-log", str(tmp_path / "record.json")]
    return subprocess.run(
        [*pods.POD, *options, "--", sys.executable, "-c", program],
        env=pods.environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("extra", [-1, 0, 1, 5 * MAX_LINE_BYTES])
def test_a_line_keeps_its_start_and_its_end_of_line(tmp_path: Path, extra: int) -> None:
    # The line end is one of the bytes.
    length = MAX_LINE_BYTES - 1 + extra
    ended = run(f"print('a' * {length}); print('next'); print('unended', end='')", tmp_path=tmp_path)
    first, *rest = ended.stdout.splitlines()
    assert first.startswith("a" * min(length, MAX_LINE_BYTES))
    assert rest == ["next", "unended"]
    kept = len(first.partition(" [")[0])
    left_out = length - kept
    assert first.endswith(f" [{left_out} bytes left out]") == (left_out > 0)


def test_a_rank_that_ends_in_the_middle_of_a_long_line_loses_nothing_else(tmp_path: Path) -> None:
    ended = run(
        f"import sys; print('err', file=sys.stderr); print('a' * {3 * MAX_LINE_BYTES}, end='')", tmp_path=tmp_path
    )
    assert ended.stdout.strip() == "a" * MAX_LINE_BYTES
    assert ended.stderr == "err\n"


@pytest.mark.parametrize("ends", [True, False])
def test_a_line_of_ours_waits_for_the_end_of_the_program_s_line(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    written = bytearray()

    def write(_target: int, data: bytes) -> bool:
        written.extend(data)
        return True

    monkeypatch.setattr(rank_pipes, "_write", write)
    monkeypatch.setattr(rank_pipes, "_LINE_S", 30.0 if ends else 0.1)
    (stdout, program), (stderr, other) = os.pipe(), os.pipe()
    pipes = RankPipes()
    pipes.forward(os.fdopen(stdout, "rb"), os.fdopen(stderr, "rb"))
    start = b"a" * MAX_LINE_BYTES
    os.write(program, start)
    deadline_s = time.monotonic() + 30
    while written != start:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    ours = threading.Thread(target=pipes.write, args=("ours",))
    ours.start()
    if ends:
        os.write(program, b"a\n")
    ours.join()
    os.close(program)
    os.close(other)
    pipes.finish()
    assert written.split(b"\n") == [start + b" [1 bytes left out]" * ends, b"ours", *([b""] * (1 if ends else 2))]


@pytest.mark.skipif(find_program("mpirun") is None, reason="requires mpirun; make setup installs it")
def test_a_line_of_100_mb_stops_no_rank_of_open_mpi(tmp_path: Path) -> None:
    program = (
        "import os, sys; rank = os.environ['OMPI_COMM_WORLD_RANK']\n"
        "if rank == '1': sys.stdout.write('x' * 100_000_000 + '\\n')\n"
        "print('end of', rank, flush=True)"
    )
    ended = run(program, count=2, tmp_path=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "end of 0" in ended.stdout
    assert "[1] end of 1" in ended.stdout
    assert f"[{100_000_000 - MAX_LINE_BYTES} bytes left out]" in ended.stdout


def test_a_program_that_leaves_a_process_with_its_pipe_ends(tmp_path: Path) -> None:
    ended = run("import subprocess; subprocess.Popen(['sleep', '30']); print('x')", tmp_path=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "x\n")
