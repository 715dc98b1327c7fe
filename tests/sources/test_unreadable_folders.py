"""A folder that may not be looked into ends a command: what is in there is never left out in silence."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from bert_trainer.dataset.__main__ import main


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Let a folder answer as one of another user; root, whom tests may run as, is let in everywhere."""

    def forbid(folder: Path) -> None:
        def refuse(listing: Callable[..., Any]) -> Callable[..., Any]:
            def list_folder(path: Any = ".") -> Any:
                if os.path.realpath(path) == os.path.realpath(folder):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
                return listing(path)

            return list_folder

        monkeypatch.setattr(os, "scandir", refuse(os.scandir))
        monkeypatch.setattr(os, "listdir", refuse(os.listdir))

    return forbid


@pytest.mark.parametrize(
    "command",
    [
        ["build", "--length", "32:5", "--output", "OUT", "--text", "HERE"],
        ["read", "HERE"],
        ["inspect", "HERE"],
        ["verify", "HERE"],
        ["convert", "HERE", "OUT", "--layout", "intel"],
        ["chop", "HERE/sub", "OUT", "--shards", "2"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_names_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], forbid: Callable[[Path], None], command: list[str]
) -> None:
    here = tmp_path / "here"
    (here / "sub").mkdir(parents=True)
    for name in ("a.txt", "a.hdf5", "sub/b.txt", "sub/b.hdf5"):
        (here / name).write_text("One here.\n\nTwo here.\n")
    forbid(here / "sub")
    words = [word.replace("HERE", str(here)).replace("OUT", str(tmp_path / "out")) for word in command]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert f"{here}/sub: cannot be listed (Permission denied)" in told
    assert "hint: check its owner and rights" in told


def test_the_system_s_folder_at_the_top_of_a_volume_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], forbid: Callable[[Path], None]
) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "a.txt").write_text("One here.\n\nTwo here.\n")
    forbid(tmp_path / "lost+found")
    assert main(["read", str(tmp_path)]) == 0
    assert "2 documents" in capsys.readouterr().out


def test_a_shard_of_another_user_is_not_called_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Unable to synchronously open file")

    (tmp_path / "part_0.hdf5").write_bytes(b"x")
    monkeypatch.setattr(h5py, "File", forbidden)
    assert main(["verify", str(tmp_path), "--processes", "1"]) == 1
    told = capsys.readouterr().out
    assert "part_0.hdf5: cannot be read (permission denied)" in told
    assert "damaged" not in told
    assert "delete" not in told
