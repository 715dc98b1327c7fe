"""Which processes are a run's own."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from bert_operator.local.guard import TERMINATION_LOG_VARIABLE, find_members
from patience import PATIENCE_S

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def start(mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sleep", "60"], env={TERMINATION_LOG_VARIABLE: mark})


def start_as(pid: int, mark: str) -> subprocess.Popen[bytes] | None:
    """Start a process under a number; None where another process was faster."""
    LAST_PID.write_text(str(pid - 1))
    process = start(mark)
    if process.pid == pid:
        return process
    process.kill()
    process.wait()
    return None


def test_a_process_with_the_number_of_one_seen_before_can_be_signalled() -> None:
    since_s = time.time()
    for _ in range(50):
        old = start("old")
        assert [member.pid for member in find_members(lambda mark: mark == "old", None, since_s)[0]] == [old.pid]
        old.kill()
        old.wait()
        try:
            new = start_as(old.pid, "new")
        except OSError as problem:
            pytest.skip(f"requires root, to choose the number of a process ({problem.strerror})")
        if new is not None:
            break
    else:
        pytest.skip("other processes took the number every time")
    try:
        (member,), _ = find_members(lambda mark: mark == "new", None, since_s)
        member.send_signal(signal.SIGTERM)
        assert new.wait(timeout=PATIENCE_S) == -signal.SIGTERM
    finally:
        new.kill()
        new.wait()
