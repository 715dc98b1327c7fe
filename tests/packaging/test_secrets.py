"""make secrets finds what nobody should commit: the target looks at every file, these tests plant some."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from git_clone import require_clone

ROOT = Path(__file__).parents[2]
BASELINE = ROOT / ".secrets.baseline"


@pytest.fixture(autouse=True)
def _clone() -> None:
    require_clone("which detect-secrets asks git about")


def scan(*files: Path) -> subprocess.CompletedProcess[str]:
    hook = Path(sys.executable).with_name("detect-secrets-hook")
    return subprocess.run([hook, "--baseline", BASELINE, *files], capture_output=True, text=True, cwd=ROOT, timeout=50)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        # In two halves each: this file is scanned too.
        ("Private Key", "-----BEGIN " + "OPENSSH PRIVATE KEY-----"),
        ("AWS Access Key", "key: AKIA" + "2E0A8F3B244C9986"),
        ("GitHub Token", "ghp_" + "wWPw5k4aXcaT4fNP0UcnZwJUVFk6LO0pINUx"),
        ("Secret Keyword", "password" + ' = "correct horse battery"'),
    ],
)
def test_a_secret_is_found(tmp_path: Path, kind: str, text: str) -> None:
    file = tmp_path / "settings.py"
    file.write_text(f"{text}\n")
    found = scan(file)
    assert found.returncode == 1
    assert f"Secret Type: {kind}" in found.stdout


def test_what_is_none_passes(tmp_path: Path) -> None:
    file = tmp_path / "settings.py"
    file.write_text('path = "output/checkpoints"\n')
    assert scan(file).returncode == 0


def test_the_baseline_holds_words_of_tests_alone() -> None:
    results = json.loads(BASELINE.read_text())["results"]
    assert [file for file in results if not file.startswith("tests/")] == []
    # Whoever adds to it says here how many, and looks at each.
    assert sum(map(len, results.values())) == 7
