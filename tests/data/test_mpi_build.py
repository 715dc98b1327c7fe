"""A build on the ranks of an MPI job makes the same bytes, and ends with all of its ranks. Real mpirun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_trainer.dataset.__main__ import main

pytest.importorskip("mpi4py")
MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")

pytestmark = [pytest.mark.skipif(MPIRUN is None, reason="requires mpirun"), pytest.mark.horovod]


def build_words(text: Path, root: Path, *options: str) -> list[str]:
    words = ["build", "--text", str(text), "--output", str(root), "--vocabulary-size", "120", "--shards", "5"]
    return [*words, "--processes", "1", "--length", "32:5", *options]


def build(text: Path, root: Path, ranks: int, *options: str) -> subprocess.CompletedProcess[str]:
    assert MPIRUN is not None
    command = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
    command += [sys.executable, "-m", "bert_trainer.dataset", *build_words(text, root, *options)]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*.hdf5"))}


def test_any_number_of_ranks_writes_the_same_bytes(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text = write_corpus(120)
    assert main(build_words(text, tmp_path / "1")) == 0
    run = build(text, tmp_path / "3", 3)
    assert run.returncode == 0, run.stderr
    # One rank speaks.
    assert run.stdout.count("documents to train on") == 1
    assert len(contents(tmp_path / "1")) == 6
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


def test_parts_are_resharded_to_the_same_bytes_by_any_number_of_ranks(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    text = write_corpus(60)
    options = ("--recipe", "mlperf", "--balanced-shards", "4")
    assert main(build_words(text, tmp_path / "1", *options)) == 0
    run = build(text, tmp_path / "2", 2, *options)
    assert run.returncode == 0, run.stderr
    assert sum("part_" in name for name in contents(tmp_path / "1")) == 4
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_wrong_input_ends_all_ranks_with_one_message(tmp_path: Path) -> None:
    run = build(tmp_path / "none", tmp_path / "data", 2)
    assert run.returncode == 2
    assert run.stderr.count("no such folder or file") == 1


def test_a_failing_task_ends_all_ranks(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text = write_corpus()
    (text / "c.txt").write_bytes(b"caf\xe9 bad\n")
    run = build(text, tmp_path / "data", 2)
    assert run.returncode == 2
    assert "not UTF-8" in run.stderr


CHECKSUMS = """
import sys, zlib
import checksums
from bert_trainer.dataset.workers.mpi_pool import MpiWorld

class Unreadable:
    def __reduce__(self):
        return (int, ("none",))

def checksum(task):
    return zlib.crc32(task)

if __name__ == "__main__":
    with MpiWorld() as world:
        if world.rank > 0:
            world.serve()
        else:
            tasks = [bytes([number % 251]) * (20_000 + 1_000 * (number % 60)) for number in range(200)]
            tasks = tasks if sys.argv[1] == "good" else [Unreadable()] * 4
            with world.pool(lambda: None) as pool:
                found = [zlib.crc32(task) == result for task, result in pool.run(checksums.checksum, tasks)]
            print("right", sum(found), "of", len(tasks))
"""


def spread(folder: Path, tasks: str) -> subprocess.CompletedProcess[str]:
    """Run tasks on three ranks that reach one another as those of several machines do, by TCP."""
    (folder / "checksums.py").write_text(CHECKSUMS)
    environment = {**os.environ, "PYTHONPATH": ":".join([str(folder), *sys.path]), "OMPI_MCA_btl": "self,tcp"}
    command = [str(MPIRUN), "--allow-run-as-root", "--oversubscribe", "-n", "3", sys.executable]
    return subprocess.run(
        [*command, str(folder / "checksums.py"), tasks], capture_output=True, text=True, timeout=60, env=environment
    )


def test_tasks_of_any_size_arrive_whole_over_a_network(tmp_path: Path) -> None:
    run = spread(tmp_path, "good")
    assert run.returncode == 0, run.stderr
    assert "right 200 of 200" in run.stdout


def test_a_rank_that_dies_ends_all_of_them(tmp_path: Path) -> None:
    run = spread(tmp_path, "bad")
    assert run.returncode != 0
    assert "invalid literal for int()" in run.stderr
