"""Image layouts of a few files, made in a test."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path


def make_layer(files: Iterable[tuple[str, bytes | None]], time_s: int = 100, mode: int = 0o644) -> bytes:
    """Return a layer. files: paths with their bytes; no bytes: a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in files:
            member = tarfile.TarInfo(path)
            member.type = tarfile.REGTYPE if content is not None else tarfile.DIRTYPE
            member.size, member.mtime, member.mode = len(content or b""), time_s, mode
            tar.addfile(member, io.BytesIO(content or b""))
    return buffer.getvalue()


def write_layout(folder: Path, *layers: bytes, environment: tuple[str, ...] = ("A=1",)) -> Path:
    """Write a layout of one image, its layers from bottom to top, and return its folder."""

    def keep(content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (folder / "blobs/sha256" / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    (folder / "blobs/sha256").mkdir(parents=True)
    config = keep(json.dumps({"config": {"Env": list(environment)}}).encode())
    manifest = keep(json.dumps({"config": config, "layers": [keep(layer) for layer in layers]}).encode())
    (folder / "index.json").write_text(json.dumps({"manifests": [manifest]}))
    return folder
