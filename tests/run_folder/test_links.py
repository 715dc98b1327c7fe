"""Nothing is written through links that others have put into a folder, and nobody can guess a partial file's name.

Inputs: a folder with links, and, as root, links of another user. Observed: what the links lead to, errors, names.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bert_trainer.checkpoints.store import CHECKPOINTS_FOLDER
from bert_trainer.checkpoints.weights_folder import restore_folder, swap_folder
from bert_trainer.dataset.downloads import transfer
from bert_trainer.dataset.shards import make_shard_folder
from bert_trainer.errors import InputError
from bert_trainer.output.run_folder import RunFolder
from bert_trainer.pod.rank_logs import RankLogFiles
from bert_trainer.system import atomic_files
from bert_trainer.system.atomic_files import (
    create_partial,
    disk_errors,
    open_no_link,
    refuse_others_links,
    remove_partial_files,
    replaced_atomically,
    write_atomically,
)
from bert_trainer.system.folder_lock import exclusive
from bert_trainer.training.finetuning.stage_end import PREDICTIONS_FOLDER
from bert_trainer.training.profiling import FOLDER as PROFILE_FOLDER
from bert_trainer.training.start_weights import FINETUNE_FOLDER, start_folder
from tiny_finetune import finetune_stage
from tiny_run import pretrain_stage, run_config

OTHER_UID = 12345

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="requires root: a link of another user")


@pytest.fixture
def prey(tmp_path: Path) -> Path:
    """What somebody wants to have overwritten: it is writable to us and not to them."""
    path = tmp_path / "prey"
    path.write_text("kept")
    return path


def test_two_partial_files_of_one_file_share_no_name(tmp_path: Path) -> None:
    names = {create_partial(tmp_path / "report.json").name for _ in range(50)}
    assert len(names) == 50
    assert all(re.fullmatch(r"\.report\.json\.[0-9a-f]{16}\.partial", name) for name in names)


def test_a_partial_file_is_made_anew_even_where_its_name_is_guessed(
    tmp_path: Path, prey: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_files, "random_suffix", lambda: "0123456789abcdef")
    (tmp_path / ".report.json.0123456789abcdef.partial").symlink_to(prey)
    with pytest.raises(InputError, match=r"report\.json: cannot be written"):
        write_atomically(tmp_path / "report.json", b"{}")
    assert prey.read_text() == "kept"
    assert not (tmp_path / "report.json").exists()


def test_a_file_replaces_a_link_and_not_what_it_leads_to(tmp_path: Path, prey: Path) -> None:
    (tmp_path / "report.json").symlink_to(prey)
    write_atomically(tmp_path / "report.json", b"{}")
    assert prey.read_text() == "kept"
    assert not (tmp_path / "report.json").is_symlink()
    assert (tmp_path / "report.json").read_bytes() == b"{}"


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), replaced_atomically(tmp_path / "report.json"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    ours = create_partial(tmp_path / "report.json")
    before = tmp_path / ".report.json.7.partial"
    others = [tmp_path / ".mine.partial", tmp_path / ".notes.zzz.partial"]
    for path in (before, *others):
        path.touch()
    remove_partial_files(tmp_path)
    assert not ours.exists()
    assert not before.exists(), "as the release before named them"
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_nothing_is_appended_through_a_link(tmp_path: Path, prey: Path) -> None:
    link = tmp_path / "metrics.jsonl"
    link.symlink_to(prey)
    with pytest.raises(InputError, match=r"metrics\.jsonl: got a symbolic link"), disk_errors(link):
        open_no_link(link, "a")
    assert prey.read_text() == "kept"


def test_a_lock_empties_no_file_that_a_link_leads_to(tmp_path: Path, prey: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / ".lock").symlink_to(prey)
    with pytest.raises(InputError, match="symbolic link"), exclusive(folder):
        pass
    assert prey.read_text() == "kept"


def test_a_log_of_a_rank_follows_no_link(tmp_path: Path, prey: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "logs" / "attempt-1"
    folder.mkdir(parents=True)
    (folder / "rank-0.log").symlink_to(prey)
    files = RankLogFiles({"BERT_LOG_FOLDER": str(tmp_path / "logs")})
    files.append(0, b"hello\n")
    files.close()
    assert prey.read_text() == "kept"
    assert "no more log files are written" in capsys.readouterr().err


@pytest.mark.parametrize("link", ["logs", "logs/attempt-2"])
def test_logs_of_ranks_follow_no_link_to_a_folder(
    tmp_path: Path, link: str, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    for name in ("attempt-1", "attempt-2"):
        (elsewhere / name).mkdir(parents=True)
        (elsewhere / name / "theirs").write_bytes(b"x" * 5000)
    (tmp_path / "out" / link).parent.mkdir(parents=True)
    (tmp_path / "out" / link).symlink_to(elsewhere)
    environment = {"BERT_LOG_FOLDER": str(tmp_path / "out/logs"), "BERT_ATTEMPT": "2"}
    files = RankLogFiles(environment, max_bytes=400)
    files.append(0, b"hello\n")
    files.append(0, b"hello\n")
    files.close()
    found = sorted(str(path.relative_to(elsewhere)) for path in elsewhere.rglob("*"))
    assert found == ["attempt-1", "attempt-1/theirs", "attempt-2", "attempt-2/theirs"]
    said = capsys.readouterr().err
    assert said.count("no more log files are written") == 1
    assert "is a symbolic link" in said


def opens_at_once(path: Path) -> str:
    """Return what a process that opens a path says; it is ended if it waits."""
    program = (
        "import sys, pathlib; from bert_trainer.system.atomic_files import disk_errors, open_no_link\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "try:\n  with disk_errors(path): open_no_link(path, 'ab')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    command = [sys.executable, "-c", program, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_nobody_waits_for_the_reader_of_a_fifo(tmp_path: Path) -> None:
    fifo = tmp_path / "metrics.jsonl"
    os.mkfifo(fifo)
    assert opens_at_once(fifo).startswith(f"InputError {fifo}: cannot be written (a FIFO, a device or a socket")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert opens_at_once(fifo).startswith(f"InputError {fifo}: cannot be written (a FIFO, a device or a socket")
    finally:
        os.close(reader)


def test_the_part_of_a_download_is_no_link(tmp_path: Path, prey: Path) -> None:
    (tmp_path / ".file.bin.partial").symlink_to(prey)
    (tmp_path / ".file.bin.0123456789abcdef.partial").symlink_to(prey)
    with transfer._Partial(tmp_path / "file.bin").open() as stream:
        stream.write(b"content")
    assert prey.read_text() == "kept"


def test_a_folder_that_is_swapped_is_written_where_nobody_waits(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in (".best.aside", ".best.before"):
        (tmp_path / name).symlink_to(elsewhere)
    restore_folder(tmp_path / "best")
    assert not (tmp_path / "best").exists(), "a link is no earlier version of ours"
    swap_folder(
        tmp_path / "best", lambda staging: write_atomically(staging / "weights", b"1"), before_commit=lambda: None
    )
    assert (tmp_path / "best/weights").read_bytes() == b"1"
    assert list(elsewhere.iterdir()) == []


def link_of_another(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir(exist_ok=True)
    path.symlink_to(target)
    os.lchown(path, OTHER_UID, OTHER_UID)


def claim(output: Path, **changes: object) -> RunFolder:
    stages = [pretrain_stage(), finetune_stage(output.parent / "task", "stars")]
    return RunFolder.claim(run_config(output, output.parent / "data", stages=stages, **changes), attempt=1)


@as_root
@pytest.mark.parametrize(
    "name",
    [
        CHECKPOINTS_FOLDER,
        f"{CHECKPOINTS_FOLDER}/refused",
        FINETUNE_FOLDER,
        start_folder(Path()).as_posix(),
        f"{FINETUNE_FOLDER}/stars",
        f"{FINETUNE_FOLDER}/stars/{PREDICTIONS_FOLDER}",
        PROFILE_FOLDER,
        f"{PROFILE_FOLDER}/phase1-steps-10-12",
        *("autotune", "export", "logs", "previous", "tensorboard"),
    ],
)
def test_a_link_of_another_user_where_a_run_writes_is_refused(tmp_path: Path, name: str) -> None:
    output = tmp_path / "out"
    link_of_another(output / name, tmp_path / "elsewhere")
    with pytest.raises(InputError, match=rf"{name}: got a symbolic link of uid {OTHER_UID}; allowed: "):
        claim(output)
    assert not (output / "run.json").exists()


@as_root
def test_a_link_of_another_user_that_nothing_is_written_through_fails_no_run(tmp_path: Path) -> None:
    output = tmp_path / "out"
    claim(output)
    for name in ("latest", "checkpoints/latest", "finetune/latest", "previous/best", "profile/mine"):
        link_of_another(output / name, tmp_path / "elsewhere")
    claim(output).check_fence()


@as_root
def test_an_earlier_run_is_not_moved_through_a_link_of_another_user(tmp_path: Path) -> None:
    output, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    claim(output)
    link_of_another(output / "previous/001", elsewhere)
    with pytest.raises(InputError, match=rf"001: got a symbolic link of uid {OTHER_UID}; allowed: "):
        claim(output, job={"name": "tiny", "uid": "another"}, if_exists="New")
    assert list(elsewhere.iterdir()) == []
    assert (output / "run.json").exists()


@as_root
def test_shards_are_not_written_through_a_link_of_another_user(tmp_path: Path) -> None:
    link_of_another(tmp_path / "data/seq_len_128_max_pred_20", tmp_path / "elsewhere")
    with pytest.raises(InputError, match=rf"pred_20: got a symbolic link of uid {OTHER_UID}; allowed: "):
        make_shard_folder(tmp_path / "data/seq_len_128_max_pred_20", root=tmp_path / "data")
    make_shard_folder(tmp_path / "data/seq_len_512_max_pred_80", root=tmp_path / "data")
    with exclusive(tmp_path / "data"):
        pass


@as_root
@pytest.mark.parametrize("of_folder", [False, True], ids=["our-own", "the-folders-owners"])
def test_links_of_the_user_and_of_the_folders_owner_are_followed(tmp_path: Path, *, of_folder: bool) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "checkpoints").symlink_to(tmp_path)
    if of_folder:
        for path in (folder, folder / "checkpoints"):
            os.lchown(path, OTHER_UID, OTHER_UID)
    refuse_others_links(folder, [folder / "checkpoints"])
