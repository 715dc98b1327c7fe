"""Nothing in a folder is skipped in silence: it ends a command that it may not be looked into; links are followed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
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


def test_a_linked_folder_is_read_once_and_a_loop_of_links_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.txt").write_text("Three here.\n\nFour here.\n")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("One here.\n\nTwo here.\n")
    (tmp_path / "text" / "loop").symlink_to(tmp_path / "text", target_is_directory=True)
    for name in ("one", "other"):
        (tmp_path / "text" / name).symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert main(["read", str(tmp_path / "text")]) == 0
    shown = capsys.readouterr().out
    assert "4 documents" in shown
    assert "one/b.txt" in shown
    assert "other/b.txt" not in shown


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


def test_a_folder_of_many_texts_is_told_of_in_a_few_lines(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number:02}.txt").write_text("One here.\n")
    command = [sys.executable, "-m", "bert_trainer.dataset", "read", str(tmp_path), "--documents", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout + done.stderr).count("lines are taken for sentences") == 4
    assert "47 more files: lines are taken for sentences" in done.stdout
