"""Unpacking fetched archives: beside the archive, whole or not at all, compared with published checksums."""

from __future__ import annotations

import shutil
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from bert_trainer.atomic_files import disk_errors
from bert_trainer.dataset.downloads.transfer import digest_file
from bert_trainer.errors import InputError


def unpack(archive: Path, members: Mapping[str, str]) -> list[Path]:
    """Unpack a zip file into its folder and return the files and folders that it holds at its top, or None of it.

    members: SHA-256 of files in it. What is there already is compared and kept.

    Raises:
        InputError: the archive is damaged, or a file differs from what was published.
        TrainerError: the disk is full.
    """
    work = archive.with_name(f".{archive.name}.unpacked")
    shutil.rmtree(work, ignore_errors=True)
    try:
        with disk_errors(archive.parent), zipfile.ZipFile(archive) as content:
            tops = sorted({Path(name).parts[0] for name in content.namelist() if Path(name).parts})
            if not all((archive.parent / top).exists() for top in tops):
                content.extractall(work)
                _compare(work, members, archive)
                for top in tops:
                    if not (archive.parent / top).exists():
                        (work / top).replace(archive.parent / top)
        _compare(archive.parent, members, archive)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(
            f"{archive}: not a whole zip file ({error})", hint=f"delete {archive} and fetch it again"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return [archive.parent / top for top in tops]


def _compare(folder: Path, members: Mapping[str, str], archive: Path) -> None:
    for name, published in members.items():
        path = folder / name
        if not path.is_file():
            raise InputError(
                f"{archive}: holds no {name}, or it was removed", hint=f"delete {path.parent} to unpack it again"
            )
        found = digest_file(path, "sha256")
        if found != published:
            raise InputError(
                f"{path}: has the SHA-256 {found}; published: {published}",
                hint=f"delete it and {archive}, and fetch it again",
            )
