"""tools/setup.sh refuses what cannot work, in one sentence and before it touches .venv.

Not tested here: the installation itself. The environment that runs these tests is its result.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def set_up(clone: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a folder that holds it and its inputs, and no .venv."""
    (clone / "tools").mkdir()
    for name in ("tools/setup.sh", "tools/horovod_wheel.sh", "tools/horovod.sha256", "requirements.lock"):
        shutil.copy(ROOT / name, clone / name)
    shutil.copy(ROOT / "pyproject.toml", clone)
    kernels = "trainer/bert_trainer/model/backends/cpu"
    shutil.copytree(ROOT / kernels, clone / kernels, ignore=shutil.ignore_patterns("lib", "__pycache__"))
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "BERT_MPI", "CXX")}
    return subprocess.run(
        ["tools/setup.sh"], cwd=clone, env={**inherited, **environment}, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [("BERT_MPI", "mpich", "open-mpi, gloo"), ("PYTHON", "false", "an interpreter of version 3.11 to 3.14")],
)
def test_a_choice_that_does_not_exist_is_named(tmp_path: Path, variable: str, value: str, allowed: str) -> None:
    answer = set_up(tmp_path, **{variable: value})
    assert answer.returncode == 1
    assert answer.stderr == f"setup: {variable}: got '{value}'; allowed: {allowed}\n"
    assert not (tmp_path / ".venv").exists()


def test_missing_system_packages_are_named_with_the_command_that_installs_them(tmp_path: Path) -> None:
    # A folder with everything that the script calls, apt-get and a C++ compiler left out.
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "uname", "cat", "sha256sum", "cut", "id", "make"):
        (tools / name).symlink_to(str(shutil.which(name)))
    clone = tmp_path / "clone"
    clone.mkdir()
    answer = set_up(clone, PATH=str(tools), CXX="no-such-compiler")
    assert answer.returncode == 1
    assert "missing: " in answer.stderr
    assert "a C++ compiler" in answer.stderr
    assert "apt-get install -y" in answer.stderr
    assert not (clone / ".venv").exists()
