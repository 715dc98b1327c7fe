"""A checkpoint's manifest with its own sum, as whoever writes one by hand has to write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bert_trainer.checkpoints.checkpoint import MANIFEST_FILE, OWN_SUM_KEY, manifest_sum


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """Return it without its sum."""
    manifest: dict[str, Any] = json.loads((checkpoint / MANIFEST_FILE).read_bytes())
    manifest.pop(OWN_SUM_KEY, None)
    return manifest


def write_manifest(checkpoint: Path, manifest: dict[str, Any]) -> None:
    """Write it with its sum."""
    text = json.dumps({**manifest, OWN_SUM_KEY: manifest_sum(manifest)})
    (checkpoint / MANIFEST_FILE).write_text(text)
