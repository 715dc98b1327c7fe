"""The files of a run's ranks have a bound, and what is kept is the newest. Inputs: lines; observed: files."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_trainer.pod.rank_logs import MAX_BYTES, RankLogFiles


def numbered(first: int, last: int) -> bytes:
    """Return the lines with these numbers."""
    return b"".join(f"{number:09d}\n".encode() for number in range(first, last + 1))


def files(root: Path, *, attempt: int = 1, ranks: int = 1, max_bytes: int = MAX_BYTES) -> RankLogFiles:
    environment = {"BERT_LOG_FOLDER": str(root), "BERT_ATTEMPT": str(attempt)}
    return RankLogFiles(environment, ranks=ranks, max_bytes=max_bytes)


def write(logs: RankLogFiles, first: int, last: int, rank: int = 0) -> None:
    for number in range(first, last + 1):
        logs.append(rank, numbered(number, number))
    logs.close()


def total(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def test_of_a_rank_that_prints_without_end_the_newest_lines_are_kept(tmp_path: Path) -> None:
    # Half of 400 is the attempt's, and a file has half of that: 10 lines.
    write(files(tmp_path, max_bytes=400), 1, 1005)
    folder = tmp_path / "attempt-1"
    assert (folder / "rank-0.log").read_bytes() == numbered(1001, 1005)
    assert (folder / "rank-0.log.1").read_bytes() == numbered(991, 1000)


def test_ranks_share_alike_and_stay_within_the_bound(tmp_path: Path) -> None:
    logs = files(tmp_path, ranks=4, max_bytes=800)
    for rank in range(4):
        write(logs, 1, 100, rank)
        assert (tmp_path / f"attempt-1/rank-{rank}.log").read_bytes() == numbered(96, 100)
    assert total(tmp_path) == 400


def test_ranks_that_a_program_pretends_get_no_files(tmp_path: Path) -> None:
    logs = files(tmp_path, ranks=2, max_bytes=800)
    for rank in (0, 1, 2, 99_999, -1):
        write(logs, 1, 1, rank)
    assert sorted(path.name for path in (tmp_path / "attempt-1").iterdir()) == ["rank-0.log", "rank-1.log"]


def test_of_a_line_that_is_longer_than_a_file_the_end_is_kept(tmp_path: Path) -> None:
    logs = files(tmp_path, max_bytes=40)
    logs.append(0, b"x" * 100 + b"the end.\n")
    logs.close()
    assert (tmp_path / "attempt-1/rank-0.log").read_bytes() == b"xthe end.\n"


def test_an_attempt_that_goes_on_counts_what_is_there(tmp_path: Path) -> None:
    write(files(tmp_path, max_bytes=400), 1, 7)
    write(files(tmp_path, max_bytes=400), 8, 12)
    assert (tmp_path / "attempt-1/rank-0.log").read_bytes() == numbered(11, 12)
    assert (tmp_path / "attempt-1/rank-0.log.1").read_bytes() == numbered(1, 10)


def test_the_oldest_attempts_go_by_number_and_the_bound_holds(tmp_path: Path) -> None:
    for attempt in range(1, 13):
        write(files(tmp_path, attempt=attempt, max_bytes=400), 1, 8)
        assert total(tmp_path) <= 400
    # 200 bytes of earlier attempts are two of 80; by name 9 would come after 12.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempt-10", "attempt-11", "attempt-12"]


def test_what_is_no_attempt_is_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_bytes(b"x" * 5000)
    root = tmp_path / "logs"
    root.mkdir()
    (root / "attempt-0").symlink_to(elsewhere)
    (root / "notes").write_bytes(b"x" * 5000)
    write(files(root, max_bytes=400), 1, 1)
    assert sorted(path.name for path in root.iterdir()) == ["attempt-0", "attempt-1", "notes"]
    assert (elsewhere / "mine").exists()


def test_a_log_folder_that_cannot_be_written_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    logs = files(tmp_path / "file")
    logs.append(0, b"a\n")
    logs.append(0, b"b\n")
    message = capsys.readouterr().err
    assert message.count("no more log files are written (Not a directory)") == 1
