"""Where a program is missing, tests that need it are skipped and name it; they do not fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What every Linux has, and nothing of OpenSSH or git.
PROGRAMS = ("sh", "true", "unshare", "mount", "env")
STOPS = "tests/pod/test_early_stop.py::test_a_worker_stops_at_any_moment"
RELEASES = "tests/packaging/test_parts.py::test_a_release_is_built_from_files_with_the_rights_of_the_usual_umask"


@pytest.mark.skipif(os.geteuid() != 0, reason="requires root: others may make no process namespaces")
def test_tests_that_need_openssh_or_git_are_skipped_without(tmp_path: Path) -> None:
    for name in PROGRAMS:
        (tmp_path / name).symlink_to(shutil.which(name) or pytest.skip(f"requires {name}"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "-rs", STOPS, RELEASES],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"requires ssh, ssh-keygen", done.stdout), done.stdout
    assert re.search(r"requires git", done.stdout), done.stdout
    assert "3 skipped" in done.stdout
