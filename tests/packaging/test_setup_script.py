"""tools/setup.sh refuses what cannot work, in one sentence and before it touches .venv.

Not tested here: the installation itself. The environment that runs these tests is its result.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VARIABLES = ("PYTHON", "BERT_MPI", "BERT_COLLECTIVES", "CXX")


def set_up(clone: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a folder that holds it and its inputs, and no .venv."""
    (clone / "tools").mkdir()
    for name in ("tools/setup.sh", "tools/horovod_wheel.sh", "tools/horovod.lock", "requirements.lock"):
        shutil.copy(ROOT / name, clone / name)
    shutil.copy(ROOT / "pyproject.toml", clone)
    kernels = "trainer/bert_trainer/model/backends/cpu"
    shutil.copytree(ROOT / kernels, clone / kernels, ignore=shutil.ignore_patterns("lib", "__pycache__"))
    inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        ["tools/setup.sh"], cwd=clone, env={**inherited, **environment}, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("BERT_MPI", "mpich", "open-mpi, gloo"),
        ("BERT_COLLECTIVES", "gloo", "horovod, torch"),
        ("PYTHON", "false", "an interpreter of version 3.11 to 3.14"),
    ],
)
def test_a_choice_that_does_not_exist_is_named(tmp_path: Path, variable: str, value: str, allowed: str) -> None:
    answer = set_up(tmp_path, **{variable: value})
    assert answer.returncode == 1
    assert answer.stderr == f"setup: {variable}: got '{value}'; allowed: {allowed}\n"
    assert not (tmp_path / ".venv").exists()


@pytest.fixture
def bare(tmp_path: Path) -> Callable[..., str]:
    """Return ``answer(tools, **environment)``: what the script says with few programs, and no compiler or apt-get."""
    folder, clone = tmp_path / "bin", tmp_path / "clone"
    folder.mkdir()
    clone.mkdir()
    for name in ("bash", "dirname", "uname", "cat", "sha256sum", "cut", "id"):
        (folder / name).symlink_to(str(shutil.which(name)))

    def answer(*more: str, **environment: str) -> str:
        for name in more:
            (folder / name).symlink_to(str(shutil.which(name)))
        finished = set_up(clone, PATH=str(folder), CXX="no-such-compiler", **environment)
        assert finished.returncode == 1
        assert not (clone / ".venv").exists()
        return finished.stderr

    return answer


def test_missing_system_packages_are_named_with_the_command_that_installs_them(bare: Callable[..., str]) -> None:
    answer = bare("make")
    assert "missing: " in answer
    assert "a C++ compiler" in answer
    assert "apt-get install -y" in answer


def test_who_has_no_compiler_and_is_not_root_is_told_how_to_do_without(bare: Callable[..., str]) -> None:
    assert "BERT_COLLECTIVES=torch make setup, which leaves out Horovod" in bare("make")


def test_without_horovod_no_compiler_is_missing(bare: Callable[..., str]) -> None:
    # make is left out, so that the script ends here all the same.
    answer = bare(BERT_COLLECTIVES="torch", PYTHON=sys.executable)
    assert answer.startswith("setup: missing: make\n")
    assert "BERT_COLLECTIVES" not in answer
