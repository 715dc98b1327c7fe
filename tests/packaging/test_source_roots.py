"""operator/ and trainer/ are folders on the path, never packages (docs/adr/0001-source-roots.md)."""

from __future__ import annotations

import operator
import subprocess
import sys
import sysconfig
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_python(code: str) -> str:
    """Return what a fresh interpreter prints that was started in the root of the repository."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.parametrize("folder", ["operator", "trainer", "tests", "tools"])
def test_the_folder_is_not_a_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_the_standard_library_keeps_its_operator_module() -> None:
    assert operator.__file__ is not None
    assert Path(operator.__file__).parent == Path(sysconfig.get_path("stdlib"))


def test_it_keeps_it_in_a_python_started_in_the_root_of_the_repository() -> None:
    printed = run_python("import operator, collections; print(operator.__file__)")
    assert Path(printed.strip()).parent == Path(sysconfig.get_path("stdlib"))


@pytest.mark.parametrize("name", ["bert-operator", "bert-train", "bert-data"])
def test_the_command_loads(name: str) -> None:
    (command,) = entry_points(group="console_scripts", name=name)
    assert callable(command.load())


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("bert_operator", {"torch", "h5py", "horovod", "bert_trainer", "matplotlib"}),
        ("bert_operator.__main__", {"torch", "h5py", "horovod", "bert_trainer", "matplotlib"}),
        ("bert_trainer", {"torch", "h5py", "horovod", "bert_operator", "kopf"}),
        ("bert_trainer.config.checks", {"torch", "h5py", "horovod", "bert_operator", "kopf"}),
        ("bert_trainer.dataset.__main__", {"torch", "horovod", "bert_operator", "kopf"}),
    ],
)
def test_importing_it_stays_light(module: str, heavy: set[str]) -> None:
    printed = run_python(f"import sys, {module}; print('\\n'.join(sys.modules))")
    assert heavy.isdisjoint(printed.split())


def test_the_changelog_leads_to_the_version_that_is_installed() -> None:
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## [")]
    assert headings[0] == "## [Unreleased]"
    assert headings[1].startswith(f"## [{version('bert-pretrain-operator')}]")
