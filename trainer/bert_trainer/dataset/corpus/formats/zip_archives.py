"""Files inside zip archives, under paths like ``books.zip/austen/emma.txt``; nothing is unpacked to disk.

Members are read in the order of their names. What cannot be read within bounded memory, or not without a key, is
refused. Format: PKWARE's APPNOTE.TXT.
"""

from __future__ import annotations

import struct
import zipfile
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO

from bert_job.foreign_text import printable
from bert_trainer.errors import InputError

_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
"""Of the first member, or of the end of an archive without any."""
_MAX_DIRECTORY_BYTES = 16 << 20
"""Of the list of members, which Python reads whole: some 200,000 of them, in 150 MB of memory."""
_END = b"PK\x05\x06"
_END_64 = b"PK\x06\x06"
_END_BYTES = (1 << 16) + 22 + 20 + 56
"""The ends of both kinds, with the longest comment."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Of the others Python decompresses a block whole, whatever it grows to."""
_ENCRYPTED = 1
_DOCUMENTS = {
    "[Content_Types].xml": "a Word, Excel or PowerPoint document",
    "mimetype": "an EPUB book or an OpenDocument text",
    "META-INF/MANIFEST.MF": "a Java archive",
}
"""Members that only archives of other formats have."""


def is_zip(path: Path) -> bool:
    """Return whether a file is a zip archive, by its first bytes. Raises OSError where it cannot be read."""
    with path.open("rb") as file:
        return file.read(4) in _MAGIC


def list_members(path: Path) -> list[Path]:
    """Return the paths of an archive's files in the order of their names, without hidden ones.

    Raises:
        InputError: the archive is damaged, is a document of another format, has too many members, or one that is
            encrypted, compressed otherwise than by deflate, or named to lie outside of it.
    """
    archive = _open_archive(path)
    for name, what in _DOCUMENTS.items():
        if name in archive.NameToInfo:
            raise InputError(
                f"{printable(path)}: got {what}, by the file {name} in it; allowed: an archive of text files",
                hint=f"take its text out: pandoc --to plain --output text.txt {printable(path)}",
            )
    members = []
    for info in archive.infolist():
        parts = PurePosixPath(info.filename).parts
        if info.is_dir() or any(part.startswith(".") and part != ".." for part in parts) or parts[:1] == ("__MACOSX",):
            continue
        _check(path, info, parts)
        members.append(path / info.filename)
    return sorted(set(members), key=lambda member: member.relative_to(path).as_posix())


def find_archive(path: Path) -> tuple[Path, str] | None:
    """Return the archive that a path leads into, and the member's name; None for the path of a file."""
    if path.exists():
        return None
    archive = next((parent for parent in path.parents if parent.is_file()), None)
    return None if archive is None else (archive, path.relative_to(archive).as_posix())


def open_member(archive: Path, name: str) -> IO[bytes]:
    """Open a member for reading.

    Raises:
        InputError: as ``list_members``, or it has no such member.
        zipfile.BadZipFile, zlib.error, EOFError: it is damaged; also while it is read.
    """
    return _open_archive(archive).open(_member(archive, name))


def member_bytes(archive: Path, name: str) -> int:
    """Return the size of a member's content; errors as ``open_member``."""
    return _member(archive, name).file_size


def _member(archive: Path, name: str) -> zipfile.ZipInfo:
    for info in _by_name(archive).get(name, ()):
        return info
    raise InputError(f"{printable(archive)}: has no file {printable(name)}", hint="it was replaced while it was read")


def _by_name(archive: Path) -> dict[str, list[zipfile.ZipInfo]]:
    status = archive.stat()
    return _names(archive, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1)
def _names(path: Path, size: int, modified_ns: int) -> dict[str, list[zipfile.ZipInfo]]:
    names: dict[str, list[zipfile.ZipInfo]] = {}
    for info in _read_archive(path, size, modified_ns).infolist():
        names.setdefault(PurePosixPath(info.filename).as_posix(), []).append(info)
    return names


def _open_archive(path: Path) -> zipfile.ZipFile:
    status = path.stat()
    return _read_archive(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1)
def _read_archive(path: Path, size: int, modified_ns: int) -> zipfile.ZipFile:
    """Read the list of members once for all of them. size, modified_ns: make a replaced archive miss the cache."""
    try:
        _check_directory(path, size)
        archive = zipfile.ZipFile(path)
        # What stands before the archive shifts every offset; a damaged end shifts them to before the file.
        if any(info.header_offset < 0 for info in archive.infolist()):
            raise zipfile.BadZipFile("its list of members is not where its end says")
        return archive
    except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError) as error:
        raise InputError(
            f"{printable(path)}: the zip archive is damaged or cut off ({error})",
            hint="transfer it again, to its end; unzip -t says whether it is whole",
        ) from error


def _check_directory(path: Path, size: int) -> None:
    with path.open("rb") as file:
        file.seek(max(0, size - _END_BYTES))
        tail = file.read()
    at, at_64 = tail.rfind(_END), tail.rfind(_END_64)
    found = [struct.unpack_from("<L", tail, at + 12)[0]] if at >= 0 and len(tail) >= at + 22 else []
    found += [struct.unpack_from("<Q", tail, at_64 + 40)[0]] if at_64 >= 0 and len(tail) >= at_64 + 48 else []
    # All ones: the other record has the number.
    if any(number > _MAX_DIRECTORY_BYTES for number in found if number != 0xFFFFFFFF):
        raise InputError(
            f"{printable(path)}: got a list of members of {max(found) >> 20} MiB; allowed: at most "
            f"{_MAX_DIRECTORY_BYTES >> 20} MiB, some 200,000 files",
            hint=f"unpack it, and name the folder: unzip {printable(path)} -d text",
        )


def _check(path: Path, info: zipfile.ZipInfo, parts: tuple[str, ...]) -> None:
    got = ""
    if not parts or ".." in parts or info.filename.startswith("/") or "\\" in info.filename:
        got = "a name that leads out of the archive"
    elif info.flag_bits & _ENCRYPTED:
        got = "an encrypted file"
    elif info.compress_type not in _METHODS:
        got = f"compression method {info.compress_type}"
    if got:
        raise InputError(
            f"{printable(path)}: the file {printable(info.filename)} in it has {got}; allowed: files that are "
            "stored or deflated, without a key, below the archive",
            hint=f"unpack it, and name the folder: unzip {printable(path)} -d text",
        )
