"""The last lines of a test run say what was left out, how many tests, and what brings them in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from left_out import REMEDIES, TARGETS, describe

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
@pytest.mark.skipif(True, reason="requires sshd")
def test_a_login(number): ...

@pytest.mark.cluster
def test_on_a_cluster(): ...

def test_a_value(): ...
"""


def run(folder: Path, *words: str) -> list[str]:
    """Run pytest in a folder with nothing but the plugin; return what it prints, the last line (the counts) apart."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = cluster: on a cluster\n")
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "tests/support")}
    command = [sys.executable, "-m", "pytest", "-ra", "-p", "left_out", *words]
    ended = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=True)
    return ended.stdout.splitlines()[:-1]


def test_skipped_and_deselected_tests_stand_below_everything_else(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    *_, heading, first, second = run(tmp_path, "-m", "not cluster")
    assert re.fullmatch("=+ left out =+", heading)
    assert first == "    3 skipped without sshd: apt-get install openssh-server"
    assert second == "    1 marked cluster: make test-cluster"


def test_several_workers_report_to_one_summary(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    assert run(tmp_path, "-n", "2", "-m", "not cluster")[-2:] == [
        "    3 skipped without sshd: apt-get install openssh-server",
        "    1 marked cluster: make test-cluster",
    ]


def test_where_nothing_is_left_out_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    assert "left out" not in "\n".join(run(tmp_path, "-k", "value"))


def test_reasons_are_grouped_by_what_is_missing() -> None:
    reasons = [
        "requires ip, ssh, sshd",
        "requires AVX-512",
        "requires ssh",
        "requires ip, ssh, sshd",
        "requires mpirun, sshd",
        "requires MPICH; BERT_TEST_MPICH names its prefix",
    ]
    assert describe(reasons, Counter()) == [
        "    2 skipped without ip, ssh, sshd: apt-get install iproute2 openssh-client openssh-server",
        "    1 skipped without ssh: apt-get install openssh-client",
        "    1 skipped without sshd, mpirun: apt-get install openssh-server; make setup",
        "    1 skipped without BERT_TEST_MPICH: tests/pod/flavours.py says which folder it names",
        "    1 skipped: requires AVX-512",
    ]


def test_every_remedy_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for missing, command in [*REMEDIES.items(), *TARGETS.items()]:
        if command.startswith("make "):
            assert f"\n{command.removeprefix('make ')}: " in makefile
        elif command.startswith("tools/"):
            assert (ROOT / command.split()[0]).exists()
        elif command.startswith("tests/"):
            assert f"\n    {missing} " in (ROOT / command.split()[0]).read_text()
