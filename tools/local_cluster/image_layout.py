"""The images that tools/images.sh built, made known to containerd without copying their layers.

containerd takes a blob that lies in its content store already, when a client offers one of the same digest and
length: layers are linked into the store, then offered. So importing 4 GB takes a second and no disk space. Only
manifest and configuration travel, in an archive. Format: the image layout of the OCI image specification, 1.0.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

NAME_IN_LAYOUT = "org.opencontainers.image.ref.name"
NAME_ON_NODE = "io.containerd.image.name"


class Ctr(Protocol):
    """Runs containerd's client."""

    def __call__(self, *words: str, stdin: Path | None = None) -> str:
        """words: of the command; stdin: a file that it reads."""


class ImageLayout:
    """A folder of images that share layers."""

    def __init__(self, folder: Path) -> None:
        """Folder: as tools/images.sh printed it."""
        self.folder = folder

    def import_into(self, store: Path, ctr: Ctr, name: str, name_on_node: str) -> None:
        """Make one image known to a containerd of this machine.

        store: the folder of its content store.
        """
        with self._held(), tempfile.TemporaryDirectory() as work:
            entry = self._find(name)
            manifest = json.loads(self._blob(entry["digest"]).read_text())
            archive = Path(work) / "image.tar"
            self._write_archive(archive, entry, manifest["config"], name_on_node)
            # First, for containerd deletes blobs that no image has asked for.
            ctr("images", "import", "--no-unpack", str(archive))
            for layer in manifest["layers"]:
                self._offer(store, ctr, layer)

    def _offer(self, store: Path, ctr: Ctr, layer: dict[str, Any]) -> None:
        source, digest = self._blob(layer["digest"]), layer["digest"]
        place = store / "blobs" / digest.replace(":", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            link_or_copy(source, place)
        size = str(layer["size"])
        ctr("content", "ingest", "--expected-digest", digest, "--expected-size", size, digest, stdin=source)

    def _write_archive(self, archive: Path, entry: dict[str, Any], config: dict[str, Any], name: str) -> None:
        index = {"schemaVersion": 2, "manifests": [{**entry, "annotations": {NAME_ON_NODE: name}}]}
        with tarfile.open(archive, "w") as tar:
            tar.add(self.folder / "oci-layout", "oci-layout")
            text = json.dumps(index).encode()
            member = tarfile.TarInfo("index.json")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
            for part in (entry, config):
                tar.add(self._blob(part["digest"]), f"blobs/{part['digest'].replace(':', '/')}")

    def _find(self, name: str) -> dict[str, Any]:
        entries: list[dict[str, Any]] = json.loads((self.folder / "index.json").read_text())["manifests"]
        found = {entry["annotations"][NAME_IN_LAYOUT]: entry for entry in entries}
        held = ", ".join(sorted(found))
        assert name in found, f"{self.folder}: got {name}; holds {held}; tools/images.sh {name} builds it"
        return found[name]

    def _blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "/")

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Keep tools/images.sh from deleting what is being read."""
        with open(self.folder.parent / "lock") as lock:
            # The lock of the script's flock(1), shared by readers; a library of locks has exclusive ones of its own.
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield


def link_or_copy(source: Path, place: Path) -> None:
    """Link where both lie in one file system, copy otherwise.

    Raises:
        FileExistsError: it is there already.
    """
    try:
        os.link(source, place)
    except FileExistsError:
        raise
    except OSError:
        partial = place.with_suffix(".partial")
        shutil.copy(source, partial)
        partial.rename(place)
