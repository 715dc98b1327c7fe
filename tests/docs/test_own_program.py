"""What the guide tells others to print is what the operator reads and the launcher believes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from bert_operator.cluster.log_reader import LatestRecords, read_latest_records
from bert_trainer.pod.launcher_log import LauncherLog, read_record_source
from bert_trainer.pod.rank_output import Line
from bert_trainer.system.heartbeat import DESCRIPTOR_VARIABLE, MEMORY_NAME, SIZE_BYTES, Beat
from patience import PATIENCE_S

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "own-program.md"


def programs() -> list[str]:
    """Return the Python of the page: what is watched for hangs, what reports progress."""
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_a_program_with_the_two_lines_of_the_guide_is_watched() -> None:
    program, _ = programs()
    descriptor = os.memfd_create(MEMORY_NAME, 0)
    try:
        os.ftruncate(descriptor, SIZE_BYTES)
        environment = {**os.environ, DESCRIPTOR_VARIABLE: str(descriptor)}
        command = [sys.executable, "-c", program]
        subprocess.run(command, env=environment, pass_fds=[descriptor], timeout=PATIENCE_S, check=True)
        beat = Beat.unpack(os.pread(descriptor, SIZE_BYTES, 0))
    finally:
        os.close(descriptor)
    assert beat is not None
    assert beat.steps == 1


def test_the_program_of_the_guide_reports_progress(tmp_path: Path) -> None:
    _, program = programs()
    config = tmp_path / "run.json"
    config.write_text(json.dumps({"job": {"name": "demo", "uid": "uid-1"}}))
    environment = {**os.environ, "BERT_RUN_CONFIG": str(config), "BERT_ATTEMPT": "2"}
    told = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout
    report = read_latest_records(told, "uid-1", 2, LatestRecords())
    assert not report.refused
    assert report.progress is not None
    assert (report.progress.stage, report.progress.count("step"), report.progress.number("loss")) == (
        "finetune",
        120,
        6.104,
    )
    assert report.checkpoint is not None
    assert report.checkpoint.text("path") == "/mnt/output/my-job/step-120"
    log = LauncherLog(read_record_source(("python3", "mine.py"), environment))
    for line in told.splitlines():
        log.note(Line(0, line))
    assert (log.step, log.checkpoint) == (120, "/mnt/output/my-job/step-120")
