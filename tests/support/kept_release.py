"""The release before this one, and what it left behind, for tests of upgrades and of going back.

Built from its commit by its own `tools/keep_release.py`, once per machine (25 s), outside the clone.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from git_clone import require_clone

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "c50dc9b2cab2d9d78516f7ce03774a3fe86db58d"
"""Of the newest release; while none is out, of a state of 0.2.0. Raised with each release."""
LEFT = "tests/fixtures/release-0.2.0"
"""Where that commit's tool writes."""
TEXT_TIME_NS = 1_700_000_000_000_000_000
"""Modification time of the dataset's text, which its record holds."""
TIMEOUT_S = 300


@dataclass(frozen=True)
class KeptRelease:
    """A release's wheel, its CRD, a job with its frozen ConfigMap, a killed run and a dataset."""

    folder: Path

    @property
    def wheel(self) -> Path:
        (found,) = self.folder.glob("*.whl")
        return found

    @property
    def run(self) -> Path:
        """The output folder of a run of two phases, killed after its first checkpoint."""
        return self.folder / "run"

    @property
    def dataset(self) -> Path:
        """A dataset in ``data`` and the plain text that it was made from in ``text``."""
        return self.folder / "dataset"

    @property
    def losses(self) -> Path:
        """What the killed run would have gone on to: stage, step and loss of each step."""
        return self.folder / "losses.json"

    def manifest(self, name: str) -> dict[str, Any]:
        """Return ``crd``, ``job`` (as the API server holds it, without a status) or its ``frozen-configmap``."""
        document: dict[str, Any] = yaml.safe_load((self.folder / f"{name}.yaml").read_text())
        return document


@functools.cache
def release_before() -> KeptRelease:
    """Return it, built if the cache lacks it. Skips the test where git or the commit is missing."""
    require_clone("which holds the release before")
    if _git("cat-file", "-e", f"{COMMIT}^{{commit}}").returncode:
        pytest.skip("requires history: this clone is shallow")
    # What it builds depends on the packages that it runs with.
    key = hashlib.sha256((ROOT / "requirements.lock").read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bert-operator"
    folder = cache / f"release-{COMMIT}-{key}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "release.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _build(folder)
    return KeptRelease(folder)


def _build(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        tree = Path(scratch) / "tree"
        tree.mkdir()
        archive = _git("archive", COMMIT)
        subprocess.run(["tar", "-x"], cwd=tree, input=archive.stdout, check=True)
        own = {"PYTHONPATH": os.pathsep.join(str(tree / part) for part in ("operator", "trainer"))}
        command = [sys.executable, "tools/keep_release.py"]
        done = subprocess.run(
            command, cwd=tree, env={**os.environ, **own}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{COMMIT}: {' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        (tree / LEFT).rename(folder)


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-c", "safe.directory=*", "-C", str(ROOT), *words], capture_output=True, check=False)
