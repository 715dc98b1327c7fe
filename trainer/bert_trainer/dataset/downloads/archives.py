"""Unpacking fetched archives: atomically, beside the archive, compared with published checksums."""

from __future__ import annotations

import re
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from bert_trainer.dataset.downloads.transfer import Transfer
from bert_trainer.errors import InputError
from bert_trainer.system.atomic_files import disk_errors, random_suffix


def unpack(archive: Path, members: Mapping[str, str], transfer: Transfer) -> list[Path]:
    """Unpack a zip file into its folder and return the files and folders at its top level.

    Args:
        archive: The zip file.
        members: SHA-256 of files in it. What is there already is compared and kept.
        transfer: Its watcher gets the progress.

    Raises:
        InputError: the archive is damaged, or a file differs from what was published.
        TrainerError: the disk is full.
    """
    # Begun anew if a killed process left it: a file that was cut short in it looks complete.
    for left in archive.parent.glob(".*.unpacked"):
        if re.fullmatch(rf"\.{re.escape(archive.name)}(\.[0-9a-f]{{16}})?\.unpacked", left.name):
            shutil.rmtree(left, ignore_errors=True)
    work = archive.with_name(f".{archive.name}.{random_suffix()}.unpacked")
    try:
        with disk_errors(archive.parent), zipfile.ZipFile(archive) as content:
            tops = sorted({top for name in content.namelist() if (top := _top(name))})
            if not all((archive.parent / top).exists() for top in tops):
                # Into a folder of its own, renamed entry by entry: what stands under its name is complete.
                _extract(content, work, archive.name, transfer)
                _compare(work, members, archive, transfer)
                for top in tops:
                    if not (archive.parent / top).exists():
                        (work / top).replace(archive.parent / top)
        _compare(archive.parent, members, archive, transfer)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(
            f"{archive}: not a whole zip file ({error})", hint=f"delete {archive} and fetch it again"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return [archive.parent / top for top in tops]


def _extract(content: zipfile.ZipFile, folder: Path, name: str, transfer: Transfer) -> None:
    """Write all files of an archive below a folder; ``ZipFile.extract`` lets no name lead out of it (zip slip)."""
    members = content.infolist()
    transfer.watcher.begin(f"unpack {name}", sum(member.file_size for member in members), 0)
    for member in members:
        content.extract(member, folder)
        transfer.watcher.advance(member.file_size)
        transfer.check()


def _top(name: str) -> str:
    """Return the first part of the path that ``ZipFile.extract`` gives a member."""
    return next((part for part in name.split("/") if part not in ("", ".", "..")), "")


def _compare(folder: Path, members: Mapping[str, str], archive: Path, transfer: Transfer) -> None:
    for name, published in members.items():
        path = folder / name
        if not path.is_file():
            raise InputError(
                f"{archive}: the published member {name} is missing", hint=f"delete {path.parent} to unpack it again"
            )
        found = transfer.digest(path, "sha256")
        if found != published:
            raise InputError(
                f"{path}: has the SHA-256 {found}; published: {published}",
                hint=f"delete it and {archive}, and fetch it again",
            )
