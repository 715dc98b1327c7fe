"""What the release before this one left behind (tools/keep_release.py), for tests of upgrades and of going back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[1] / "fixtures/release-0.1.0"
"""Of the newest release that is out; moves on when the next one is."""

WHEEL = next(FOLDER.glob("*.whl"))
CRD = FOLDER / "crd.yaml"
RUN = FOLDER / "run"
"""The output folder of a run of two phases, killed after its first checkpoint."""
DATASET = FOLDER / "dataset"
"""A dataset in ``data`` and the plain text that it was made from in ``text``."""
TEXT_TIME_NS = 1_700_000_000_000_000_000
"""When that text was written last, which its record stands for and which no version control keeps."""


def read_manifest(name: str) -> dict[str, Any]:
    """Return ``job`` (as the API server holds it, without a status) or ``frozen-configmap`` of it."""
    document: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return document
