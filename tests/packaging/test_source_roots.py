"""operator/ and trainer/ are folders on the path, never packages (docs/adr/0001-source-roots.md)."""

from __future__ import annotations

import operator
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections import Counter
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests/support"
IMPORT = re.compile(r"^ *(?:from|import) (\w+)", re.MULTILINE)


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


def places_of(module: str, imported: dict[Path, set[str]]) -> set[Path]:
    """Return the folders with a file that imports the module, be it by another of tests/support."""
    users = [file for file, names in imported.items() if module in names]
    own = {file.parent for file in users if file.parent != SUPPORT}
    return own.union(*(places_of(file.stem, imported) for file in users if file.parent == SUPPORT))


def test_what_one_folder_of_tests_alone_uses_stands_in_it() -> None:
    files = [file for folder in ("tests", "tools", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    imported = {file: set(IMPORT.findall(file.read_text())) for file in files}
    plugins = {"left_out", "run_cost"}  # of tests/conftest.py
    places = {file.stem: places_of(file.stem, imported) for file in SUPPORT.glob("*.py") if file.stem not in plugins}
    alone = {module: [str(place.relative_to(ROOT)) for place in found] for module, found in places.items()}
    assert {module: found for module, found in alone.items() if len(found) < 2} == {}, "git mv it there"


def test_modules_of_tests_have_names_of_their_own() -> None:
    # All are found by their names alone, the first of two in every folder.
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    files = [file for folder in settings["pythonpath"] for file in (ROOT / folder).glob("*.py")]
    modules = [file.stem for file in files if not file.name.startswith("test_")]
    names = Counter(name for name in modules if name not in {"run", "conftest"})
    assert [name for name, times in names.items() if times > 1] == []


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
