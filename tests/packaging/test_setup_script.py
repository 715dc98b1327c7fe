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

from patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
VARIABLES = ("PYTHON", "BERT_MPI", "BERT_COLLECTIVES", "CXX")


def set_up(clone: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a folder that holds it and its inputs, and no .venv."""
    (clone / "tools").mkdir()
    for name in ("tools/setup.sh", "tools/horovod_wheel.sh", "tools/horovod.lock", "requirements.lock"):
        shutil.copy(ROOT / name, clone / name)
    shutil.copy(ROOT / "pyproject.toml", clone)
    kernels = "trainer/bert_trainer/model/backends/cpu"
    shutil.copytree(ROOT / kernels, clone / kernels, ignore=shutil.ignore_patterns("lib", "__pycache__"))
    inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        ["tools/setup.sh", *options], cwd=clone, env={**inherited, **environment}, capture_output=True, text=True
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
        finished = set_up(clone, **{"PATH": str(folder), "CXX": "no-such-compiler", **environment})
        assert finished.returncode == 1
        assert not (clone / ".venv").exists()
        return finished.stderr

    return answer


def test_missing_system_packages_are_named_with_the_command_that_installs_them(bare: Callable[..., str]) -> None:
    answer = bare("make", BERT_COLLECTIVES="horovod")
    assert "missing: " in answer
    assert "a C++ compiler" in answer
    assert "apt-get install -y" in answer


def test_who_has_no_compiler_and_is_not_root_is_told_how_to_do_without(bare: Callable[..., str]) -> None:
    answer = bare("make", BERT_COLLECTIVES="horovod")
    assert "BERT_COLLECTIVES=torch make setup, which leaves out Horovod" in answer


def test_without_horovod_no_compiler_is_missing(bare: Callable[..., str]) -> None:
    # make is left out, so that the script ends here all the same.
    answer = bare(BERT_COLLECTIVES="torch", PYTHON=sys.executable)
    assert answer.startswith("setup: missing: make\n")
    assert "BERT_COLLECTIVES" not in answer


def test_who_asked_for_nothing_and_has_no_compiler_does_without_horovod_in_one_line(bare: Callable[..., str]) -> None:
    # make is left out here as well.
    said, *missing = bare(PYTHON=sys.executable).splitlines()
    assert said == (
        "setup: without a C++ compiler there is no Horovod: jobs of several ranks take collectives: torch "
        "(BERT_COLLECTIVES=horovod make setup asks for it)"
    )
    assert missing[0] == "setup: missing: make"


def test_an_interpreter_without_headers_does_without_horovod_too(tmp_path: Path, bare: Callable[..., str]) -> None:
    """The interpreter says that it lacks them, as Debian's does where python3-dev is not installed."""
    python = tmp_path / "python-without-headers"
    complete = 'case $2 in torch) echo 1 3.11 "$0" ;; *) echo 0 3.11 "$0" ;; esac'
    python.write_text(f"#!/usr/bin/env bash\n{complete}\n")
    python.chmod(0o755)
    said, *missing = bare("env", PYTHON=str(python), CXX="true").splitlines()
    assert said.startswith(f"setup: without the headers of {python} there is no Horovod: ")
    assert missing[0] == "setup: missing: make"


def test_an_option_that_does_not_exist_is_named(tmp_path: Path) -> None:
    answer = set_up(tmp_path, "--fast")
    assert (answer.returncode, answer.stderr) == (1, "setup: got '--fast'; allowed: --quiet, --first\n")


def test_a_wheel_that_would_have_to_be_built_is_not_when_only_cached_ones_are_wanted(tmp_path: Path) -> None:
    answer = subprocess.run(
        [ROOT / "tools/horovod_wheel.sh", "--cached", sys.prefix, "gloo"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (3, "", "")
    assert [*tmp_path.iterdir()] == []


def test_only_what_somebody_said_is_remembered(tmp_path: Path, bare: Callable[..., str]) -> None:
    """A compiler that comes later is found; who asked for torch keeps it."""
    venv = tmp_path / "clone" / ".venv"

    def answer(**environment: str) -> str:
        # Only what the script finds before it would write: make is left out.
        found = set_up(tmp_path / "clone", PATH=str(tmp_path / "bin"), PYTHON=sys.executable, **environment)
        shutil.rmtree(tmp_path / "clone" / "tools")
        shutil.rmtree(tmp_path / "clone" / "trainer")
        return found.stderr

    assert "there is no Horovod" in answer(CXX="no-such-compiler")
    assert "there is no Horovod" not in answer(CXX="cat")
    venv.mkdir()
    (venv / ".setup-collectives").write_text("torch\n")
    assert "there is no Horovod" not in answer(CXX="no-such-compiler")
    (venv / ".setup-collectives").write_text("mpich\n")
    assert "BERT_COLLECTIVES: got 'mpich'" in answer(CXX="cat")
