"""A volume that fails on purpose: one job's files do, and the others' do not."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from faulty_volume import FaultyVolume


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[FaultyVolume]:
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("requires root and /dev/fuse")
    (tmp_path / "mounted").mkdir()
    volume = FaultyVolume(tmp_path / "mounted", tmp_path / "behind")
    try:
        volume.start()
    except AssertionError as problem:
        pytest.skip(f"requires libfuse 3: {problem}")
    yield volume
    volume.stop()
    assert not (tmp_path / "mounted").is_mount()


def test_files_are_those_behind_it_with_owner_and_mode(volume: FaultyVolume) -> None:
    folder = volume.mounted / "job/checkpoints"
    folder.mkdir(parents=True)
    (folder / "a").write_text("one")
    with (folder / "a").open("a") as file:
        file.write(" two")
    (folder / "a").rename(folder / "b")
    (folder / "b").chmod(0o640)
    os.chown(folder / "b", 54321, 54321)
    found = volume.backing / "job/checkpoints/b"
    assert (found.read_text(), found.stat().st_mode & 0o777, found.stat().st_uid) == ("one two", 0o640, 54321)
    (folder / "b").unlink()
    folder.rmdir()
    assert [*(volume.backing / "job").iterdir()] == []


@pytest.mark.parametrize(("how", "number"), [("full", errno.ENOSPC), ("read-only", errno.EROFS)])
def test_trouble_meets_one_job_and_ends(volume: FaultyVolume, how: str, number: int) -> None:
    for name in ("mine", "other"):
        (volume.mounted / name).mkdir()
    with (volume.mounted / "mine/ledger").open("a", buffering=1) as opened_before:
        volume.set_trouble("mine", how)
        for attempt in (
            lambda: opened_before.write("line\n"),
            lambda: (volume.mounted / "mine/new").touch(),
            lambda: (volume.mounted / "mine/folder").mkdir(),
        ):
            with pytest.raises(OSError, match=re.escape(f"[Errno {number}]")):
                attempt()
        (volume.mounted / "other/new").write_text("passes")
        volume.set_trouble("mine", None)
    (volume.mounted / "mine/new").write_text("passes")


def test_a_full_volume_says_so_and_lets_files_be_deleted(volume: FaultyVolume) -> None:
    (volume.mounted / "mine").mkdir()
    (volume.mounted / "mine/old").write_text("x")
    volume.set_trouble("mine", "full")
    assert os.statvfs(volume.mounted).f_bavail == 0
    (volume.mounted / "mine/old").unlink()
    volume.set_trouble("mine", "read-only")
    (volume.backing / "mine/old").write_text("x")
    with pytest.raises(OSError, match="Read-only"):
        (volume.mounted / "mine/old").unlink()
