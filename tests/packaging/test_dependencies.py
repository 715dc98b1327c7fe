"""pyproject.toml and requirements.lock agree."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


_NEWER_STDLIB = {"compression"}
"""Of Python 3.14; before it a backport does the same."""


def declared(*extras: str) -> list[Requirement]:
    groups = [PROJECT["dependencies"], *(EXTRAS[extra] for extra in extras)]
    return [Requirement(line) for group in groups for line in group]


def imported_modules(package: Path) -> set[str]:
    """Return what a package imports, top-level names only; itself and the standard library are left out."""
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found - {package.name} - sys.stdlib_module_names - _NEWER_STDLIB


def locked() -> dict[str, set[str]]:
    """Return the locked versions of every package; several where they depend on the Python version."""
    versions: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9_.-]+)==([^ ;\\]+)", LOCK, flags=re.MULTILINE):
        versions.setdefault(canonicalize_name(name), set()).add(version)
    return versions


def test_the_lock_file_holds_an_allowed_version_of_every_dependency() -> None:
    versions = locked()
    stale = [
        str(requirement)
        for requirement in declared(*EXTRAS)
        if not set(requirement.specifier.filter(versions.get(canonicalize_name(requirement.name), set())))
    ]
    assert not stale, "make lock"


def test_every_locked_package_has_hashes() -> None:
    entries = re.split(r"^(?=[A-Za-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_lock_file_leaves_the_choice_of_index_to_the_machine() -> None:
    assert not re.search(r"^\s*--(extra-)?(index-url|find-links|trusted-host)|://", LOCK, flags=re.MULTILINE)


@pytest.mark.parametrize("half", ["operator", "trainer"])
def test_the_extra_of_a_package_names_everything_that_it_imports(half: str) -> None:
    names = {canonicalize_name(requirement.name) for requirement in declared(half)}
    # Horovod's wheel is built by tools/horovod_wheel.sh, so no extra can name it; pydantic pins its own core.
    # kubectl bert plot --png alone draws with matplotlib, and says so where it is missing.
    modules = imported_modules(ROOT / half / f"bert_{half}") - {"bert_job", "horovod", "pydantic_core", "matplotlib"}
    distributions = packages_distributions()
    unnamed = [
        module
        for module in sorted(modules)
        if names.isdisjoint(canonicalize_name(name) for name in distributions.get(module, ()))
    ]
    assert unnamed == []
