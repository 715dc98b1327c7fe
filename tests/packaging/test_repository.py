"""What stands in the repository holds everywhere: no path, host or neighbour of one machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from git_clone import list_files, require_clone

ROOT = Path(__file__).parents[2]
INDEX_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "GOPROXY")
PUBLIC_HOSTS = {"pypi.org", "proxy.golang.org"}


def tracked_files() -> list[Path]:
    """Return the text files that belong to the repository, new ones that are not ignored included."""
    paths = list_files("--cached", "--others", "--exclude-standard")
    return [path for path in paths if b"\0" not in path.read_bytes()[:8192]]


def lines_with(pattern: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if re.search(pattern, line)
    ]


@pytest.fixture(autouse=True)
def skip_outside_git() -> None:
    require_clone("so nothing says which files belong to the repository")


def test_nobody_s_home_and_no_clone_is_named() -> None:
    clone = re.escape(str(ROOT)) if len(ROOT.parts) > 2 else "(?!)"
    # bert is the user of the trainer's image, not a person.
    assert lines_with(rf"{clone}\b|/(?:home|Users)/(?!bert/)\w+/") == []


def test_no_package_index_of_one_machine_is_named() -> None:
    urls = [url for name in INDEX_VARIABLES for url in re.split("[, ]", os.environ.get(name, ""))]
    hosts = {urlsplit(url).hostname for url in urls}
    private = sorted(re.escape(host) for host in hosts - PUBLIC_HOSTS if host)
    assert not private or lines_with("|".join(private)) == []


def test_no_relative_path_leaves_the_repository() -> None:
    climb = re.compile(r"(?:(?<=[\s\"'`(=])|^)(?:\.\./)+[\w.-]+", re.MULTILINE)
    leaving = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in tracked_files()
        for target in climb.findall(path.read_text(errors="replace"))
        if not (path.parent / target).resolve().is_relative_to(ROOT)
    ]
    assert leaving == []


def test_shell_scripts_parse_and_can_be_started() -> None:
    scripts = [path for path in tracked_files() if path.suffix == ".sh" or path.parent.name == ".ci"]
    assert scripts
    for script in scripts:
        assert os.access(script, os.X_OK), script
        subprocess.run(["bash", "-n", script], check=True)


def test_the_generated_pages_are_fresh() -> None:
    command = [sys.executable, "tools/generate.py", "--check"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
