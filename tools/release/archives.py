"""Archives that come out the same every time: sorted, owned by root, of one time, without a time of packing."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path


def write_archive(target: Path, files: Mapping[str, bytes], seconds: int) -> None:
    """Write a .tar.gz.

    files: by path in the archive.
    seconds: Unix time of every file.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, content in sorted(files.items()):
            tar.addfile(_member(path, len(content), seconds), io.BytesIO(content))
    # Level 9, no name: other levels and headers give other bytes.
    target.write_bytes(gzip.compress(buffer.getvalue(), 9, mtime=0))


def write_layout_archive(target: Path, files: Mapping[str, Path | bytes], seconds: int) -> None:
    """Write a .tar of an image layout. files: by path in it, their bytes or where they lie (layers are large)."""
    with tarfile.open(target, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, content in sorted(files.items()):
            if isinstance(content, bytes):
                tar.addfile(_member(path, len(content), seconds), io.BytesIO(content))
            else:
                with open(content, "rb") as stream:
                    tar.addfile(_member(path, content.stat().st_size, seconds), stream)


def _member(path: str, size: int, seconds: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.size, member.mtime, member.mode = size, seconds, 0o644
    return member


def read_archive(path: Path) -> dict[str, bytes]:
    """Return the files of a .tar.gz."""
    with tarfile.open(path) as tar:
        members = [member for member in tar if member.isfile()]
        streams = {member.name: tar.extractfile(member) for member in members}
        return {name: stream.read() for name, stream in streams.items() if stream is not None}
