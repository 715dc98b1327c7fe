"""What the operator writes on this machine goes through no link that somebody has put there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bert_operator import files
from bert_operator.api.schema.status import JobStatus
from bert_operator.client.job_folder import JobFolder
from bert_operator.client.local_client import LocalClient
from bert_operator.errors import OperatorError
from bert_operator.files import open_no_link, replace_text
from bert_operator.local.status_file import StatusFile
from sample_job import sample_job


@pytest.fixture
def prey(tmp_path: Path) -> Path:
    """What somebody wants to have overwritten."""
    path = tmp_path / "prey"
    path.write_text("kept")
    return path


def test_a_status_and_a_job_s_folder_are_written_beside_links_that_lie_in_wait(tmp_path: Path, prey: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    for name in ("status.json", "run.json"):
        (folder / name).symlink_to(prey)
        (folder / f"{name}.new").symlink_to(prey)
    StatusFile(folder / "status.json", sample_job(), "uid", tmp_path).write(JobStatus(phase="Running"))
    JobFolder(folder).mark(suspend=True)
    assert prey.read_text() == "kept"
    assert JobFolder(folder).run == {"suspend": True}
    assert JobFolder(folder).status["status"]["phase"] == "Running"
    assert sorted(path.name for path in folder.iterdir() if not path.is_symlink()) == ["run.json", "status.json"]


def test_a_file_is_made_anew_even_where_its_name_is_guessed(
    tmp_path: Path, prey: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: names.append("0" * 2 * size) or names[-1])
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


@pytest.mark.parametrize("mode", ["wb", "ab", "a"])
def test_a_log_and_a_lock_are_no_links(tmp_path: Path, prey: Path, mode: str) -> None:
    (tmp_path / "log").symlink_to(prey)
    with pytest.raises(OSError, match="symbolic links"), open_no_link(tmp_path / "log", mode):
        pass
    assert prey.read_text() == "kept"


def test_a_lock_that_is_a_link_is_an_error_of_ours_and_hides_no_other_job(tmp_path: Path, prey: Path) -> None:
    for name in ("linked", "other"):
        JobFolder(tmp_path / name).path.mkdir()
        replace_text(tmp_path / name / "run.json", "{}")
        replace_text(tmp_path / name / "manifest.json", f'{{"metadata": {{"name": "{name}"}}}}')
    (tmp_path / "linked" / "lock").symlink_to(prey)
    folder = JobFolder(tmp_path / "linked")
    with pytest.raises(OperatorError, match=r"linked/lock: got a symbolic link; allowed: .*\nhint: "):
        _ = folder.is_running
    with pytest.raises(OperatorError, match=r"linked/lock: got a symbolic link"):
        folder.start({}, cwd=str(tmp_path), options=(), goes_on=True)
    linked, other = LocalClient(tmp_path).jobs()
    assert (linked.name, linked.phase, linked.reason) == ("linked", "Pending", "FolderUnusable")
    assert (other.name, other.reason) == ("other", "ProcessGone")


def test_a_log_that_is_a_link_is_neither_written_nor_read_through(tmp_path: Path, prey: Path) -> None:
    (tmp_path / "log").symlink_to(prey)
    with pytest.raises(OperatorError, match=r"log: got a symbolic link; allowed: "):
        JobFolder(tmp_path).start({"spec": {"output": {}}}, cwd=str(tmp_path), options=(), goes_on=True)
    assert prey.read_text() == "kept"
    with pytest.raises(OperatorError, match=r"log: got a symbolic link; allowed: "):
        next(JobFolder(tmp_path).lines())
