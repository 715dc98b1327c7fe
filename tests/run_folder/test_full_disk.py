"""Words about a disk that is full: which file, on which volume, what it needs where that is known, and what is free."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_trainer.errors import TrainerError
from bert_trainer.system.atomic_files import disk_errors, write_atomically

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is a mount point, with 2.5 MB free."""
    mount = tmp_path / "volume"
    mount.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == mount)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=2500, f_frsize=1000, f_blocks=9, f_files=0))
    return mount


def test_a_file_that_is_appended_to_is_told_with_its_volume_and_what_is_free(volume: Path) -> None:
    path = volume / "run" / "metrics.jsonl"  # its folder may be gone by then
    with pytest.raises(TrainerError) as told, disk_errors(path):
        raise FULL
    assert f"{path}: cannot be written, the disk is full" in told.value.message
    assert f"free space on the volume at {volume} (2.5 MB are free) or choose another folder" in str(told.value.hint)


def test_of_a_whole_file_what_it_needs_is_told_as_well(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, content: bytes) -> int:
        raise FULL

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(TrainerError) as told:
        write_atomically(volume / "predictions.tsv", bytes(3_200_000))
    assert "(3.2 MB at least are needed, 2.5 MB are free)" in str(told.value.hint)


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EFBIG])
def test_where_a_quota_or_the_size_of_a_file_is_the_bound_nothing_is_said_of_the_volume(
    volume: Path, number: int
) -> None:
    with pytest.raises(TrainerError) as told, disk_errors(volume / "shard.hdf5", needed_bytes=3_200_000):
        raise OSError(number, os.strerror(number))
    assert str(told.value.hint).startswith("free space or choose another folder")


def test_a_relative_path_and_a_link_are_told_with_the_volume_that_they_lead_to(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (volume / "run").mkdir()
    (tmp_path / "link").symlink_to(volume / "run")
    monkeypatch.chdir(volume / "run")
    monkeypatch.setattr(Path, "is_mount", lambda path: path in (volume, Path(".")))
    for path in (Path("metrics.jsonl"), tmp_path / "link" / "metrics.jsonl"):
        with pytest.raises(TrainerError) as told, disk_errors(path):
            raise FULL
        assert f"on the volume at {volume} (" in str(told.value.hint)


def test_a_volume_without_inodes_is_not_said_to_have_room(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(f_bavail=2500, f_frsize=1000, f_blocks=9, f_files=100, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda _: state)
    with pytest.raises(TrainerError) as told, disk_errors(volume / "metrics.jsonl"):
        raise FULL
    assert f"on the volume at {volume} (no more files are possible there)" in str(told.value.hint)


def test_a_file_system_that_does_not_tell_is_not_guessed_about(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=1, f_blocks=0, f_files=0))
    with pytest.raises(TrainerError) as told, disk_errors(volume / "ledger.jsonl"):
        raise FULL
    assert re.search(rf"on the volume at {volume} or choose", str(told.value.hint))


def test_a_volume_that_does_not_answer_keeps_no_error_from_being_told(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(_: object) -> bool:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(Path, "is_mount", stale)
    monkeypatch.setattr(os, "statvfs", stale)
    with pytest.raises(TrainerError, match="the disk is full") as told, disk_errors(volume / "ledger.jsonl"):
        raise FULL
    assert str(told.value.hint).startswith("free space or choose another folder")
