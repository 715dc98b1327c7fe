"""The report itself: the page at every moment, parts that end at their limits, a rehearsal without a card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_report.__main__ import Report
from gpu_report.page import render_page
from gpu_report.part import Part, Result, Table, Verdict, read_result
from gpu_report.schedule import ENTRIES, Entry, find_work
from hidden_packages import hide_packages

ROOT = Path(__file__).parents[2]
ENTRY = Entry("train-large-512", "Trainer, BERT-large, length 512", 0, timed=True)


def test_the_page_shows_verdicts_first_and_what_is_known_so_far() -> None:
    results = {
        "train-large-512": Result(
            figures={"sequences/s": 812.25, "steps": 120},
            verdicts=[Verdict("trainer's step at 512", "≥ 800", "812", True)],
            tables=[Table("By kernel", ["kernel", "ms"], [["gemm|bf16", 1.5], ["gelu", None]])],
            left_out=["the trainer ended with 1"],
        ),
        "bench-512": Result(
            figures={"peer, sequences/s": 400.0}, verdicts=[Verdict("benchmark", "≥ 800", "700", False)]
        ),
    }
    bench = Entry("bench-512", "Benchmark", 110, timed=True)
    page = render_page("H200", [bench, ENTRY], results, {"bench-512": "done in 40 s", "train-large-512": "runs"})
    assert (
        page
        == """\
# GPU report

H200

## Verdicts

| what | asked | got | holds | part |
| --- | --- | --- | --- | --- |
| benchmark | ≥ 800 | 700 | **no** | bench-512 |
| trainer's step at 512 | ≥ 800 | 812 | yes | train-large-512 |
| trainer's step at 512, times the benchmark's peer | ≥ 2.5 | 2.03 | **no** | train-large-512 |

## Parts

| part | state |
| --- | --- |
| Benchmark | done in 40 s |
| Trainer, BERT-large, length 512 | runs |

## Left out

* Trainer, BERT-large, length 512: the trainer ended with 1.

## Benchmark

| figure | value |
| --- | --- |
| peer, sequences/s | 400 |

## Trainer, BERT-large, length 512

| figure | value |
| --- | --- |
| sequences/s | 812.25 |
| steps | 120 |

**By kernel**

| kernel | ms |
| --- | --- |
| gemm\\|bf16 | 1.5 |
| gelu | - |
"""
    )


def test_every_part_is_known_and_what_it_publishes_comes_back(tmp_path: Path) -> None:
    assert all(callable(find_work(entry.name)) for entry in ENTRIES)
    result = Result(
        {"s": 1.5}, [Verdict("a", "b", "c", None)], [Table("t", ["x"], [[1]])], ["n"], ["l"], ["f"], done=True
    )
    Part("tests", "cpu", True, tmp_path).publish(result)
    assert read_result(tmp_path, "tests") == result
    assert read_result(tmp_path, "loss") is None


def test_a_part_that_is_cut_off_leaves_what_it_had_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tools"))
    scratch, folder = tmp_path / "scratch", tmp_path / "out"
    scratch.mkdir(), folder.mkdir()
    Part("train-large-512", "cpu", True, scratch).publish(Result({"sequences/s": 812.0}))
    report = Report([ENTRY], "cpu", True, folder, scratch, ends_at_s=time.monotonic() + 600)
    report.run()
    assert report.states == {"train-large-512": "ended at its limit of 0 s; what it had found is below"}
    page = (folder / "report.md").read_text()
    assert "| sequences/s | 812 |" in page
    assert json.loads((folder / "results.json").read_text())["train-large-512"]["figures"] == {"sequences/s": 812.0}


def test_a_part_for_which_no_time_is_left_is_not_begun(tmp_path: Path) -> None:
    report = Report([ENTRY], "cpu", True, tmp_path, tmp_path, ends_at_s=time.monotonic())
    report.run()
    assert report.states == {"train-large-512": "not begun: no time left"}
    assert "| Trainer, BERT-large, length 512 | not begun: no time left |" in (tmp_path / "report.md").read_text()


def test_pytest_finds_what_the_tests_on_the_card_import() -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/tools:{ROOT}/trainer"}
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "tools/gpu_report/pytest.ini"), f"--rootdir={ROOT}"]
    command += ["-p", "gpu_report.pytest_plugin", "--collect-only", "-q", "tests/gpu"]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout
    assert "tests/gpu/test_v100.py::" in process.stdout


@pytest.mark.timeout(180)
def test_a_rehearsal_needs_neither_a_card_nor_more_packages_than_it_names(tmp_path: Path) -> None:
    """One part of all, the trainer's with its trace: `make gpu-report-rehearsal` runs the others."""
    hidden = ("pydantic", "psutil", "prometheus_client", "yaml", "google_crc32c", "sentencex", "mwparserfromhell",
              "matplotlib", "horovod")  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": hide_packages(tmp_path, *hidden), "PYTHON": sys.executable}
    command = [str(ROOT / "tools/gpu_report.sh"), "--small", "--device", "cpu", "--only", "train-large-512,profile"]
    process = subprocess.run(
        [*command, str(tmp_path / "out")], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + (tmp_path / "out/output.log").read_text()
    found = json.loads((tmp_path / "out/results.json").read_text())
    assert found["train-large-512"]["figures"]["steps"] == 30
    assert found["train-large-512"]["figures"]["sequences/s"] > 0
    assert found["profile"]["figures"]["traced step, ms"] > 0
    # As few files as a place that takes a run's results may take, none in a folder of its own.
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["output.log", "profile.pt.trace.json.gz", "report.md", "results.json"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "test,loss", "out"], "--only, --skip: got test; allowed: environment,bench-512"),
        (["/dev/null/out"], "/dev/null/out: cannot be written (Not a directory); name another folder"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(tmp_path: Path, arguments: list[str], said: str) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    process = subprocess.run(
        [ROOT / "tools/gpu_report.sh", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (process.returncode, said in process.stderr) == (2, True), process.stderr
    assert [*tmp_path.iterdir()] == []
