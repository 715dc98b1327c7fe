"""What the operator writes on this machine goes through no link that somebody has put there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bert_operator.api.schema.status import JobStatus
from bert_operator.local import status_file
from bert_operator.local.status_file import StatusFile, replace_text
from sample_job import sample_job


@pytest.fixture
def prey(tmp_path: Path) -> Path:
    """What somebody wants to have overwritten."""
    path = tmp_path / "prey"
    path.write_text("kept")
    return path


def test_a_status_is_written_beside_links_that_lie_in_wait(tmp_path: Path, prey: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    for name in ("status.json", "status.json.new"):
        (folder / name).symlink_to(prey)
    StatusFile(folder / "status.json", sample_job(), "uid", tmp_path).write(JobStatus(phase="Running"))
    assert prey.read_text() == "kept"
    assert json.loads((folder / "status.json").read_text())["status"]["phase"] == "Running"
    assert [path.name for path in folder.iterdir() if not path.is_symlink()] == ["status.json"]


def test_a_file_is_made_anew_even_where_its_name_is_guessed(
    tmp_path: Path, prey: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    monkeypatch.setattr(status_file.secrets, "token_hex", lambda size: names.append("0" * 2 * size) or names[-1])
    (tmp_path / f".status.json.{'0' * 16}.partial").symlink_to(prey)
    with pytest.raises(FileExistsError):
        replace_text(tmp_path / "status.json", "{}")
    assert (prey.read_text(), names) == ("kept", ["0" * 16])


def test_others_may_read_it_as_the_umask_says_and_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace_text(tmp_path / "status.json", "{}")
    finally:
        os.umask(before)
    assert (tmp_path / "status.json").stat().st_mode & 0o777 == 0o640
    with pytest.raises(UnicodeEncodeError):
        replace_text(tmp_path / "status.json", "\ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]
    assert (tmp_path / "status.json").read_text() == "{}"
