"""For tests that ask git: what they need."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def require_clone(why: str) -> None:
    """Skip the test where there is no git, or this is no clone. why: what git is asked for."""
    if shutil.which("git") is None:
        pytest.skip("requires git")
    if subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip(f"not a git clone, {why}")


def list_files(*words: str) -> list[Path]:
    """Return files of the repository in order. words: for ``git ls-files``: options, then ``--`` and patterns."""
    command = ["git", "ls-files", "-z", *words]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in sorted(set(listed.split("\0"))) if name]
    return [path for path in paths if path.is_file()]
