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
