"""Which records a launcher believes: those of its own job and attempt, however hostile the lines around them are.

BERT_TEST_RECORDS=100000 draws that many lines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pods
from bert_job.progress import format_line, parse_progress_line
from bert_trainer.pod.exit_codes import MAX_RECORD_BYTES, build_record, read_rank_record, render_record, write_record
from bert_trainer.pod.launcher_log import LauncherLog, RecordSource, read_record_source
from bert_trainer.pod.mpi import OPEN_MPI_5_TAG
from bert_trainer.pod.rank_output import Line, LineSplitter
from bert_trainer.pod.rendezvous import Rendezvous
from hostile_records import draw_endings, draw_lines

RECORDS = int(os.environ.get("BERT_TEST_RECORDS", "2000"))
OURS = RecordSource("uid-1", "2")
OWN = RecordSource("uid-1", "2", is_ours=False)


def read_log(source: RecordSource, *lines: str) -> LauncherLog:
    log = LauncherLog(source)
    for line in lines:
        log.note(Line(0, line))
    return log


def record(event: str, job: str = "uid-1", attempt: int = 2, **fields: str) -> str:
    return format_line({"event": event, **fields, "job": job, "attempt": attempt})


@pytest.mark.parametrize(("job", "attempt"), [("uid-2", 2), ("uid-1", 1), ("uid-1", 22), ("", 2)])
def test_a_record_of_another_job_or_attempt_is_ignored(job: str, attempt: int) -> None:
    for source in (OURS, OWN):
        log = read_log(
            source,
            record("checkpoint", job, attempt, stage="phase1", step="7", path="/elsewhere"),
            record("stopped", job, attempt, message="theirs"),
            record("progress", job, attempt),
        )
        assert (log.checkpoint, log.step, log.final_record) == (None, None, None)
        assert not log.ended_midway
        assert not log.has_stopped(3, stop_requested=True)


def test_a_record_of_this_attempt_is_believed() -> None:
    log = read_log(OURS, record("checkpoint", stage="phase1", step="7", path="/ours"), record("stopped", message="m"))
    assert (log.checkpoint, log.step, log.has_stopped(0, stop_requested=False)) == ("/ours", 7, True)


def test_a_program_of_others_that_ends_with_0_has_succeeded() -> None:
    log = read_log(OWN, record("progress", step="7"), record("stopped"))
    assert not log.has_stopped(0, stop_requested=False)
    assert not read_log(OWN, record("progress", step="7")).ended_midway
    # Asked to stop, or with another exit code, it means what ours means.
    assert log.has_stopped(0, stop_requested=True)
    assert log.has_stopped(3, stop_requested=False)


@pytest.mark.parametrize(
    ("program", "is_ours"),
    [
        (("bert-train", "--config", "x"), True),
        (("/opt/bin/bert-data", "build"), True),
        ((sys.executable, "-m", "bert_trainer.dataset", "build"), True),
        ((sys.executable, "-m"), False),
        (("python3", "train.py"), False),
        (("python3", "-m", "bert_trainers"), False),
    ],
)
def test_a_program_is_known_by_its_name(program: tuple[str, ...], is_ours: bool, tmp_path: Path) -> None:
    config = tmp_path / "run.json"
    config.write_text('{"job": {"uid": "uid-1"}}')
    found = read_record_source(program, {"BERT_RUN_CONFIG": str(config), "BERT_ATTEMPT": "2"})
    assert found == RecordSource("uid-1", "2", is_ours)


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("text", ["", "{", "[" * 5000, "[]", '{"job": []}', '{"job": {"uid": 1}}', None])
def test_a_run_configuration_that_cannot_be_read_is_left_to_the_program(text: str | None, tmp_path: Path) -> None:
    config = tmp_path / "run.json"
    if text is not None:
        config.write_text(text)
    assert read_record_source(("x",), {"BERT_RUN_CONFIG": str(config)}) == RecordSource(None, "1", is_ours=False)


@pytest.mark.timeout(600)
def test_no_line_and_no_record_of_a_rank_raises(tmp_path: Path) -> None:
    left = tmp_path / "left.json"
    log, rendezvous = LauncherLog(OURS), Rendezvous(2, 1)
    for number, line in enumerate(draw_lines(RECORDS, seed=4)):
        log.note(Line(0, line))
        if number % 10:
            continue
        text = render_record(build_record(1, log, None, None))
        assert len(text.encode()) <= MAX_RECORD_BYTES
    for text in draw_endings(max(300, RECORDS // 10), seed=5):
        left.write_text(text, errors="surrogatepass")
        rendered = render_record(build_record(1, log, None, read_rank_record(left)))
        assert len(rendered.encode()) <= MAX_RECORD_BYTES
        assert json.loads(rendered)["exitCode"] == 1
    for many in ("9" * 5000, "-1", ""):
        for words in (f"rank rank={many} size=2 host=a", f"rank_ended rank=0 code={many}"):
            assert not rendezvous.take(f"bert-pod/1 event={words}{many}")


# Quadratic time would be an hour for these, and the test's deadline is a minute.
@pytest.mark.parametrize(
    "filler", ["a" * 65_536, 'a="' * 21_845, "a=1 " * 16_384, 'a="' + "\\" * 65_533, "[1," * 21_845]
)
def test_a_line_that_looks_like_a_record_costs_no_time(filler: str) -> None:
    log = LauncherLog(OURS)
    for _ in range(200):
        log.note(Line(0, f"bert-trainer/1 {filler}"))
    assert log.last_event is None
    LineSplitter(OPEN_MPI_5_TAG).feed(f"bert-trainer/1 {filler}\n")


def test_the_rest_of_a_very_long_line_is_its_rank_s() -> None:
    splitter = LineSplitter(OPEN_MPI_5_TAG)
    assert splitter.feed("[1,3]<stdout>: " + "x" * 60_000) == []
    lines = splitter.feed("PRTE has lost communication with a remote daemon.\n")
    assert [(line.rank, line.text[-7:]) for line in lines] == [(3, "daemon.")]
    assert splitter.feed("mpirun's own\n") == [Line(None, "mpirun's own")]
    assert splitter.feed(f"[1,{'9' * 5000}]<stdout>: x\n")[0].rank is None


def test_what_the_trainer_writes_is_text_whatever_files_are_called() -> None:
    line = format_line({"event": "failed", "message": "caf\udcff: cannot be read"})
    found = parse_progress_line(line)
    assert found is not None
    assert found.text("message") == "caf?: cannot be read"


@pytest.mark.parametrize("kind", ["folder", "pipe", "missing"])
def test_what_is_no_file_is_no_record(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "left.json"
    if kind != "missing":
        (os.mkdir if kind == "folder" else os.mkfifo)(path)
    assert read_rank_record(path) is None


def test_bytes_that_are_no_text_leave_a_record(tmp_path: Path) -> None:
    log = read_log(OURS, record("failed", stage="x", message="m").replace("stage=x", "stage=caf\udcff"))
    write_record(tmp_path / "record.json", build_record(1, log, None, None))
    assert json.loads((tmp_path / "record.json").read_bytes())["stage"] is None, "as the operator reads it"


PROGRAM = """
import os, sys
for line in (b"event=stopped job=uid-2 attempt=2", b"event=checkpoint stage=caf\\xff path=/x job=uid-2 attempt=2",
             b"a" * 65000, b'event=progress step=' + b"9" * 5000 + b" job=uid-1 attempt=2", b"\\xff" * 70000):
    os.write(1, b"bert-trainer/1 " + line + b"\\n")
os.write(1, b"bert-pod/1 event=rank rank=" + b"9" * 5000 + b" size=1 host=x\\n")
os.mkdir(os.environ["BERT_TERMINATION_LOG"])
"""


def test_a_pod_survives_all_of_that_and_reports_the_program_s_own_end(tmp_path: Path) -> None:
    config, script = tmp_path / "run.json", tmp_path / "program.py"
    config.write_text('{"job": {"uid": "uid-1"}}')
    script.write_text(PROGRAM)
    options = ["single", "--ranks", "1", "--termination-log", str(tmp_path / "record.json")]
    ended = subprocess.run(
        [*pods.POD, *options, "--", sys.executable, str(script)],
        env=pods.environment(TMPDIR=str(tmp_path), BERT_RUN_CONFIG=str(config), BERT_ATTEMPT="2"),
        capture_output=True,
        timeout=pods.DEADLINE_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    left: dict[str, Any] = json.loads((tmp_path / "record.json").read_text())
    assert (left["reason"], left["exitCode"], left["checkpoint"]) == ("Succeeded", 0, None)


def test_bytes_that_are_no_text_deep_in_a_record_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(path, {"exitCode": 1, "firstFailure": {"host": "\udcff"}, "checkpoint": ["\ud800"]})
    assert json.loads(path.read_text())["exitCode"] == 1
