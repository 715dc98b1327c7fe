"""The files of a container image, read without unpacking it.

An image is an OCI image layout (a folder) or an archive of one (a tar). A later layer replaces files of an earlier one,
and its whiteouts delete them, as the OCI image specification 1.0 says ("Image Layer Filesystem Changeset"). Nothing is
written, and no path of the image is followed on this machine. Layers may be packed by gzip or not at all.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

NAME_IN_LAYOUT = "org.opencontainers.image.ref.name"
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "hard link",
}


class ImageError(Exception):
    """A path that holds no image, or not the one that was asked for."""


@dataclass(frozen=True)
class ImageFile:
    """One path of an image."""

    kind: str
    """file, folder, link, hard link or device."""
    mode: int
    owner: str
    """Numbers: user:group."""
    modified_s: int
    """Unix time."""
    size: int
    """Bytes."""
    sha256: str
    """Of a file's bytes; empty for everything else."""
    target: str
    """Of a link."""


@dataclass(frozen=True)
class Image:
    """What an image holds."""

    digest: str
    """Of its manifest, sha256:... ."""
    config: dict[str, Any]
    """Its configuration: environment, entry point, history, digests of its layers."""
    files: dict[str, ImageFile]
    """By path, without a leading slash."""
    contents: dict[str, bytes]
    """Of the files that the reader asked for."""


def read_image(path: Path, name: str = "", keep: Callable[[str], bool] = lambda _: False) -> Image:
    """Read an image.

    path: a layout's folder, or an archive of a layout.
    name: which image of the layout; empty where it holds a single one.
    keep: whether the bytes of the file with this path are wanted.

    Raises:
        ImageError: No image is there, or none of that name.
    """
    with _blobs(path) as open_blob:
        index = json.loads(_bytes(open_blob, "index.json"))
        entry = _choose(path, index["manifests"], name)
        manifest = json.loads(_bytes(open_blob, _place(entry["digest"])))
        config = json.loads(_bytes(open_blob, _place(manifest["config"]["digest"])))
        files: dict[str, ImageFile] = {}
        contents: dict[str, bytes] = {}
        for layer in manifest["layers"]:
            with open_blob(_place(layer["digest"])) as blob:
                _apply_layer(blob, files, contents, keep)
    return Image(entry["digest"], config, files, contents)


def _choose(path: Path, manifests: list[dict[str, Any]], name: str) -> dict[str, Any]:
    names = {manifest.get("annotations", {}).get(NAME_IN_LAYOUT, ""): manifest for manifest in manifests}
    if not name and len(manifests) == 1:
        return manifests[0]
    if name not in names:
        held = ", ".join(sorted(names))
        raise ImageError(f"{path}: got {name or 'no name'}; holds {held}; name one of them")
    return names[name]


def _place(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _bytes(open_blob: Callable[[str], IO[bytes]], place: str) -> bytes:
    with open_blob(place) as blob:
        return blob.read()


@contextmanager
def _blobs(path: Path) -> Iterator[Callable[[str], IO[bytes]]]:
    """Yield what opens a file of the layout."""
    if path.is_dir():
        if not (path / "index.json").is_file():
            raise ImageError(f"{path}: no index.json; allowed: an OCI image layout, or an archive of one")
        yield lambda place: open(path / place, "rb")  # noqa: SIM115 - whoever asked closes it
        return
    try:
        archive = tarfile.open(path)  # noqa: SIM115 - closed below
    except (OSError, tarfile.TarError) as error:
        raise ImageError(f"{path}: {error}; allowed: an OCI image layout, or an archive of one") from None
    with archive:
        members = set(archive.getnames())

        def open_member(place: str) -> IO[bytes]:
            name = next((name for name in (place, f"./{place}") if name in members), None)
            member = archive.extractfile(name) if name else None
            if member is None:
                raise ImageError(f"{path}: no {place}; allowed: an archive of an OCI image layout")
            return member

        yield open_member


def _apply_layer(
    blob: IO[bytes], files: dict[str, ImageFile], contents: dict[str, bytes], keep: Callable[[str], bool]
) -> None:
    added: set[str] = set()
    with tarfile.open(fileobj=blob) as layer:
        for member in layer:
            path = member.name.removeprefix("./").strip("/")
            folder, _, base = path.rpartition("/")
            if base == _OPAQUE:
                _forget(files, contents, folder, added, itself=False)
            elif base.startswith(_WHITEOUT):
                _forget(files, contents, f"{folder}/{base.removeprefix(_WHITEOUT)}".lstrip("/"), added, itself=True)
            elif path and path != ".":
                if not member.isdir():
                    _forget(files, contents, path, added, itself=True)
                added.add(path)
                files[path] = _describe(layer, member, contents, path if keep(path) else "")


def _forget(
    files: dict[str, ImageFile], contents: dict[str, bytes], path: str, kept: set[str], *, itself: bool
) -> None:
    """Delete what earlier layers put below a path; kept: what this layer has put there."""
    gone = [name for name in files if (itself and name == path) or name.startswith(f"{path}/" if path else "")]
    for name in gone:
        if name not in kept:
            del files[name]
            contents.pop(name, None)


def _describe(layer: tarfile.TarFile, member: tarfile.TarInfo, contents: dict[str, bytes], keep_as: str) -> ImageFile:
    sha256 = ""
    if member.isreg():
        stream = layer.extractfile(member)
        assert stream is not None, f"{member.name}: a regular file without content"
        digest, kept = hashlib.sha256(), []
        while block := stream.read(1 << 20):
            digest.update(block)
            if keep_as:
                kept.append(block)
        sha256 = digest.hexdigest()
        if keep_as:
            contents[keep_as] = b"".join(kept)
    return ImageFile(
        kind=_KINDS.get(member.type, "device"),
        mode=member.mode,
        owner=f"{member.uid}:{member.gid}",
        modified_s=int(member.mtime),
        size=member.size,
        sha256=sha256,
        target=member.linkname,
    )
